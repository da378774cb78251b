"""Hints from PostgreSQL about what other processes have changed. They may be lost; here they are not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.postgres_connections import CHANNEL, Notifications, _decode_keys, _encode_payloads, connect
from swarmkeep.store.records import SessionKey
from swarmkeep.store.urls import PostgresServer, locate
from tests.store.sessions import KEY, OTHER, begin_session, draft_user_messages, new_key

SECONDS = 20.0


class Listener:
    """A store that hears, and what it heard."""

    def __init__(self, url: str) -> None:
        self.store = open_store(url)
        self.changed: list[SessionKey] = []
        self._arrived = asyncio.Event()
        self._task = asyncio.create_task(self.store.listen(self._hear))

    def _hear(self, key: SessionKey) -> None:
        self.changed.append(key)
        self._arrived.set()

    async def until(self, key: SessionKey) -> None:
        async with asyncio.timeout(SECONDS):
            while key not in self.changed:
                self._arrived.clear()
                await self._arrived.wait()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.store.close()


@asynccontextmanager
async def open_listeners(url: str, count: int = 1) -> AsyncIterator[list[Listener]]:
    listening = [Listener(url) for _ in range(count)]
    try:
        await wait_for_listeners(url, count)
        yield listening
    finally:
        for ear in listening:
            await ear.close()


async def wait_for_listeners(url: str, count: int) -> None:
    """Wait until so many connections to this database have asked for notifications."""
    # The last statement of one that listens: LISTEN, or the greeting behind it.
    mine = "datname = current_database() AND query ~ '^(LISTEN|SELECT pg_notify)'"
    query = f"SELECT count(*) FROM pg_stat_activity WHERE {mine}"
    connection = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(SECONDS):
            while await connection.fetchval(query) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        await connection.close()


async def break_listeners(url: str) -> None:
    """Break the connections that listen, and wait until they are gone."""
    connection = await asyncpg.connect(url)
    try:
        mine = "datname = current_database() AND pid <> pg_backend_pid()"
        broken = await connection.fetch(
            f"SELECT pid, pg_terminate_backend(pid, {int(SECONDS * 1000)}) AS gone FROM pg_stat_activity WHERE {mine}"
        )
        assert all(one["gone"] for one in broken)
    finally:
        await connection.close()


async def test_processes_hear_others_appends_and_deletions(postgres_ready: str) -> None:
    async with open_listeners(postgres_ready, 2) as (one, other):
        state = await begin_session(one.store)
        await other.until(KEY)
        assert one.changed == []
        other.changed.clear()
        await one.store.append(KEY, state, draft_user_messages("x"))
        await other.until(KEY)
        other.changed.clear()
        await one.store.delete(KEY)
        await other.until(KEY)
        await begin_session(other.store, OTHER)
        await one.until(OTHER)
        assert KEY not in one.changed


async def test_a_connection_that_breaks_comes_back(postgres_ready: str) -> None:
    async with open_listeners(postgres_ready, 2) as (one, other):
        await break_listeners(postgres_ready)
        await wait_for_listeners(postgres_ready, 2)
        await begin_session(one.store)
        await other.until(KEY)


async def test_anybody_may_notify_anything(postgres_ready: str) -> None:
    async with open_listeners(postgres_ready) as (ear,):
        stranger = await asyncpg.connect(postgres_ready)
        try:
            for payload in ("", "[", "null", "[1]", "[[1,2,3]]", '{"a":1}'):
                await stranger.execute(f"SELECT pg_notify('{CHANNEL}', $1)", payload)
            await stranger.execute(f"SELECT pg_notify('{CHANNEL}', $1)", '[["default","s2"]]')
        finally:
            await stranger.close()
        await ear.until(OTHER)
        assert ear.changed[-1] == OTHER


async def test_to_nobody_nothing_is_sent(postgres_ready: str) -> None:
    server = locate(postgres_ready)
    assert isinstance(server, PostgresServer)
    alone = Notifications(lambda: connect(server, {}), greeting_seconds=0.0)
    heard: asyncio.Queue[str] = asyncio.Queue()
    stranger = await asyncpg.connect(postgres_ready)
    listening: asyncio.Task[None] | None = None
    try:
        await stranger.add_listener(CHANNEL, lambda *given: heard.put_nowait(given[3]))
        listening = asyncio.create_task(alone.run(lambda _: None))
        async with asyncio.timeout(SECONDS):
            assert await heard.get() == ""
            # It has not heard of anybody: who never says a word is not known.
            alone.notify(KEY)
            await stranger.execute(f"SELECT pg_notify('{CHANNEL}', '')")
            assert [await heard.get(), await heard.get()] == ["", ""]
            alone.notify(OTHER)
            assert list(_decode_keys(await heard.get())) == [OTHER]
    finally:
        if listening is not None:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        await stranger.close()


async def test_store_without_listeners_keeps_nothing(store: SqlStore) -> None:
    for _ in range(20):
        await begin_session(store, new_key())
    notifications = getattr(store.database, "_notifications", None)
    assert notifications is None or notifications._pending == {}


async def test_hintless_stores_give_no_hints(sqlite_ready: str) -> None:
    store = open_store(sqlite_ready)
    await store.listen(lambda _: pytest.fail("nobody said anything"))
    await store.close()


def test_any_name_fits_into_notifications() -> None:
    keys = [SessionKey(f"tenant \ud800 ü {n}", f"{'s' * (n % 500)}\0{n}") for n in range(2000)]
    payloads = _encode_payloads(keys)
    assert max(len(payload.encode()) for payload in payloads) <= 7999
    assert "\\u0000" in payloads[0]
    assert [key for payload in payloads for key in _decode_keys(payload)] == keys
    assert json.loads(payloads[0])
    assert _encode_payloads([]) == _encode_payloads([SessionKey("t", "s" * 8000)]) == []
