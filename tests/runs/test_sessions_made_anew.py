"""Readers of a session that was deleted and made anew under its id: they get the new one, from its beginning."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from swarmkeep import Agent
from swarmkeep.events.facts import RecordedEvent
from swarmkeep.runs.engine import Engine
from swarmkeep.runs.hub import Hub
from swarmkeep.runs.reader import flatten, follow_batches
from tests.runs.cluster import (
    KEY,
    EngineCluster,
    collect_stream,
    make_start_run,
    open_session,
    pick_recorded,
    read_log,
    run_to_end,
    take_items,
    wait_until,
)
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


@pytest.fixture
async def engine(cluster: EngineCluster) -> Engine:
    return await cluster.open_engine(Agent(name="Front"))


async def make_anew(engine: Engine, *, messages: int = 0) -> None:
    await engine.sessions.delete(KEY)
    await open_session(engine, messages=[{"role": "user", "content": str(n)} for n in range(messages)])


async def take_recorded(items: object, count: int) -> list[RecordedEvent]:
    return pick_recorded(await take_items(items, count))  # type: ignore[arg-type]


async def test_unknown_seq_means_the_beginning(engine: Engine) -> None:
    await open_session(engine, messages=[{"role": "user", "content": "hi"}])
    for after, first in ((1, 2), (3, 1), (50, 1)):
        async with aclosing(engine.reader.follow(KEY, after=after)) as items:
            (event,) = await take_recorded(items, 1)
        assert event.seq == first, after
    async with aclosing(engine.reader.follow(KEY, after=2)) as items:
        assert await anext(items) is None


async def test_run_restarts_for_reader_past_its_end(engine: Engine, model: ScriptedModel) -> None:
    await open_session(engine)
    model.say("hello")
    await run_to_end(engine)
    events = await read_log(engine)
    given = pick_recorded(await collect_stream(engine, after=50))
    assert given == events[1:]
    assert pick_recorded(await collect_stream(engine, after=events[-1].seq)) == []


# As many events as before, fewer, and more: whoever reads must not take the new ones for the rest of the old.
@pytest.mark.parametrize("messages", [0, 2, 5])
async def test_reader_during_remake_starts_from_beginning(engine: Engine, messages: int) -> None:
    await open_session(engine, messages=[{"role": "user", "content": f"old {n}"} for n in range(2)])
    async with aclosing(engine.reader.follow(KEY, after=0)) as items:
        assert [event.seq for event in await take_recorded(items, 3)] == [1, 2, 3]
        await make_anew(engine, messages=messages)
        new = await take_recorded(items, messages + 1)
    assert new == await read_log(engine)


async def test_remaking_on_another_server_is_equal(
    cluster: EngineCluster, engine: Engine, model: ScriptedModel
) -> None:
    other = await cluster.open_engine(Agent(name="Front"))
    await open_session(engine, messages=[{"role": "user", "content": f"old {n}"} for n in range(4)])
    async with aclosing(engine.reader.follow(KEY, after=0)) as items:
        await take_recorded(items, 5)
        await make_anew(other)
        model.say("hello")
        await run_to_end(other)
        events = await read_log(other)
        assert await take_recorded(items, len(events)) == events


async def test_local_events_are_not_old_session_rest(engine: Engine) -> None:
    """A hub tells of the new one's second event while the reader has seen the first of the old."""
    await open_session(engine)
    hub = Hub()
    async with aclosing(flatten(follow_batches(engine.store, hub, KEY, after=0, silent_seconds=0.01))) as items:
        await take_recorded(items, 1)
        await make_anew(engine, messages=1)
        events = await read_log(engine)
        hub.publish(KEY, events[1])
        hub.signal_log_change(KEY)
        assert await take_recorded(items, 2) == events


async def test_run_stream_ends_when_session_is_remade(engine: Engine, model: ScriptedModel) -> None:
    model.hang(then="never heard")
    await open_session(engine, messages=[{"role": "user", "content": f"old {n}"} for n in range(4)])
    stream = asyncio.create_task(_start_and_collect(engine))
    await model.wait_for_requests_async(1)
    await wait_until(lambda: engine.hub.has_readers(KEY))
    await engine.sessions.delete(KEY, force=True)
    await open_session(engine)
    async with asyncio.timeout(20):
        await stream
    model.release()


async def _start_and_collect(engine: Engine) -> None:
    await engine.runs.start(KEY, make_start_run())
    await collect_stream(engine)
