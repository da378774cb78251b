"""What a model was saying when its run was ended stays, once, whichever server ends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep import Agent
from swarmkeep.events.codec import decode
from swarmkeep.events.facts import Fact, MessageAdded, RunCancelled
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import PartialReply
from swarmkeep.models.model import Deltas, Reply
from swarmkeep.request.request import ModelRequest
from swarmkeep.store.records import Lease
from tests.runs.cluster import (
    KEY,
    LIMITS,
    EngineCluster,
    Server,
    ToolGate,
    expire_leases,
    kill_engine,
    list_contents,
    pick_recorded,
)
from tests.support.scripted import ScriptedModel
from tests.support.scripted.replies import Call, Completion
from tests.support.waiting import wait_until

STREAM = RunOptions(stream=True)
AGENT = Agent(name="A")


async def start_speaking(engine: Server, model: ScriptedModel, text: str = "Once upon ") -> None:
    """A run whose model has said that, and nothing more yet."""
    await engine.open_session()
    model.hang(text, then="a time.")
    await engine.start_run("A story!", options=STREAM)
    await wait_until(lambda: engine.hub.get_partial(KEY).text == text)


async def list_partials(engine: Server) -> list[tuple[str, Any, Any]]:
    facts = [event.fact for event in await engine.read_log()]
    return [
        (fact.message["content"], fact.message["sender"], fact.completion.partial)
        for fact in facts
        if isinstance(fact, MessageAdded) and fact.completion is not None
    ]


async def test_remote_cancel_keeps_words(cluster: EngineCluster, model: ScriptedModel) -> None:
    one, two = await cluster.open_engine(AGENT), await cluster.open_engine(AGENT)
    await start_speaking(one, model)
    watching = asyncio.create_task(one.collect_stream())
    view = await two.runs.cancel(KEY, "r1")
    assert (view.status, view.output_text) == ("cancelled", "Once upon ")
    assert await list_partials(two) == [("Once upon ", "A", True)]
    assert await two.read_types() == [
        "session.created", "run.started", "message.added", "message.added", "run.cancelled",
    ]  # fmt: skip
    assert pick_recorded(await watching) == (await two.read_log())[1:]
    await model.wait_for_disconnects_async(1)
    assert await two.runs.cancel(KEY, "r1") == await one.runs.cancel(KEY, "r1") == view
    assert (await two.store.read_heads([KEY]))[KEY].partial is None


async def test_concurrent_cancels_end_run_once(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await cluster.open_engine(AGENT)
    others = [await cluster.open_engine(AGENT) for _ in range(3)]
    await start_speaking(one, model)
    views = await asyncio.gather(*(engine.runs.cancel(KEY, "r1") for engine in (*others, one, *others)))
    assert {view.output_text for view in views} == {"Once upon "}
    assert (await one.read_types()).count("run.cancelled") == 1
    assert await list_partials(one) == [("Once upon ", "A", True)]
    await model.wait_for_disconnects_async(1)


async def test_remote_interruption_keeps_words_and_precedes_queue(cluster: EngineCluster, model: ScriptedModel) -> None:
    one, two = await cluster.open_engine(AGENT), await cluster.open_engine(AGENT)
    await start_speaking(one, model)
    await one.start_run("Later.", "r2", on_busy="queue")
    model.say("Stopped.")
    model.say("Two.")
    assert (await two.run("Stop!", "r3", on_busy="interrupt")).output_text == "Stopped."
    assert (await two.wait("r2")).output_text == "Two."
    assert (await two.reader.get_run(KEY, "r1")).output_text == "Once upon "
    assert list_contents(model.requests[1]["messages"][1:]) == ["A story!", "Once upon ", "Stop!"]
    assert [event.run_id for event in await two.read_log() if event.type == "run.started"] == ["r1", "r3", "r2"]
    await model.wait_for_disconnects_async(1)


async def test_unanswering_server_delays_cancel_briefly(cluster: EngineCluster, model: ScriptedModel) -> None:
    # It polls too seldom, and where the database gives hints, nobody there listens for them.
    one = await cluster.open_engine(AGENT, limits=replace(LIMITS, poll_seconds=3600.0), start=False)
    two = await cluster.open_engine(AGENT)
    await start_speaking(one, model)
    async with asyncio.timeout(10):
        view = await two.runs.cancel(KEY, "r1")
    assert (view.status, view.output_text) == ("cancelled", "")
    assert await list_partials(two) == []
    assert (await two.store.read_heads([KEY]))[KEY].partial is None
    one._worker.abandon(KEY)
    await model.wait_for_disconnects_async(1)


async def test_expired_lease_holder_is_not_awaited(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await cluster.open_engine(AGENT)
    two = await cluster.open_engine(AGENT, limits=replace(LIMITS, poll_seconds=3600.0), start=False)
    await start_speaking(one, model)
    await kill_engine(one)
    async with asyncio.timeout(10):
        assert (await two.runs.cancel(KEY, "r1")).status == "cancelled"
    assert await list_partials(two) == []


async def test_queued_run_cancels_without_active_words(cluster: EngineCluster, model: ScriptedModel) -> None:
    silent = replace(LIMITS, poll_seconds=3600.0)
    one = await cluster.open_engine(AGENT, limits=silent, start=False)
    two = await cluster.open_engine(AGENT, limits=silent, start=False)
    await start_speaking(one, model)
    await two.start_run("Later.", "r2", on_busy="queue")
    async with asyncio.timeout(10):
        assert (await two.runs.cancel(KEY, "r2")).status == "cancelled"
    model.release()
    assert (await one.wait()).output_text == "Once upon a time."


async def test_tool_words_are_not_awaited(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()

    def slow() -> str:
        gate.enter()
        return "late"

    agent = Agent(name="A", functions=[slow])
    one = await cluster.open_engine(agent)
    two = await cluster.open_engine(agent, limits=replace(LIMITS, poll_seconds=3600.0), start=False)
    await one.open_session()
    model.call("slow", text="Let me see.")
    await one.start_run(options=STREAM, gate=gate)
    async with asyncio.timeout(10):
        view = await two.runs.cancel(KEY, "r1")
    await gate.open()
    assert (view.status, view.output_text) == ("cancelled", "Let me see.")
    assert [content for content, _, _ in await list_partials(two)] == ["Let me see."]


async def test_question_and_answer_go_with_lease(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await cluster.open_engine(AGENT)
    await start_speaking(one, model)
    store = one.store
    assert not await store.ask_for_partial(KEY, one._worker.claim.owner)
    assert await store.ask_for_partial(KEY, "two")
    async with asyncio.timeout(20):
        while not (head := (await store.read_heads([KEY]))[KEY]).partial:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    answer = decode(head.partial, PartialReply)
    assert answer == PartialReply(run_id="r1", seq=3, agent="A", text="Once upon ")
    # Nobody has asked anything new, and nobody else may answer.
    assert head.lease is not None
    await store.answer_partial(KEY, head.lease, "again")
    assert await store.ask_for_partial(KEY, "two")
    await store.answer_partial(KEY, Lease("three", head.lease.epoch), "forged")
    assert (await store.read_heads([KEY]))[KEY].partial != "forged"
    model.say("Taken over.")
    await kill_engine(one)
    await expire_leases(one)
    two = await cluster.open_engine(AGENT)
    await two.wait()
    assert (await two.store.read_heads([KEY]))[KEY].partial is None


async def test_a_partial_text_is_its_agents(cluster: EngineCluster, model: ScriptedModel) -> None:
    agents = [AGENT, Agent(name="B")]
    one, two = await cluster.open_engine(*agents), await cluster.open_engine(*agents)
    await start_speaking(one, model)
    await two.sessions.update(KEY, agent="B")
    assert (await two.runs.cancel(KEY, "r1")).output_text == "Once upon "
    assert await list_partials(two) == [("Once upon ", "A", True)]
    assert [event.agent for event in await two.read_log()][-2:] == ["A", "B"]
    await model.wait_for_disconnects_async(1)


# Nothing twice.


class Appends:
    """Stands between an engine and its store: `before` an append it may wait for something."""

    def __init__(self, engine: Server, before: Callable[[list[Fact]], Awaitable[None]]) -> None:
        self._before = before
        self._append = engine.store.append
        engine.store.append = self.append  # type: ignore[method-assign]

    async def append(self, key: Any, base: Any, drafts: Any, **options: Any) -> Any:
        await self._before([draft.fact for draft in drafts])
        return await self._append(key, base, drafts, **options)


def look() -> str:
    return "seen"


async def test_reply_recorded_during_cancel_appears_once(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(Agent(name="A", functions=[look]))
    pause = threading.Event()
    model.add(Completion(pieces=["Let me ", "see."], calls=[Call("look")], pause=pause))
    model.hang()
    await engine.start_run(options=STREAM)
    await wait_until(lambda: engine.hub.get_partial(KEY).text == "Let me ")

    async def lose_the_race(facts: list[Fact]) -> None:
        if any(isinstance(fact, RunCancelled) for fact in facts) and model.request_count == 1:
            pause.set()
            await model.wait_for_requests_async(2)

    Appends(engine, lose_the_race)
    assert (await engine.runs.cancel(KEY, "r1")).status == "cancelled"
    assert await list_partials(engine) == [("Let me see.", "A", UNSET)]
    await model.wait_for_disconnects_async(1)


class Crashing:
    """A model that says something, and then meets an error that nobody expected."""

    async def ask(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[Deltas | Reply]:
        yield Deltas([{"content": "Once upon "}])
        raise ZeroDivisionError("in the middle")


async def test_unexpected_error_keeps_words(cluster: EngineCluster) -> None:
    engine = await cluster.begin(AGENT, model=Crashing())
    view = await engine.run(options=STREAM)
    assert (view.status, view.error.code, view.output_text) == ("failed", "internal_error", "Once upon ")
    assert await list_partials(engine) == [("Once upon ", "A", True)]
