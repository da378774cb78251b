"""Behind a pooler that lends out connections by transaction, as pgbouncer does."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import asyncpg  # type: ignore[import-untyped]
import pytest

from swarmkeep.events.errors import Overloaded, SeqConflict
from swarmkeep.events.state import State
from swarmkeep.store import postgres_connections
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import OutcomeUnknown, SessionKey, StoreUnavailable
from tests.store.sessions import KEY, draft_creation, draft_user_messages
from tests.support.transaction_pooler import TransactionPooler


async def test_appends_and_reads_work_on_any_connection(postgres_ready: str) -> None:
    async with TransactionPooler(postgres_ready) as pooler:
        store = open_store(pooler.url)
        try:
            appended = await store.append(KEY, State(), draft_creation())
            head = await store.read_head(KEY)
            assert head is not None
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
                    assert head is not None
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
