"""A PostgreSQL server that takes no writes any more: connections that were made before it changed are not kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest
from sqlalchemy import text

from swarmkeep.events.state import State
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import StoreUnavailable
from tests.store.sessions import KEY, draft_creation, new_key
from tests.support.postgres import Postgres


@pytest.fixture
def read_only_url(postgres: Postgres, postgres_ready: str) -> Iterator[str]:
    """A database whose connections may only read, until `let_write`."""
    refuse_writes(postgres, postgres_ready)
    yield postgres_ready
    let_write(postgres, postgres_ready)


def refuse_writes(postgres: Postgres, url: str) -> None:
    postgres.alter(url, "SET default_transaction_read_only = on")


def let_write(postgres: Postgres, url: str) -> None:
    postgres.alter(url, "RESET default_transaction_read_only")


async def test_write_finds_the_writable_server(postgres: Postgres, read_only_url: str) -> None:
    store = open_store(read_only_url)
    try:
        with pytest.raises(StoreUnavailable, match="read-only"):
            await store.append(KEY, State(), draft_creation())
        # As after a failover: who connects now can write, the connections of before cannot.
        let_write(postgres, read_only_url)
        assert (await store.append(KEY, State(), draft_creation())).state.seq == 1
    finally:
        await store.close()


async def test_refusing_server_is_unready_until_writable(postgres: Postgres, read_only_url: str) -> None:
    store, key = open_store(read_only_url), new_key()
    try:
        with pytest.raises(StoreUnavailable, match="read-only"):
            await store.append(key, State(), draft_creation())
        # It has taken none so far, and is there to be read.
        await store.ping()
        let_write(postgres, read_only_url)
        await store.append(key, State(), draft_creation())
        name = await store.database.read(lambda connection: connection.scalar(text("SELECT current_database()")))
        refuse_writes(postgres, read_only_url)
        # As with a failover, the connections of before go.
        postgres.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        with pytest.raises(StoreUnavailable):
            await store.append(new_key(), State(), draft_creation())
        with pytest.raises(StoreUnavailable, match="read-only"):
            await store.ping()
        let_write(postgres, read_only_url)
        await store.ping()
    finally:
        await store.close()


async def test_write_finds_server_despite_held_connections(postgres: Postgres, read_only_url: str) -> None:
    store = open_store(read_only_url)
    try:
        for _ in range(3):
            assert await store.read_head(KEY) is None
        let_write(postgres, read_only_url)
        assert (await store.append(KEY, State(), draft_creation())).state.seq == 1
        assert (await store.read_head(KEY)) is not None
    finally:
        await store.close()


async def test_busy_connection_closes_with_the_store(postgres: Postgres, read_only_url: str) -> None:
    store, holder = open_store(read_only_url), await asyncpg.connect(read_only_url)
    await holder.execute("SELECT pg_advisory_lock(1)")
    try:
        waiting = asyncio.ensure_future(
            store.database.read(lambda connection: connection.scalar(text("SELECT pg_advisory_lock_shared(1) IS NULL")))
        )
        while not await holder.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
            pass
        with pytest.raises(StoreUnavailable, match="read-only"):
            await store.append(KEY, State(), draft_creation())
        await holder.execute("SELECT pg_advisory_unlock(1)")
        await waiting
    finally:
        await store.close()
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    async with asyncio.timeout(20):
        while await holder.fetchval(others):
            pass
    await holder.close()
