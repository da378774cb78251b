"""Feeds and the hub: who reads gets what happens, in order, and loses only the oldest."""

from __future__ import annotations

import asyncio
from contextlib import closing

from swarmkeep.events.facts import ContextUpdated, RunCancelled, RunCompleted
from swarmkeep.runs.hub import LOG_CHANGED, Feed, Hub, MessageStarted
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY
from tests.runs.streams.items import REPLY, SECONDS, get, make_delta, make_event


async def test_feed_keeps_order() -> None:
    feed = Feed(10, 1000)
    assert await get(feed, 0) is None
    feed.put(make_delta("a"))
    feed.put(make_delta("b"))
    assert [await get(feed, SECONDS), await get(feed, SECONDS)] == [make_delta("a"), make_delta("b")]
    assert await get(feed, 0) is None


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
    events = [make_event(seq, ContextUpdated(patch={"a": seq})) for seq in range(1, 101)]
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
    for end in (REPLY, RunCompleted(stop_reason="end_turn"), RunCancelled(stop_reason="cancelled")):
        hub = Hub()
        hub.show(KEY, make_delta("a"))
        hub.publish(KEY, make_event(2, end))
        assert hub.get_partial(KEY).text == ""


async def test_other_events_leave_message_in_progress() -> None:
    hub = Hub()
    hub.show(KEY, make_delta("a"))
    hub.publish(KEY, make_event(2, ContextUpdated(patch={"a": 1})))
    hub.publish(KEY, make_event(3, ContextUpdated(patch={"a": 1}), run_id=None))
    hub.publish(KEY, make_event(4, RunCancelled(stop_reason="cancelled"), run_id="queued"))
    hub.show(KEY, make_delta("b"))
    assert hub.get_partial(KEY).text == "ab"
    hub.drop_partial(KEY)
    assert hub.get_partial(KEY).text == ""
