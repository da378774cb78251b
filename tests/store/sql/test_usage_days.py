"""Sums by day are what the rows of the calls come to, whatever was done to the sessions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import Connection, func, select, update

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.facts import SessionForked
from swarmkeep.events.redaction import redact_payload
from swarmkeep.events.usage import UsageQuery
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import AuditAction, Restoration, SealedBatch, SessionKey
from swarmkeep.store.tables import usage, usage_days
from swarmkeep.store.totals import SUMS
from tests.store.calls import make_reply, make_tool_result, record_calls
from tests.store.conftest import Opener
from tests.store.plans.cases import draft_redaction


def make_key(name: str) -> SessionKey:
    return SessionKey("default", name)


def read_sums(connection: Connection, table: Any) -> list[tuple[Any, ...]]:
    names = (table.c.tenant, table.c.day, table.c.agent, table.c.model)
    query = select(*names, *(func.sum(table.c[name]) for name in SUMS)).group_by(*names)
    return sorted((*row[:4], *(round(float(value), 3) for value in row[4:])) for row in connection.execute(query))


async def check(store: SqlStore) -> list[tuple[Any, ...]]:
    kept, counted = await store.database.read(
        lambda connection: (read_sums(connection, usage_days), read_sums(connection, usage))
    )
    assert kept == counted
    return kept


async def test_usage_follows_every_session_change(store: SqlStore) -> None:
    first = await record_calls(
        store, make_key("a"), make_reply("x", total_tokens=3), make_tool_result(0.1), agent="Ann"
    )
    await record_calls(store, make_key("b"), make_reply("x", total_tokens=5), agent="Ann")
    assert len(await check(store)) == 2
    forked = SessionForked(from_session_id="a", from_seq=first.seq, from_hash=first.hash)
    fork = await store.fork(make_key("a"), first, make_key("f"), draft_events("Ann", [forked], None))
    await store.append(make_key("f"), fork.state, draft_events("Ann", [make_reply("y", total_tokens=7)], "r2"))
    assert [row[3] for row in await check(store)] == ["", "x", "y"]

    sealed = await store.read_sealed(make_key("f"))
    await store.delete(make_key("f"))
    # Not even the name of what only that session had is left.
    assert [row[3] for row in await check(store)] == ["", "x"]
    chunks = [SealedBatch(sealed[start : start + 2]) for start in range(0, len(sealed), 2)]
    action = AuditAction(type="session.imported")
    await store.restore([Restoration(make_key("f"), lambda: chunks, lambda _: [])], action=action)
    assert [row[3] for row in await check(store)] == ["", "x", "y"]
    for name in "abf":
        await store.delete(make_key(name))
    assert await check(store) == []


async def test_redacted_calls_keep_counting(store: SqlStore) -> None:
    await record_calls(store, make_key("a"), make_reply("a name, maybe", total_tokens=3), make_reply("x"))
    log = await store.read_sealed(make_key("a"))
    said = next(one.event for one in log if one.event.type == "message.added")
    await store.redact(make_key("a"), log, {said.seq: redact_payload(said)}, draft_redaction(said.seq))
    kept = await check(store)
    assert "a name, maybe" not in {row[3] for row in kept}
    assert sum(row[4] for row in kept) == 2


async def test_counts_before_parts_can_be_deleted(store: SqlStore) -> None:
    await record_calls(store, make_key("a"), make_reply("x", total_tokens=3))
    await record_calls(store, make_key("b"), make_reply("y", total_tokens=5))
    # As the migration puts it.
    await store.database.write(lambda connection: connection.execute(update(usage_days).values(part=0)).rowcount)
    await store.delete(make_key("a"))
    rows = (await store.sum_usage("default", UsageQuery(by=("model",)))).rows
    assert [(row.model, row.total_tokens) for row in rows] == [("y", 5)]


async def test_many_at_once_lose_nothing(opener: Opener) -> None:
    stores = [opener(), opener()]
    facts = [make_reply(model, total_tokens=1) for model in ("x", "y", "z")]
    await asyncio.gather(
        *(
            record_calls(stores[number % 2], make_key(f"s{number}"), *facts[:: 1 if number % 2 else -1])
            for number in range(24)
        )
    )
    assert sum(row[8] for row in await check(stores[0])) == 72
    await asyncio.gather(*(stores[number % 2].delete(make_key(f"s{number}")) for number in range(0, 24, 2)))
    assert sum(row[8] for row in await check(stores[1])) == 36


@pytest.mark.parametrize("by", [("session",), ("run",), ("session", "run"), ("run", "model"), ("session", "agent")])
async def test_session_and_run_pages_match_all_calls(store: SqlStore, by: Any) -> None:
    for number in range(9):
        facts = [make_reply(f"m{place % 2}", total_tokens=place) for place in range(number % 4)]
        await record_calls(store, make_key(f"s{number}"), *facts, run=f"r{number // 2}")
    (whole,) = [await store.sum_usage("default", UsageQuery(by=by, limit=200))]
    assert whole.next_cursor is None
    for limit in (1, 2, 3):
        rows: list[Any] = []
        cursor = None
        while True:
            page = await store.sum_usage("default", UsageQuery(by=by, limit=limit, cursor=cursor))
            rows += page.rows
            if (cursor := page.next_cursor) is None:
                break
        assert rows == whole.rows
    everything = (await store.sum_usage("default", UsageQuery())).rows[0]
    assert sum(row.total_tokens for row in rows) == everything.total_tokens
