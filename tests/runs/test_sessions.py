"""Sessions: made once, patched by many, copied, removed, and made anew under their ids."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from sqlalchemy import delete

from swarmkeep import Agent
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import (
    AgentNotFound,
    HistoryDamaged,
    InvalidRequest,
    RunNotFound,
    SeqMismatch,
    SessionBusy,
    SessionExists,
    SessionNotFound,
)
from swarmkeep.events.facts import RecordedEvent
from swarmkeep.events.records import RunOptions
from swarmkeep.history.redact import redact
from swarmkeep.runs.hub import Hub
from swarmkeep.runs.reader import flatten, follow_batches
from swarmkeep.store.records import SessionKey
from swarmkeep.store.tables import events
from tests.runs.cluster import KEY, EngineCluster, Server, kill_engine, pick_recorded, take_items
from tests.support.scripted import ScriptedModel
from tests.support.waiting import wait_until

pytestmark = pytest.mark.one_database

OTHER = SessionKey("default", "s2")


@pytest.fixture
async def engine(cluster: EngineCluster) -> Server:
    return await cluster.open_engine(Agent(name="Triage"), Agent(name="Sales"))


async def create(engine: Server, **given: Any) -> tuple[Any, bool]:
    return await engine.sessions.create("default", **given)


# Making one.


async def test_repeated_creation_returns_original_session(engine: Server, model: ScriptedModel) -> None:
    given: Json = {"session_id": "s1", "context_variables": {"a": 1}, "messages": [{"role": "user", "content": "Hi"}]}
    first, made = await create(engine, **given)
    assert made
    assert await create(engine, **given) == (first, False)
    model.say("Hello.")
    await engine.run()
    await engine.sessions.update(KEY, metadata={"later": True})
    assert await create(engine, **given) == (first, False)


@pytest.mark.parametrize(
    "other",
    [
        {"agent": "Sales"},
        {"context_variables": {"a": 1.0}},
        {"context_variables": {"a": True}},
        {"context_variables": {"a": 1, "b": 2}},
        {"metadata": {"m": 1}},
        {"messages": []},
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "user", "content": "Hi"}]},
        {"messages": [{"role": "user", "content": "Ho"}]},
    ],
)
async def test_different_session_with_same_id_is_refused(engine: Server, other: Json) -> None:
    given: Json = {"session_id": "s1", "context_variables": {"a": 1}, "messages": [{"role": "user", "content": "Hi"}]}
    await create(engine, **given)
    with pytest.raises(SessionExists):
        await create(engine, **{**given, **other})


async def test_concurrent_creation_makes_one_session(cluster: EngineCluster, engine: Server) -> None:
    other = await cluster.open_engine(Agent(name="Triage"))
    made = await asyncio.gather(*(create(one, session_id="s1") for one in [engine, other] * 8))
    assert sum(new for _, new in made) == 1
    assert len({view.hash for view, _ in made}) == 1
    assert len(await engine.read_log()) == 1


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ({"context_variables": {"a": float("nan")}}, "/context_variables"),
        ({"metadata": {"a": {1, 2}}}, "/metadata"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "/messages/0/role"),
        ({"messages": [{"role": "user", "content": "x"}, {"content": "x"}]}, "/messages/1/role"),
        ({"messages": [{"role": "user"}]}, "/messages/0/content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "/messages/0/tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "/messages/0/tool_calls/0/function"),
    ],
)
async def test_unkeepable_values_are_refused_by_place(engine: Server, given: Json, pointer: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await create(engine, session_id="s1", **given)
    assert refused.value.errors[0]["pointer"] == pointer
    with pytest.raises(SessionNotFound):
        await engine.reader.view(KEY)


async def test_an_agent_that_is_not_there(engine: Server) -> None:
    with pytest.raises(AgentNotFound) as refused:
        await create(engine, agent="Nobody")
    assert refused.value.known_agents == ["Triage", "Sales"]


# Changing.


async def test_writers_of_different_keys_both_win(cluster: EngineCluster, engine: Server) -> None:
    other = await cluster.open_engine(Agent(name="Triage"))
    await engine.open_session()
    await asyncio.gather(
        *(one.sessions.update(KEY, context_variables={f"k{n}": n}) for n, one in enumerate([engine, other] * 8))
    )
    assert (await engine.read_state()).context_variables == {f"k{n}": n for n in range(16)}
    assert [event.seq for event in await engine.read_log()] == list(range(1, 18))


async def test_conditional_patches_have_one_winner(cluster: EngineCluster, engine: Server) -> None:
    other = await cluster.open_engine(Agent(name="Triage"))
    await engine.open_session()
    tried = await asyncio.gather(
        *(one.sessions.update(KEY, metadata={"n": n}, if_match=1) for n, one in enumerate([engine, other] * 8)),
        return_exceptions=True,
    )
    assert sum(not isinstance(one, BaseException) for one in tried) == 1
    assert sum(isinstance(one, SeqMismatch) for one in tried) == 15


# Copying.


async def test_fork_of_running_session_does_not_run(engine: Server, model: ScriptedModel) -> None:
    await engine.open_session()
    await engine.start_hanging_run(model, then="Hello.")
    view = await engine.sessions.fork(KEY, session_id="s2")
    assert view.status == "idle"
    copy = await engine.reader.get_run(OTHER, "r1")
    assert copy.status == "interrupted"
    model.release()
    assert (await engine.wait()).status == "completed"


# Removing.


async def test_busy_session_deletion_needs_force(engine: Server, model: ScriptedModel) -> None:
    await engine.open_session()
    await engine.start_hanging_run(model, options=RunOptions(stream=True))
    with pytest.raises(SessionBusy) as refused:
        await engine.sessions.delete(KEY)
    assert refused.value.run_id == "r1"
    waiting = asyncio.create_task(engine.wait())
    await asyncio.sleep(0)
    await engine.sessions.delete(KEY, force=True)
    # Its model call is dropped, and whoever waited is told at once.
    await model.wait_for_disconnects_async(1)
    with pytest.raises(SessionNotFound):
        await waiting
    await engine.open_session()
    model.say("A new one.")
    assert (await engine.run()).output_text == "A new one."


async def test_remotely_deleted_session_is_left_alone(
    cluster: EngineCluster, engine: Server, model: ScriptedModel
) -> None:
    other = await cluster.open_engine(Agent(name="Triage"))
    await engine.open_session()
    await engine.start_hanging_run(model, then="Too late.")
    waiting = asyncio.create_task(engine.wait())
    await other.sessions.delete(KEY, force=True)
    await other.open_session()
    model.release()
    with pytest.raises((RunNotFound, SessionNotFound)):
        await waiting
    assert await other.read_types() == ["session.created"]


async def test_an_abandoned_session_can_be_deleted(cluster: EngineCluster, model: ScriptedModel) -> None:
    first = await cluster.begin(Agent(name="Triage"))
    await first.start_hanging_run(model)
    await kill_engine(first)
    second = await cluster.open_engine(Agent(name="Triage"), start=False)
    await second.sessions.delete(KEY, force=True)
    await second.start()
    with pytest.raises(SessionNotFound):
        await second.reader.view(KEY)


# A log that has lost its end.

CHANGES: dict[str, Callable[[Server], Awaitable[object]]] = {
    "run": lambda engine: engine.start_run(),
    "patch": lambda engine: engine.sessions.update(KEY, metadata={"a": 1}),
    "redact": lambda engine: redact(engine.store, KEY, [1], "asked for"),
    "delete": lambda engine: engine.sessions.delete(KEY),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_truncated_log_is_refused_without_endless_retries(
    cluster: EngineCluster, engine: Server, change: str
) -> None:
    await engine.open_session(messages=[{"role": "user", "content": "hi"}])
    cut_off = delete(events).where(events.c.session_id == KEY.id, events.c.seq == 2)
    await engine.store.database.write(lambda connection: connection.execute(cut_off))  # type: ignore[attr-defined]
    other = await cluster.open_engine(Agent(name="Triage"))
    async with asyncio.timeout(20):
        with pytest.raises(HistoryDamaged, match="verify"):
            await CHANGES[change](other)
    assert await other.read_types() == ["session.created"]
    # Nothing proves what is left of it. It can be removed.
    with pytest.raises(HistoryDamaged):
        await other.sessions.fork(KEY, at=1, session_id="s2")
    await other.sessions.delete(KEY, force=True)
    with pytest.raises(SessionNotFound):
        await other.reader.view(KEY)


# Readers of a session that was deleted and made again under its id get the new one, from its beginning.


@pytest.fixture
async def remaking_engine(cluster: EngineCluster) -> Server:
    return await cluster.open_engine(Agent(name="Front"))


async def make_anew(remaking_engine: Server, *, messages: int = 0) -> None:
    await remaking_engine.sessions.delete(KEY)
    await remaking_engine.open_session(messages=[{"role": "user", "content": str(n)} for n in range(messages)])


async def take_recorded(items: object, count: int) -> list[RecordedEvent]:
    return pick_recorded(await take_items(items, count))  # type: ignore[arg-type]


# As many events as before, fewer, and more: whoever reads must not take the new ones for the rest of the old.
@pytest.mark.parametrize("messages", [0, 2, 5])
async def test_reader_during_remake_starts_from_beginning(remaking_engine: Server, messages: int) -> None:
    await remaking_engine.open_session(messages=[{"role": "user", "content": f"old {n}"} for n in range(2)])
    async with aclosing(remaking_engine.reader.follow(KEY, after=0)) as items:
        assert [event.seq for event in await take_recorded(items, 3)] == [1, 2, 3]
        await make_anew(remaking_engine, messages=messages)
        new = await take_recorded(items, messages + 1)
    assert new == await remaking_engine.read_log()


async def test_local_events_are_not_old_session_rest(remaking_engine: Server) -> None:
    """A hub tells of the new one's second event while the reader has seen the first of the old."""
    await remaking_engine.open_session()
    hub = Hub()
    async with aclosing(
        flatten(follow_batches(remaking_engine.store, hub, KEY, after=0, silent_seconds=0.01))
    ) as items:
        await take_recorded(items, 1)
        await make_anew(remaking_engine, messages=1)
        events = await remaking_engine.read_log()
        hub.publish(KEY, events[1])
        hub.signal_log_change(KEY)
        assert await take_recorded(items, 2) == events


async def test_run_stream_ends_when_session_is_remade(remaking_engine: Server, model: ScriptedModel) -> None:
    model.hang(then="never heard")
    await remaking_engine.open_session(messages=[{"role": "user", "content": f"old {n}"} for n in range(4)])
    stream = asyncio.create_task(_start_and_collect(remaking_engine))
    await model.wait_for_requests_async(1)
    await wait_until(lambda: remaking_engine.hub.has_readers(KEY))
    await remaking_engine.sessions.delete(KEY, force=True)
    await remaking_engine.open_session()
    async with asyncio.timeout(20):
        await stream
    model.release()


async def _start_and_collect(remaking_engine: Server) -> None:
    await remaking_engine.start_run()
    await remaking_engine.collect_stream()
