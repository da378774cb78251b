"""Every statement of the store goes by an index to the rows that it is about, on both databases."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from benchmarks.large_database import TENANT, fill_database
from sqlalchemy import Connection, text

from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.postgres_connections import connect
from swarmkeep.store.search import join_words
from swarmkeep.store.tables import mark_words, metadata
from swarmkeep.store.urls import PostgresServer, locate
from tests.store.plans.cases import CASES, Case
from tests.store.plans.explaining import (
    Access,
    Plan,
    Site,
    Statement,
    explain_on_postgres,
    explain_on_sqlite,
    list_statement_modules,
    recorded_statements,
)

# Tables of which no case wants most rows, with as many here as make a difference.
LARGE = {"sessions", "session_labels", "events", "search_marks"}
# What an index has to be searched by, at least: or else other sessions' rows, or another tenant's, are read.
KEYS: dict[str, tuple[set[str], ...]] = {
    "sessions": (
        {"tenant", "id"},
        {"tenant", "person_key"},
        {"tenant", "agent"},
        {"tenant", "status"},
        {"tenant", "last_run"},
    ),
    "session_labels": ({"tenant", "session_id"}, {"tenant", "label"}),
    "events": ({"tenant", "session_id"}, {"tenant", "hash"}),
    "blobs": ({"tenant", "session_id"},),
    "files": ({"tenant", "session_id"},),
    "idempotency": ({"tenant", "session_id"},),
    "creations": ({"tenant", "key"}, {"tenant", "session_id"}),
    "usage": ({"tenant", "session_id"}, {"tenant", "run_id"}, {"tenant", "day"}),
    "usage_days": ({"tenant"},),
    "runs": ({"tenant", "session_id"}, {"tenant", "agent"}, {"tenant", "status"}),
    "totals": ({"tenant"},),
    "log_leaves": ({"tenant"},),
    "log_checkpoints": ({"tenant"},),
    "archives": ({"tenant", "session_id"}, {"state"}),
    "feed": ({"tenant"},),
    "feed_positions": ({"tenant"},),
    "webhooks": ({"tenant"},),
    "webhook_deliveries": ({"tenant", "webhook_id"}, {"tenant", "session_id"}),
    "trail": ({"tenant"},),
    "search": ({"tenant", "session_id"}, {"words"}, {"number"}),
    "search_marks": ({"tenant", "session_id"},),
    "api_keys": ({"id"}, {"tenant"}, {"key_hash"}),
    "person_keys": ({"id"}, {"tenant", "person"}),
    "automations": ({"tenant"}, {"due_at"}),
    "invocations": ({"tenant", "automation_id"}, {"tenant", "session_id"}, {"due_at"}),
    "made_agents": ({"tenant"},),
    "made_agent_versions": ({"tenant", "agent_id"},),
}
RUNS = {"execute", "fetch_all", "insert_many", "insert_together", "iterate", "scalar", "scalars"}


async def explain(store: SqlStore, statements: list[Statement], raw: Any) -> list[tuple[Statement, Plan]]:
    """With each statement each plan that it may get. `raw` is a connection to PostgreSQL, or None on SQLite."""
    if raw is None:

        def ask(connection: Connection) -> list[tuple[Statement, Plan]]:
            return [(one, explain_on_sqlite(connection, one)) for one in statements]

        return await store.database.read(ask)
    # It reads small tables as a whole, and here some are empty: shown is what it does where it has a choice.
    await raw.execute("SET enable_seqscan = off")
    asked = list(itertools.product(statements, (False, True)))
    plans = [(one, await explain_on_postgres(raw, one, generic=way)) for one, way in asked]
    # Of large ones also what it chooses.
    await raw.execute("SET enable_seqscan = on")
    for one, way in asked:
        accesses = (await explain_on_postgres(raw, one, generic=way)).accesses
        plans.append((one, Plan(tuple(access for access in accesses if access.table in LARGE), sorts=False)))
    return plans


def select_planned(statements: list[Statement]) -> list[Statement]:
    """Each once, but for inserts of values and commands, which read nothing."""
    found = {
        one.sql: one
        for one in statements
        if not one.sql.startswith(("SET ", "INSERT", "CREATE ", "DROP ", "TRUNCATE ")) or "SELECT" in one.sql
    }
    return [one for one in found.values() if any(table in one.sql for table in metadata.tables)]


def find_faults(case: Case, plan: Plan) -> Iterator[str]:
    if plan.sorts and not case.sorts:
        yield "sorts"
    for access in plan.accesses:
        if access.table == "search_index" and "rowid" in access.columns:
            # For each of them all places of a word before it are gone through.
            yield "looks for words in one row after another"
        if access.table not in metadata.tables:
            continue
        if access.index is None:
            if not (case.whole or (case.across and access.table == "api_keys")):
                yield f"reads all of {access.table}"
        elif not is_by_key(access, case):
            yield f"reads {access.index} by {sorted(access.columns)} only"
        if access.filtered and not case.filters:
            yield f"reads rows of {access.table} that it leaves out"


def is_by_key(access: Access, case: Case) -> bool:
    if case.across or (case.in_order and "tenant" in access.columns):
        return True
    return any(columns <= access.columns for columns in KEYS[access.table])


async def check_plans(store: SqlStore, raw: Any = None) -> None:
    faults: list[str] = []
    for group, cases in CASES.items():
        for name, case in cases.items():
            with recorded_statements() as statements:
                await case.run(store)
            for statement, plan in await explain(store, select_planned(statements), raw):
                text = " ".join(statement.sql.split())
                faults += [f"{group}, {name}: {fault}: {text}: {plan}" for fault in find_faults(case, plan)]
    assert not faults, "\n\n".join(faults)


async def test_sqlite_statements_use_an_index(sqlite_ready: str) -> None:
    # SQLite plans without knowing what there is.
    store = open_store(sqlite_ready)
    await store.database.write(lambda connection: fill_database(connection, 60, 3, 2))
    await check_plans(store)
    await store.close()


def fill_search(connection: Connection) -> None:
    """The index of words of all sessions but a few, by SQL alone: through the indexer it would take minutes."""
    words = text(
        "INSERT INTO search (tenant, session_id, seq, number, words)"
        " SELECT tenant, session_id, seq, row_number() OVER (),"
        f" array_to_tsvector(string_to_array({mark_words('CAST(:words AS text)')}, ' '))"
        " FROM events WHERE tenant = :tenant AND session_id NOT LIKE '%00'"
    )
    for tenant in (TENANT, "other"):
        connection.execute(words, {"tenant": tenant, "words": join_words(tenant, ["any", "message"])})
    connection.execute(
        text(
            "INSERT INTO search_marks (tenant, session_id, seq, done, round)"
            " SELECT tenant, id, head_seq, CASE WHEN id LIKE '%00' THEN 0 ELSE head_seq END, 0 FROM sessions"
        )
    )


@pytest.mark.long
async def test_postgres_statements_use_an_index(postgres_ready: str) -> None:
    store = open_store(postgres_ready)
    await store.database.write(lambda connection: fill_database(connection, 20_000, 3, 2))
    await store.database.write(fill_search)
    server = locate(postgres_ready)
    assert isinstance(server, PostgresServer)
    raw = await connect(server, {})
    try:
        # As it is most of the time: what the tables have is known, and nobody has tidied up since it was written.
        await raw.execute("ANALYZE")
        await check_plans(store, raw)
    finally:
        await raw.close()
        await store.close()


@pytest.mark.long
async def test_postgres_finds_indexing_jobs_by_index(postgres_ready: str) -> None:
    """PostgreSQL takes a third of all sessions to be behind, and reads the table where that looks cheaper."""
    store = open_store(postgres_ready)
    fill = text(
        "INSERT INTO search_marks (tenant, session_id, seq, done, round)"
        " SELECT 'default', md5(n::text), 33, 33, 0 FROM generate_series(1, 300000) AS n"
    )
    for statement in (fill, text("ANALYZE search_marks")):
        await store.database.write(partial(Connection.execute, statement=statement))
    server = locate(postgres_ready)
    assert isinstance(server, PostgresServer)
    raw = await connect(server, {})
    try:
        with recorded_statements() as statements:
            assert await store.count_sessions_behind() == 0
            assert await store.index_some() == 0
        plans = [plan for _, plan in await explain(store, select_planned(statements), raw)]
        found = {(access.table, access.index) for plan in plans for access in plan.accesses}
        # There are no events here, and once PostgreSQL has learnt of that it reads the table as it is.
        found.discard(("events", None))
        by_key = {("events", "pk_events"), ("archives", "pk_archives")}
        assert found == {("search_marks", "ix_search_marks_behind"), *by_key}
    finally:
        await raw.close()
        await store.close()


@pytest.mark.long
async def test_postgres_reads_no_leaves_of_sessions_before(postgres_ready: str) -> None:
    """Where many sessions have gone on, PostgreSQL reads them and their leaves beside each other."""
    store = open_store(postgres_ready)
    await store.database.write(lambda connection: fill_database(connection, 20_000, 1, 0))
    await store.add_heads(TENANT)
    for statement in (text("UPDATE sessions SET head_seq = head_seq + 1"), text("ANALYZE")):
        await store.database.write(partial(Connection.execute, statement=statement))
    server = locate(postgres_ready)
    assert isinstance(server, PostgresServer)
    raw = await connect(server, {})
    try:
        with recorded_statements() as statements:
            await store.add_heads(TENANT)
        plans = [plan for _, plan in await explain(store, select_planned(statements), raw)]
        beside = [plan for plan in plans if {"sessions", "log_leaves"} <= {access.table for access in plan.accesses}]
        columns = [access.columns for plan in beside for access in plan.accesses if access.table == "log_leaves"]
        assert columns
        assert all("session_id" in found for found in columns)
    finally:
        await raw.close()
        await store.close()


def list_places() -> set[tuple[str, int, int]]:
    """Every call in `store` that runs a statement: the module, its first line and its last."""
    found: set[tuple[str, int, int]] = set()
    for path in list_statement_modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in RUNS:
                found.add((path.stem, node.lineno, node.end_lineno or node.lineno))
    return found


async def test_store_statements_all_have_cases(sqlite_ready: str, postgres_ready: str) -> None:
    """On one of the databases: some are for one of them alone."""
    reached: set[Site] = set()
    for url in (sqlite_ready, postgres_ready):
        store = open_store(url)
        with recorded_statements() as statements:
            for cases in CASES.values():
                for case in cases.values():
                    await case.run(store)
        await store.close()
        reached |= {site for one in statements for site in one.sites}
    missed = [
        f"store/{module}.py, line {first}"
        for module, first, last in sorted(list_places())
        if not any(Site(module, line) in reached for line in range(first, last + 1))
    ]
    assert not missed, "no case of tests/store/plans/cases.py runs the statement of " + "; ".join(missed)
