"""A long session keeps nobody waiting: it is decoded and folded in threads, on either database."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from swarmkeep.domain.decisions.drafts import draft_events
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import MessageAdded, SessionCreated
from swarmkeep.domain.fold import fold
from swarmkeep.domain.state import State
from swarmkeep.store.ports import SessionKey
from swarmkeep.store.upcast import upcast
from tests.store.conftest import Opener

KEY = SessionKey("acme", "long")
# Much to decode, and little to fetch.
PARTS = [{"type": "text", "text": "x", "at": number} for number in range(60)]
SAID = MessageAdded(message={"role": "user", "content": PARTS})
DRAFTS = draft_events("Ann", [SessionCreated(agent="Ann"), *[SAID] * 4000], None)


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
    for event in events:
        upcast(event.type, event.version, event.payload)
    fold(events)
    return time.thread_time() - began


@pytest.mark.long
async def test_a_long_session_is_decoded_and_folded_off_the_loop(opener: Opener) -> None:
    appended = await opener().append(KEY, State(), DRAFTS)
    store = opener(cache_bytes=0)
    events, for_read = await measure_on_loop(lambda: store.read(KEY))
    state, for_state = await measure_on_loop(lambda: store.state(KEY))
    decoding = measure_decoding(events)
    assert (len(events), state.hash) == (len(DRAFTS), appended.state.hash)
    # On the loop, each of the two would take that long, and what it takes to fetch the rows.
    assert for_read + for_state < 1.5 * decoding
