"""Following a log and a hub: every event once and in order, and pieces of messages only while they are new."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from swarmkeep.events.errors import Overloaded
from swarmkeep.events.facts import RecordedEvent, RunCancelled, RunStarted
from swarmkeep.events.records import RunOptions
from swarmkeep.runs.hub import Hub, Item, with_pauses
from swarmkeep.runs.reader import PageLimits, ReadPosition, flatten, follow_batches, read_pages
from tests.runs.cluster import KEY, take_items
from tests.runs.streams.items import REPLY, SECONDS, make_delta, make_event
from tests.support.growth import count_values


class ListedLog:
    """A log that a test fills, in the place of a store."""

    def __init__(self) -> None:
        self.events: list[RecordedEvent] = []

    async def read(self, key: Any, *, after: int = 0, **rest: Any) -> list[RecordedEvent]:
        return [event for event in self.events if event.seq > after]

    def add(self, fact: Any = None, run_id: str = "r1") -> RecordedEvent:
        self.events.append(make_event(len(self.events) + 1, fact, run_id))
        return self.events[-1]


def follow_shelf(shelf: ListedLog, hub: Hub, after: int = 0, poll: float = SECONDS) -> AsyncGenerator[Item | None]:
    return flatten(follow_batches(shelf, hub, KEY, after=after, silent_seconds=poll))  # type: ignore[arg-type]


async def test_log_comes_before_live_events() -> None:
    shelf, hub = ListedLog(), Hub()
    old = [shelf.add(), shelf.add()]
    async with aclosing(follow_shelf(shelf, hub)) as items:
        assert await take_items(items, 2) == old
        new = shelf.add()
        hub.publish(KEY, new)
        assert await take_items(items, 1) == [new]
    assert hub.reader_count == 0


async def test_event_read_and_published_is_given_once() -> None:
    shelf, hub = ListedLog(), Hub()
    async with aclosing(follow_shelf(shelf, hub, poll=0.001)) as items:
        assert await anext(items) is None
        for _ in range(5):
            made = shelf.add()
            hub.signal_log_change(KEY)
            assert await take_items(items, 1) == [made]
            hub.publish(KEY, made)
        hub.publish(KEY, last := shelf.add())
        assert await take_items(items, 1) == [last]


async def test_other_servers_events_come_from_log() -> None:
    shelf, hub = ListedLog(), Hub()
    async with aclosing(follow_shelf(shelf, hub)) as items:
        mine = shelf.add()
        assert await take_items(items, 1) == [mine]
        theirs, next_one = shelf.add(), shelf.add()
        # Nobody tells of theirs, but the number of the next one does.
        hub.publish(KEY, next_one)
        assert await take_items(items, 2) == [theirs, next_one]


async def test_stirred_reader_checks_the_log() -> None:
    shelf, hub = ListedLog(), Hub(feed_size=2)
    async with aclosing(follow_shelf(shelf, hub)) as items:
        made = [shelf.add()]
        assert await take_items(items, 1) == made
        theirs = shelf.add()
        hub.signal_log_change(KEY)
        # However much passes in between, the sign is not lost.
        for _ in range(10):
            hub.show(KEY, make_delta("a", seq=2))
        assert theirs in await take_items(items, 3)


async def test_slow_reader_recovers_from_the_log() -> None:
    shelf, hub = ListedLog(), Hub(feed_size=2)
    async with aclosing(follow_shelf(shelf, hub)) as items:
        made = [shelf.add()]
        assert await take_items(items, 1) == made
        for _ in range(50):
            hub.publish(KEY, shelf.add())
        assert await take_items(items, 50) == shelf.events[1:]


async def test_pieces_of_whole_message_are_stale() -> None:
    shelf, hub = ListedLog(), Hub(feed_size=3)
    async with aclosing(follow_shelf(shelf, hub)) as items:
        shelf.add(RunStarted(options=RunOptions()))
        await take_items(items, 1)
        whole = shelf.add(REPLY)
        later = shelf.add()
        hub.publish(KEY, later)
        hub.show(KEY, make_delta("stale", seq=1))
        hub.show(KEY, make_delta("fresh", seq=3))
        assert await take_items(items, 3) == [whole, later, make_delta("fresh", seq=3)]


async def test_log_reader_gets_pieces_before_message() -> None:
    shelf, hub = ListedLog(), Hub()
    async with aclosing(follow_shelf(shelf, hub)) as items:
        shelf.add(RunStarted(options=RunOptions()))
        await take_items(items, 1)
        hub.show(KEY, make_delta("a"))
        hub.show(KEY, make_delta("b"))
        hub.signal_log_change(KEY)
        hub.publish(KEY, whole := shelf.add(REPLY))
        hub.show(KEY, make_delta("c", seq=2))
        assert await take_items(items, 4) == [make_delta("a"), make_delta("b"), whole, make_delta("c", seq=2)]


async def test_patch_amid_message_does_not_silence_it() -> None:
    shelf, hub = ListedLog(), Hub()
    async with aclosing(follow_shelf(shelf, hub)) as items:
        shelf.add(RunStarted(options=RunOptions()))
        await take_items(items, 1)
        hub.show(KEY, make_delta("a"))
        patch = shelf.add()
        hub.publish(KEY, patch)
        cancelled = shelf.add(RunCancelled(stop_reason="cancelled"), run_id="queued")
        hub.publish(KEY, cancelled)
        hub.show(KEY, make_delta("b"))
        assert await take_items(items, 4) == [make_delta("a"), patch, cancelled, make_delta("b")]


def test_reader_remembers_bounded_number_of_runs() -> None:
    position, fact = ReadPosition(0, most_runs=10), RunCancelled(stop_reason="cancelled")

    def list_stale(first: int) -> list[int]:
        for seq in range(first, first + 100):
            position.note(make_event(seq, fact, f"run-{seq}"))
        return [seq for seq in range(1, first + 100) if not position.is_fresh(make_delta("a", seq - 1, f"run-{seq}"))]

    assert list_stale(1) == list(range(1, 101))
    kept = count_values(position)
    assert list_stale(101) == list(range(1, 201))
    assert count_values(position) == kept
    # Of a run that was never heard of nothing is late that comes after those that are forgotten.
    assert position.is_fresh(make_delta("a", 190, "other"))


async def test_silence_is_a_sign_of_life() -> None:
    async with aclosing(follow_shelf(ListedLog(), Hub(), poll=0.001)) as items:
        assert [await anext(items) for _ in range(3)] == [None] * 3


async def test_passing_readers_leave_nothing() -> None:
    shelf, hub = ListedLog(), Hub()
    shelf.add()
    before = asyncio.all_tasks()
    for _ in range(1000):
        async with aclosing(follow_shelf(shelf, hub)) as items:
            await anext(items)
    assert hub.reader_count == 0
    assert not hub.has_readers(KEY)
    assert asyncio.all_tasks() == before


async def test_readers_never_wait_forever_for_others() -> None:
    shelf, pages = ListedLog(), PageLimits(at_once=1, turn_seconds=0.001)
    made = shelf.add()
    async with pages.take_turn():
        with pytest.raises(Overloaded):
            await anext(read_pages(shelf, KEY, after=0, pages=pages))  # type: ignore[arg-type]
    assert [event async for event in read_pages(shelf, KEY, after=0, pages=pages)] == [made]  # type: ignore[arg-type]


async def test_leaving_reader_can_be_cancelled() -> None:
    leaving = asyncio.Event()

    async def make_items() -> AsyncGenerator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            leaving.set()
            await asyncio.Event().wait()

    async def read_one() -> None:
        async with aclosing(with_pauses(make_items(), SECONDS)) as items:
            assert await anext(items) == 1

    reader = asyncio.create_task(read_one())
    await leaving.wait()
    reader.cancel()
    await asyncio.wait([reader])
    assert reader.cancelled()
