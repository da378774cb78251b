"""Streams from servers: every durable event once and in order from any of them, and deltas while they pass."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from swarmkeep import Agent
from swarmkeep.events.facts import MessageAdded, RecordedEvent
from swarmkeep.events.records import RunOptions
from swarmkeep.runs.engine import Engine
from swarmkeep.runs.hub import Item, MessageDeltas, MessageStarted, join_text
from swarmkeep.runs.reader import flatten, follow_batches
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import (
    KEY,
    LIMITS,
    EngineCluster,
    collect_stream,
    make_start_run,
    open_session,
    pick_recorded,
    read_log,
    read_state,
    run_to_end,
    take_items,
    wait_for_state,
    wait_until,
)
from tests.runs.streams.items import SECONDS
from tests.support.scripted import ScriptedModel


def look() -> str:
    return "rain"


AGENT = Agent(name="A", functions=[look])


def list_seqs(items: list[Item]) -> list[int]:
    return [item.seq for item in pick_recorded(items)]


async def follow_all(engine: Engine, upto: int) -> list[int]:
    items = flatten(follow_batches(engine.store, engine.hub, KEY, after=0, silent_seconds=0.01))
    async with aclosing(items):
        found: list[int] = []
        async with asyncio.timeout(SECONDS):
            async for item in items:
                if isinstance(item, RecordedEvent):
                    found.append(item.seq)
                    if item.seq >= upto:
                        break
    return found


async def test_readers_across_servers_see_events_once(cluster: EngineCluster, model: ScriptedModel) -> None:
    one, two = await cluster.open_engine(AGENT), await cluster.open_engine(AGENT)
    await open_session(one)
    readers = [asyncio.create_task(follow_all(engine, 16)) for engine in (one, two, two)]
    for n, engine in enumerate((one, two, one)):
        model.call("look")
        model.say("Rain.")
        await run_to_end(engine, run_id=f"r{n}")
    assert len(await read_log(one)) == 22
    for reader in readers:
        assert await reader == list(range(1, 17))


async def test_reconnecting_reader_misses_nothing(cluster: EngineCluster, model: ScriptedModel) -> None:
    one, two = await cluster.open_engine(AGENT), await cluster.open_engine(AGENT)
    await open_session(one)
    model.call("look")
    model.say("Rain.")
    await one.runs.start(KEY, make_start_run())
    found: list[int] = []
    feed = await two.reader.find_position(KEY, "r1")
    after = feed.after
    async with asyncio.timeout(SECONDS):
        for n in range(100):
            engine = (one, two)[n % 2]
            async with aclosing(engine.reader.follow_run(KEY, feed, after=after)) as items:
                async for item in items:
                    if isinstance(item, RecordedEvent):
                        found.append(after := item.seq)
                        break
                else:
                    break
    assert found == [event.seq for event in await read_log(one) if event.run_id == "r1"]


async def test_joiner_gets_all_of_current_message(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(AGENT)
    await open_session(engine)
    model.hang("Once upon ", then="a time.")
    await engine.runs.start(KEY, make_start_run(options=RunOptions(stream=True)))
    await wait_until(lambda: engine.hub.get_partial(KEY).text == "Once upon ")
    feed = await engine.reader.find_position(KEY, "r1")
    async with aclosing(engine.reader.follow_run(KEY, feed)) as items:
        seen = await take_items(items, 4)
        model.release()
        async with asyncio.timeout(SECONDS):
            seen += [item async for item in items if item is not None]
    texts = [join_text(item.deltas) for item in seen if isinstance(item, MessageDeltas)]
    assert "".join(texts) == "Once upon a time."
    assert next(type(item) for item in seen if not isinstance(item, RecordedEvent)) is MessageStarted
    assert [item.type for item in pick_recorded(seen)] == [
        "run.started",
        "message.added",
        "message.added",
        "run.completed",
    ]


async def test_message_survives_patch_and_cancel(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(AGENT)
    await open_session(engine)
    model.hang("Once upon ", then="a time.")
    await engine.runs.start(KEY, make_start_run(options=RunOptions(stream=True)))
    await wait_until(lambda: engine.hub.get_partial(KEY).text == "Once upon ")
    await engine.sessions.update(KEY, context_variables={"a": 1})
    await engine.runs.start(KEY, make_start_run(run_id="r2", on_busy="queue"))
    await engine.runs.cancel(KEY, "r2")
    view = await engine.runs.cancel(KEY, "r1")
    assert view.output_text == "Once upon "


async def test_unwatched_run_is_not_streamed(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(AGENT)
    await open_session(engine)
    model.say("Hello.")
    await run_to_end(engine)
    assert "stream" not in model.requests[0]
    model.say("Hello.")
    await run_to_end(engine, run_id="r2", options=RunOptions(stream=True))
    assert model.requests[1]["stream"] is True


async def test_run_stream_has_own_events_and_end(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(AGENT)
    await open_session(engine)
    for run_id in ("r1", "r2"):
        model.call("look")
        model.say("Rain.")
        await run_to_end(engine, run_id=run_id)
    for run_id in ("r1", "r2"):
        mine = [event.seq for event in await read_log(engine) if event.run_id == run_id]
        assert list_seqs(await collect_stream(engine, run_id)) == mine
        assert list_seqs(await collect_stream(engine, run_id, after=mine[2])) == mine[3:]
        assert list_seqs(await collect_stream(engine, run_id, after=mine[-1])) == []
        # There is no such event: the reader was in a session that had this id before.
        assert list_seqs(await collect_stream(engine, run_id, after=10**6)) == mine


async def test_ended_run_stream_pages_the_log(
    cluster: EngineCluster, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await cluster.open_engine(Agent(name="A"), limits=replace(LIMITS, page_events=3))
    await open_session(engine)
    for number in range(3):
        model.say("Hello.")
        await run_to_end(engine, run_id=f"r{number}")
    reads: list[int] = []
    read = SqlStore.read

    async def counted(self: SqlStore, key: SessionKey, **bounds: Any) -> list[RecordedEvent]:
        found = await read(self, key, **bounds)
        reads.append(len(found))
        return found

    monkeypatch.setattr(SqlStore, "read", counted)
    own = [event.seq for event in await engine.store.read(KEY) if event.run_id == "r1"]
    reads.clear()
    assert [event.seq for event in pick_recorded(await collect_stream(engine, "r1"))] == own
    # What came after the run is not read for it.
    assert (reads[-2:], max(reads)) == ([3, 1], 3)


async def test_slow_reader_backlog_is_not_shared(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(AGENT)
    await open_session(engine)
    model.say("Rain.")
    await run_to_end(engine)
    ended = engine.reader.follow_run_batches(KEY, await engine.reader.find_position(KEY, "r1"))
    # As one that has not ended is followed, but for what its engine still holds.
    for batches in (ended, engine.reader._follow_open_run(KEY, "r1", 1)):
        messages = 0
        async for batch in batches:
            while batch:
                event = batch.pop()
                if isinstance(event, RecordedEvent) and event.type == MessageAdded.type:
                    messages += 1
                    # Here, and as what is asked about.
                    assert sys.getrefcount(event) == 2
        assert messages == 2


async def test_many_readers_see_the_same(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(AGENT)
    await open_session(engine)
    model.hang("Hel", then="lo")
    await engine.runs.start(KEY, make_start_run(options=RunOptions(stream=True)))
    found: list[list[Item]] = [[] for _ in range(20)]
    readers = [asyncio.create_task(collect_stream(engine, found=items)) for items in found]
    # A reader that is still at the log when the message is whole gets it whole, without its pieces.
    await wait_until(lambda: all(any(isinstance(item, MessageDeltas) for item in items) for items in found))
    model.release()
    await asyncio.gather(*readers)
    assert {tuple(list_seqs(items)) for items in found} == {tuple(event.seq for event in (await read_log(engine))[1:])}
    for items in found:
        texts = [join_text(item.deltas) for item in items if isinstance(item, MessageDeltas)]
        assert "".join(texts) == "Hello"


async def test_leaving_reader_does_not_end_run(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(AGENT)
    await open_session(engine)
    model.hang("Hel", then="lo")
    feed = await engine.runs.start(KEY, make_start_run(options=RunOptions(stream=True)))
    async with aclosing(engine.reader.follow_run(KEY, feed)) as items:
        await take_items(items, 3)
    model.release()
    await wait_for_state(engine, lambda state: state.run is None)
    assert (await read_state(engine)).messages[-1].message["content"] == "Hello"
