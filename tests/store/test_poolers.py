"""Behind a pooler that lends out connections by transaction, as pgbouncer does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import asyncpg  # type: ignore[import-untyped]
import pytest
from sqlalchemy import text

from swarmkeep.events.errors import Overloaded, SeqConflict
from swarmkeep.events.state import State
from swarmkeep.store import postgres_connections
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import OutcomeUnknown, SessionKey, StoreUnavailable
from tests.store.sessions import KEY, draft_creation, draft_user_messages, new_key
from tests.support.postgres import Postgres
from tests.support.transaction_pooler import TransactionPooler


async def test_appends_and_reads_work_on_any_connection(postgres_ready: str) -> None:
    async with TransactionPooler(postgres_ready) as pooler:
        store = open_store(pooler.url)
        try:
            appended = await store.append(KEY, State(), draft_creation())
            head = await store.read_head(KEY)
            assert head.seq == appended.state.seq == 1
            assert [event.seq for event in await store.read(KEY)] == [1]
            await store.ping()
        finally:
            await store.close()


async def test_concurrent_callers_get_their_own_answers(postgres_ready: str) -> None:
    """What one has prepared on a connection must not be run by another who gets it next."""
    keys = [SessionKey(KEY.tenant, f"s-{number}") for number in range(20)]
    async with TransactionPooler(postgres_ready, connections=4) as pooler:
        store = open_store(pooler.url)
        try:

            async def use(key: SessionKey) -> None:
                created = (await store.append(key, State(), draft_creation())).state
                for _ in range(5):
                    head = await store.read_head(key)
                    assert (head.seq, head.hash) == (1, created.hash)
                    (event,) = await store.read(key)
                    assert event.seq == 1
                    assert await store.read_heads([key])
                    await store.find_abandoned()

            await asyncio.gather(*map(use, keys))
        finally:
            await store.close()


@pytest.mark.parametrize("read_only", [False, True])
async def test_read_only_store_works_with_pooler(postgres_ready: str, read_only: bool) -> None:
    writer = open_store(postgres_ready)
    try:
        await writer.append(KEY, State(), draft_creation())
    finally:
        await writer.close()
    async with TransactionPooler(postgres_ready) as pooler:
        store = open_store(pooler.url, read_only=read_only)
        try:
            heads = await asyncio.gather(*(store.read_head(KEY) for _ in range(20)))
            assert [head.seq for head in heads if head is not None] == [1] * 20
        finally:
            await store.close()


async def test_stalled_statement_blocks_others_only_briefly(
    postgres_ready: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No time-out for locks can be set through a pooler: what a statement may take is all there is."""
    monkeypatch.setitem(postgres_connections.make_engine.__kwdefaults__, "command_seconds", 2.0)
    monkeypatch.setattr(postgres_connections, "STANDSTILL_SECONDS", 0.2)
    sleeper = await asyncpg.connect(postgres_ready, server_settings={"application_name": ""})
    async with TransactionPooler(postgres_ready) as pooler:
        store = open_store(pooler.url)
        try:
            state = (await store.append(KEY, State(), draft_creation())).state
            await sleeper.execute("BEGIN")
            await sleeper.execute("UPDATE sessions SET tenant = tenant")
            # The text is sent, its values are not.
            await sleeper.prepare("SELECT seq FROM events WHERE seq = $1")
            # What is told to end may take a moment; and who waited in vain does not know whether it was done.
            with suppress(SeqConflict):
                for _ in range(20):
                    with suppress(Overloaded, OutcomeUnknown, StoreUnavailable):
                        await store.append(KEY, state, draft_user_messages("Hello."))
                        break
            assert [event.seq for event in await store.read(KEY)] == [1, 2]
            with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
                await sleeper.execute("COMMIT")
        finally:
            sleeper.terminate()
            await store.close()


# A PostgreSQL server that takes no writes any more: connections that were made before it changed are not kept.


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
