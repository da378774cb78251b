"""Streams, feeds and the hub: every event once and in order, and pieces of messages only while they are new."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from typing import Any

import pytest
from msgspec.structs import replace

from swarmkeep import Agent
from swarmkeep.events import facts
from swarmkeep.events.errors import Overloaded
from swarmkeep.events.records import CompletionRecord, RunOptions
from swarmkeep.runs.hub import LOG_CHANGED, Feed, Hub, Item, MessageDeltas, MessageStarted, with_pauses
from swarmkeep.runs.reader import PageLimits, ReadPosition, flatten, follow_batches, read_pages
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, LIMITS, EngineCluster, pick_recorded, take_items
from tests.support.growth import count_values
from tests.support.logs import record_draft
from tests.support.scripted import ScriptedModel

SECONDS = 20.0


def make_event(seq: int, fact: Any = None, run_id: str | None = "r1") -> facts.RecordedEvent:
    return record_draft(facts.EventDraft(fact or facts.ContextUpdated(patch={}), run_id, "A"), seq - 1, "")


async def get(feed: Feed, seconds: float) -> Item | None:
    """The next item, if one comes within that time."""
    assert await feed.wait(seconds) is None
    return feed.take() if feed.items else None


def make_delta(text: str, seq: int = 1, run_id: str = "r1") -> MessageDeltas:
    return MessageDeltas(run_id, "A", seq, [{"content": text}])


REPLY = facts.MessageAdded(message={"role": "assistant", "content": "hi"}, completion=CompletionRecord())


def look() -> str:
    return "rain"


AGENT = Agent(name="A", functions=[look])


def list_seqs(items: list[Item]) -> list[int]:
    return [item.seq for item in pick_recorded(items)]


async def test_unwatched_run_is_not_streamed(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(AGENT)
    model.say("Hello.")
    await engine.run()
    assert "stream" not in model.requests[0]
    model.say("Hello.")
    await engine.run(run_id="r2", options=RunOptions(stream=True))
    assert model.requests[1]["stream"] is True


async def test_run_stream_has_own_events_and_end(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(AGENT)
    for run_id in ("r1", "r2"):
        model.call("look")
        model.say("Rain.")
        await engine.run(run_id=run_id)
    for run_id in ("r1", "r2"):
        mine = [event.seq for event in await engine.read_log() if event.run_id == run_id]
        assert list_seqs(await engine.collect_stream(run_id)) == mine
        assert list_seqs(await engine.collect_stream(run_id, after=mine[2])) == mine[3:]
        assert list_seqs(await engine.collect_stream(run_id, after=mine[-1])) == []
        # There is no such event: the reader was in a session that had this id before.
        assert list_seqs(await engine.collect_stream(run_id, after=10**6)) == mine


async def test_ended_run_stream_pages_the_log(
    cluster: EngineCluster, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await cluster.begin(Agent(name="A"), limits=replace(LIMITS, page_events=3))
    for number in range(3):
        model.say("Hello.")
        await engine.run(run_id=f"r{number}")
    reads: list[int] = []
    read = SqlStore.read

    async def counted(self: SqlStore, key: SessionKey, **bounds: Any) -> list[facts.RecordedEvent]:
        found = await read(self, key, **bounds)
        reads.append(len(found))
        return found

    monkeypatch.setattr(SqlStore, "read", counted)
    own = [event.seq for event in await engine.store.read(KEY) if event.run_id == "r1"]
    reads.clear()
    assert [event.seq for event in pick_recorded(await engine.collect_stream("r1"))] == own
    # What came after the run is not read for it.
    assert (reads[-2:], max(reads)) == ([3, 1], 3)


async def test_slow_reader_backlog_is_not_shared(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(AGENT)
    model.say("Rain.")
    await engine.run()
    ended = engine.reader.follow_run_batches(KEY, await engine.reader.find_position(KEY, "r1"))
    # As one that has not ended is followed, but for what its engine still holds.
    for batches in (ended, engine.reader._follow_open_run(KEY, "r1", 1)):
        messages = 0
        async for batch in batches:
            while batch:
                event = batch.pop()
                if isinstance(event, facts.RecordedEvent) and event.type == facts.MessageAdded.type:
                    messages += 1
                    # Here, and as what is asked about.
                    assert sys.getrefcount(event) == 2
        assert messages == 2


# Following a log and a hub: every event once and in order, and pieces of messages only while they are new.


class ListedLog:
    """A log that a test fills, in the place of a store."""

    def __init__(self) -> None:
        self.events: list[facts.RecordedEvent] = []

    async def read(self, key: Any, *, after: int = 0, **rest: Any) -> list[facts.RecordedEvent]:
        return [event for event in self.events if event.seq > after]

    def add(self, fact: Any = None, run_id: str = "r1") -> facts.RecordedEvent:
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
        shelf.add(facts.RunStarted(options=RunOptions()))
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
        shelf.add(facts.RunStarted(options=RunOptions()))
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
        shelf.add(facts.RunStarted(options=RunOptions()))
        await take_items(items, 1)
        hub.show(KEY, make_delta("a"))
        patch = shelf.add()
        hub.publish(KEY, patch)
        cancelled = shelf.add(facts.RunCancelled(stop_reason="cancelled"), run_id="queued")
        hub.publish(KEY, cancelled)
        hub.show(KEY, make_delta("b"))
        assert await take_items(items, 4) == [make_delta("a"), patch, cancelled, make_delta("b")]


def test_reader_remembers_bounded_number_of_runs() -> None:
    position, fact = ReadPosition(0, most_runs=10), facts.RunCancelled(stop_reason="cancelled")

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


# Feeds and the hub: who reads gets what happens, in order, and loses only the oldest.


async def test_a_feed_wakes_its_reader() -> None:
    feed = Feed(10, 1000)
    reader = asyncio.create_task(get(feed, SECONDS))
    await asyncio.sleep(0)
    feed.put(make_delta("a"))
    assert await reader == make_delta("a")


async def test_sign_of_life_yields_to_news() -> None:
    feed = Feed(10, 1000)
    feed.wake()
    feed.signal_log_change()
    feed.put(make_delta("a"))
    assert await feed.wait(SECONDS) is LOG_CHANGED
    assert await get(feed, SECONDS) == make_delta("a")
    for is_woken in (True, False):
        waiting = asyncio.create_task(feed.wait(SECONDS))
        await asyncio.sleep(0)
        assert waiting.done() is is_woken
        waiting.cancel()


async def test_bounded_feed_loses_the_oldest() -> None:
    feed = Feed(3, 1000)
    for n in range(100):
        feed.put(make_delta(str(n)))
    assert [await get(feed, SECONDS) for _ in range(3)] == [make_delta("97"), make_delta("98"), make_delta("99")]
    assert await get(feed, 0) is None


async def test_a_hub_forgets_readers_that_left() -> None:
    hub = Hub()
    assert not hub.has_readers(KEY)
    with closing(hub.open_feed(KEY)) as one, closing(hub.open_feed(KEY)) as other:
        assert hub.has_readers(KEY)
        assert hub.reader_count == 2
        hub.show(KEY, make_delta("a"))
        assert one.take() == other.take() == make_delta("a")
    assert not hub.has_readers(KEY)
    assert hub.reader_count == 0


async def test_joint_records_are_one_change() -> None:
    hub = Hub()
    changed: list[SessionKey] = []
    hub.add_change_listener(changed.append)
    events = [make_event(seq, facts.ContextUpdated(patch={"a": seq})) for seq in range(1, 101)]
    with closing(hub.open_feed(KEY)) as feed:
        hub.publish(KEY, *events)
        assert changed == [KEY]
        assert [feed.take() for _ in events] == events


async def test_joiner_gets_message_in_progress() -> None:
    hub = Hub()
    begun = MessageStarted("r1", "A", 1)
    for piece in (begun, make_delta("a"), make_delta("b")):
        hub.show(KEY, piece)
    assert hub.get_partial(KEY).text == "ab"
    assert hub.get_partial(KEY).run_id == "r1"
    with closing(hub.open_feed(KEY)) as feed:
        assert [await get(feed, 0) for _ in range(2)] == [begun, make_delta("ab")]


async def test_whole_message_is_not_in_progress() -> None:
    for end in (REPLY, facts.RunCompleted(stop_reason="end_turn"), facts.RunCancelled(stop_reason="cancelled")):
        hub = Hub()
        hub.show(KEY, make_delta("a"))
        hub.publish(KEY, make_event(2, end))
        assert hub.get_partial(KEY).text == ""


async def test_other_events_leave_message_in_progress() -> None:
    hub = Hub()
    hub.show(KEY, make_delta("a"))
    hub.publish(KEY, make_event(2, facts.ContextUpdated(patch={"a": 1})))
    hub.publish(KEY, make_event(3, facts.ContextUpdated(patch={"a": 1}), run_id=None))
    hub.publish(KEY, make_event(4, facts.RunCancelled(stop_reason="cancelled"), run_id="queued"))
    hub.show(KEY, make_delta("b"))
    assert hub.get_partial(KEY).text == "ab"
    hub.drop_partial(KEY)
    assert hub.get_partial(KEY).text == ""
