"""A long session keeps nobody waiting: it is decoded and folded in threads, on either database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import Engine, event

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.facts import MessageAdded, RecordedEvent, SessionCreated
from swarmkeep.events.fold import fold
from swarmkeep.events.state import State
from swarmkeep.history.verify import verify
from swarmkeep.store.reading import upcast
from swarmkeep.store.records import SessionKey
from tests.store.conftest import Opener

KEY = SessionKey("acme", "long")
# Much to decode, and little to fetch.
PARTS = [{"type": "text", "text": "x", "at": number} for number in range(60)]
SAID = MessageAdded(message={"role": "user", "content": PARTS})
DRAFTS = draft_events("Ann", [SessionCreated(agent="Ann"), *[SAID] * 2000], None)


async def measure_on_loop(work: Callable[[], Awaitable[Any]]) -> tuple[Any, float]:
    """What it gives, and the processor's time that it takes of the loop's thread, at best."""
    times = []
    for _ in range(3):
        began = time.thread_time()
        result = await work()
        times.append(time.thread_time() - began)
    return result, min(times)


def measure_decoding(events: list[RecordedEvent]) -> float:
    began = time.thread_time()
    for one in events:
        upcast(one.type, one.version, one.payload)
    fold(events)
    return time.thread_time() - began


@pytest.mark.long
async def test_long_session_is_processed_off_loop(opener: Opener) -> None:
    appended = await opener().append(KEY, State(), DRAFTS)
    store = opener(cache_bytes=0)
    events, for_read = await measure_on_loop(lambda: store.read(KEY))
    state, for_state = await measure_on_loop(lambda: store.state(KEY))
    decoding = measure_decoding(events)
    assert (len(events), state.hash) == (len(DRAFTS), appended.state.hash)
    # On the loop, each of the two would take that long, and as long again to fetch the rows.
    assert for_read + for_state < 2 * decoding
    found, for_verify = await measure_on_loop(lambda: verify(store, KEY))
    assert (found.valid, found.events) == (True, len(DRAFTS))
    assert for_verify < 0.5 * decoding


@pytest.mark.long
async def test_long_session_pages_see_one_moment(opener: Opener) -> None:
    await opener().append(KEY, State(), DRAFTS)
    store, other = opener(cache_bytes=0), opener()
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        statements.append(statement)

    event.listen(Engine, "after_cursor_execute", note)
    try:
        events = await store.read(KEY)
    finally:
        event.remove(Engine, "after_cursor_execute", note)
    assert [one.seq for one in events] == list(range(1, len(DRAFTS) + 1))
    fetches = [one for one in statements if "payload" in one and "FROM events" in one and "octet" not in one]
    # SQLite fetches in a thread of its own, and what it fetches as it goes; from its driver, which tells nobody.
    assert store.display.startswith("sqlite") or len(fetches) >= len(DRAFTS) / 500
    reads = asyncio.gather(*(store.read(KEY) for _ in range(5)))
    await other.delete(KEY)
    assert {len(read) for read in await reads} <= {0, len(DRAFTS)}


async def test_large_event_page_ends_at_bytes(opener: Opener) -> None:
    facts = [MessageAdded(message={"role": "user", "content": "x" * size}) for size in [1, 700_000, 700_000, 1] * 6]
    drafts = draft_events("Ann", [SessionCreated(agent="Ann"), *facts], None)
    store = opener(cache_bytes=0)
    await store.append(KEY, State(), drafts)
    events = await store.read(KEY)
    assert [one.seq for one in events] == list(range(1, len(drafts) + 1))
    assert [one.seq for one in await store.read(KEY, after=3, upto=22)] == list(range(4, 23))
