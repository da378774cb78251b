"""What is done for one session costs no more, the more are watched or read at the same time."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, closing

from swarmkeep.runs.hub import Hub
from swarmkeep.runs.watcher import Watcher
from swarmkeep.store.opening import open_store
from swarmkeep.store.records import SessionKey
from tests.store.sessions import begin_session, draft_user_messages, new_key
from tests.store.test_notifications import SECONDS, open_listeners, wait_for_listeners
from tests.support.calls import count_calls

OTHERS = [SessionKey("default", f"other{number}") for number in range(1200)]


def count_calls_of_leaving(readers: int) -> int:
    """How many functions are called as a reader leaves, who is one of so many."""
    hub = Hub()
    with ExitStack() as others:
        for key in OTHERS[:readers]:
            others.enter_context(closing(hub.open_feed(key)))
        feed = hub.open_feed(SessionKey("default", "mine"))
        with count_calls() as calls:
            feed.close()
        assert hub.reader_count == readers
    return calls.total()


def test_reader_leaves_without_scanning_others() -> None:
    assert count_calls_of_leaving(1000) == count_calls_of_leaving(10)


async def test_hint_is_followed_without_listing_watched(postgres_ready: str) -> None:
    key = new_key()
    listed: list[int] = []
    moved: list[SessionKey] = []
    arrived = asyncio.Event()

    def list_keys() -> set[SessionKey]:
        listed.append(len(OTHERS))
        return {key, *OTHERS}

    async def note_moved(keys: set[SessionKey]) -> None:
        moved.extend(keys)
        arrived.set()

    store = open_store(postgres_ready)
    async with open_listeners(postgres_ready) as (one,):
        state = await begin_session(one.store, key)
        watcher = Watcher(store, list_keys, lambda hinted: hinted == key, note_moved, poll_seconds=600)
        watching = asyncio.create_task(watcher.run())
        async with asyncio.timeout(SECONDS):
            await arrived.wait()
            # What it finds first, it has not seen before.
            assert set(moved) == {key, *OTHERS}
            moved.clear()
            await wait_for_listeners(postgres_ready, 2)
            arrived.clear()
            await one.store.append(key, state, draft_user_messages("x"))
            await arrived.wait()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    await store.close()
    assert (moved, len(listed)) == ([key], 1)
