"""What is read is a table of rows, and nothing that only looks like one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import text

from swarmkeep.history.checkpoints import verify_audit_log
from swarmkeep.history.verify import verify
from swarmkeep.store import schema
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.tables import SEARCH_TABLES, metadata
from tests.store.calls import make_reply, record_calls
from tests.store.sessions import KEY

# What searches read can be made anew from the log at any time, and proves nothing. The log of heads is compared
# with what others keep.
_BESIDE = {"api_keys", "trail", "totals", "log_leaves", "log_checkpoints", *(table.name for table in SEARCH_TABLES)}
CHECKED = sorted(set(metadata.tables) - _BESIDE)


async def execute(store: SqlStore, *statements: str) -> None:
    for statement in statements:
        await store.database.write(lambda connection, statement=statement: connection.execute(text(statement)) and None)


async def list_codes(store: SqlStore) -> list[str]:
    return [problem.code for problem in (await verify(store, KEY)).problems]


def replace_with_view(table: str) -> list[str]:
    return [f"ALTER TABLE {table} RENAME TO real_{table}", f"CREATE VIEW {table} AS SELECT * FROM real_{table}"]


@asynccontextmanager
async def recorded(url: str) -> AsyncIterator[SqlStore]:
    """A session in a database of the test's own, whose schema it may change."""
    schema.upgrade(url)
    store = open_store(url)
    try:
        await record_calls(store, KEY, make_reply("m"))
        assert await list_codes(store) == []
        yield store
    finally:
        await store.close()


@pytest.mark.parametrize("table", CHECKED)
async def test_view_replacing_table_found(database_url: str, table: str) -> None:
    async with recorded(database_url) as store:
        await execute(store, *replace_with_view(table))
        assert await list_codes(store) == ["table_replaced"]


async def test_view_replacing_audit_log_found(database_url: str) -> None:
    async with recorded(database_url) as store:
        await store.delete(KEY)
        assert (await verify_audit_log(store, "default")).valid
        await execute(store, *replace_with_view("trail"))
        found = await verify_audit_log(store, "default")
        assert [problem.code for problem in found.problems] == ["table_replaced"]


async def test_computed_column_found(sqlite_url: str) -> None:
    async with recorded(sqlite_url) as store:
        change = "ALTER TABLE session_labels ADD COLUMN more TEXT GENERATED ALWAYS AS (upper(session_id)) VIRTUAL"
        await execute(store, change)
        assert await list_codes(store) == ["table_replaced"]


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE more_events () INHERITS (events)",
        "ALTER TABLE events ADD COLUMN more text GENERATED ALWAYS AS (payload) STORED",
    ],
)
async def test_row_altering_rules_found_on_server(postgres_url: str, change: str) -> None:
    async with recorded(postgres_url) as store:
        await execute(store, change)
        assert await list_codes(store) == ["table_replaced"]
