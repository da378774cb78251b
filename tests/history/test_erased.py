"""PostgreSQL keeps the bytes of removed rows until its tables are written anew; then they are gone from these."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest

from swarmkeep.history.redact import redact
from swarmkeep.runs.sessions import delete_session
from swarmkeep.store import schema
from swarmkeep.store.opening import open_store
from swarmkeep.store.tables import SEARCH_TABLES, SESSION_TABLES, sessions
from swarmkeep.store.urls import PostgresServer, locate
from tests.history.test_redact import WORD, put_canary_everywhere
from tests.store.sessions import KEY, OTHER
from tests.support.postgres import private_postgres


async def _execute(url: str, *statements: str) -> str:
    server = locate(url)
    assert isinstance(server, PostgresServer)
    connection = await asyncpg.connect(server.dsn, user=server.user, password=server.password)
    try:
        for statement in statements:
            await connection.execute(statement)
        directory: str = await connection.fetchval("SHOW data_directory")
        return directory
    finally:
        await connection.close()


def find_canary_files(directory: Path) -> list[str]:
    """The files of tables that hold the canary. The write-ahead log has it until its files are used again."""
    found = []
    for file in (directory / "base").rglob("*"):
        try:
            if file.is_file() and WORD.encode() in file.read_bytes():
                found.append(file.name)
        except FileNotFoundError:
            continue
    return found


async def _remove_all(url: str) -> None:
    store = open_store(url)
    state = await put_canary_everywhere(store)
    await put_canary_everywhere(store, OTHER)
    await redact(store, KEY, range(1, state.seq + 1), "asked for")
    await delete_session(store, OTHER)
    await store.close()


@pytest.mark.long
def test_vacuumed_tables_hold_no_removed_data() -> None:
    with private_postgres() as server:
        url = server.url
        schema.upgrade(url)
        asyncio.run(_remove_all(url))
        tables = ", ".join(table.name for table in (sessions, *SESSION_TABLES, *SEARCH_TABLES))
        directory = Path(asyncio.run(_execute(url, f"VACUUM FULL {tables}", "CHECKPOINT")))
        assert find_canary_files(directory) == []
