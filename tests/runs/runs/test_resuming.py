"""Runs that wait, and go on or are cancelled on any server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from swarmkeep import Agent, tool
from swarmkeep.decide.commands import Approval
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import AlreadyDecided
from swarmkeep.runs.engine import Engine
from tests.runs.cluster import (
    KEY,
    EngineCluster,
    ToolGate,
    collect_stream,
    make_start_run,
    pick_recorded,
    read_log,
    read_state,
    run_to_end,
    take_items,
    wait_for_end,
    wait_for_state,
)
from tests.runs.runs.sessions import NO_TOOLS, STREAM, approve, look, open_engine, wait_until_spoken
from tests.support.rules import find_body_faults
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


class Rocket:
    def __init__(self) -> None:
        self.launched: list[str] = []

        @tool(requires_approval=True)
        def launch(where: str) -> str:
            self.launched.append(where)
            return f"launched to {where}"

        self.agent = Agent(name="A", functions=[launch, look])

    async def run_until_waiting(self, cluster: EngineCluster, model: ScriptedModel) -> Engine:
        engine = await open_engine(cluster, self.agent)
        model.calls([("launch", {"where": "Mars"}, "c1"), ("launch", {"where": "Venus"}, "c2")])
        view = await run_to_end(engine)
        assert (view.status, view.stop_reason) == ("waiting", "approval")
        assert [call.reason for call in view.pending] == ["approval", "approval"]
        return engine


def deny(call_id: str, **more: Any) -> Approval:
    return Approval(tool_call_id=call_id, decision="deny", **more)


async def test_any_server_may_approve_a_run(cluster: EngineCluster, model: ScriptedModel) -> None:
    rocket = Rocket()
    await rocket.run_until_waiting(cluster, model)
    other = await cluster.open_engine(rocket.agent)
    model.say("Launched.")
    await other.runs.resume(KEY, "r1", approvals=[approve("c1"), approve("c2")])
    assert (await wait_for_end(other)).status == "completed"
    assert rocket.launched == ["Mars", "Venus"]


async def test_concurrent_decisions_have_one_winner(cluster: EngineCluster, model: ScriptedModel) -> None:
    rocket = Rocket()
    engine = await rocket.run_until_waiting(cluster, model)
    other = await cluster.open_engine(rocket.agent)
    model.say("Done.")
    tried = await asyncio.gather(
        *(
            one.runs.resume(KEY, "r1", approvals=[(approve, deny)[n % 3 == 0]("c1"), approve("c2")])
            for n, one in enumerate([engine, other] * 8)
        ),
        return_exceptions=True,
    )
    assert sum(not isinstance(one, BaseException) for one in tried) == 1
    assert {type(one) for one in tried if isinstance(one, BaseException)} == {AlreadyDecided}
    assert (await wait_for_end(engine)).status == "completed"
    assert len(rocket.launched) in (1, 2)
    assert len(set(rocket.launched)) == len(rocket.launched)


async def test_run_stream_ends_at_wait_and_continues(cluster: EngineCluster, model: ScriptedModel) -> None:
    rocket = Rocket()
    engine = await rocket.run_until_waiting(cluster, model)
    before = pick_recorded(await collect_stream(engine))
    assert before[-1].type == "run.waiting"
    model.say(["Launch", "ed."])
    feed = await engine.runs.resume(KEY, "r1", approvals=[approve("c1"), approve("c2")])
    async with asyncio.timeout(20), aclosing(engine.reader.follow_run(KEY, feed)) as items:
        after = pick_recorded([item async for item in items])
    assert after[0].seq == before[-1].seq + 1
    assert after[-1].type == "run.completed"
    assert [event.seq for event in pick_recorded(await collect_stream(engine))] == [
        event.seq for event in [*before, *after]
    ]


async def test_early_reader_sees_resumed_run_end(cluster: EngineCluster, model: ScriptedModel) -> None:
    rocket = Rocket()
    engine = await rocket.run_until_waiting(cluster, model)
    model.hang(then="Launched.")
    await engine.runs.resume(KEY, "r1", approvals=[approve("c1"), approve("c2")])
    await model.wait_for_requests_async(2)
    position = await engine.reader.find_position(KEY, "r1")
    async with asyncio.timeout(20), aclosing(engine.reader.follow_run(KEY, position)) as items:
        # It is seen to be under way; by the time that the reader comes to its wait, it is over.
        seen = await take_items(items, 1)
        model.release()
        await wait_for_end(engine)
        seen += [item async for item in items if item is not None]
    types = [event.type for event in pick_recorded(seen)]
    assert types[0] == "run.started"
    assert types.count("run.waiting") == 1
    assert types[-1] == "run.completed"


# Runs are cancelled: in a model call, in a tool, in the queue, and from another server.


async def test_cancel_in_model_call_keeps_words(engine: Engine, model: ScriptedModel) -> None:
    model.hang("Once upon ", then="a time.")
    await engine.runs.start(KEY, make_start_run(options=STREAM))
    await wait_until_spoken(engine, "Once upon ")
    waiting = asyncio.create_task(wait_for_end(engine))
    view = await engine.runs.cancel(KEY, "r1")
    assert (view.status, view.stop_reason, view.output_text) == ("cancelled", "cancelled", "Once upon ")
    assert await waiting == view
    await model.wait_for_disconnects_async(1)
    partial = (await read_state(engine)).messages[-1].completion
    assert partial is not None
    assert partial.partial is True
    # Asking twice is no more than asking once.
    assert await engine.runs.cancel(KEY, "r1") == view
    model.say("Yes?")
    assert (await run_to_end(engine, "Hello?", "r2")).output_text == "Yes?"


async def test_cancel_in_blocking_tool_drops_late_result(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()

    def slow(context_variables: Json) -> str:
        gate.enter()
        context_variables["late"] = True
        return "too late"

    engine = await open_engine(cluster, Agent(name="A", functions=[slow]))
    model.call("slow", id="c1")
    await engine.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    view = await engine.runs.cancel(KEY, "r1")
    assert view.status == "cancelled"
    model.say("I see.")
    await run_to_end(engine, "And now?", "r2")
    before = await read_log(engine)
    await gate.open()
    await asyncio.sleep(0)
    assert await read_log(engine) == before
    assert (await read_state(engine)).context_variables == {}
    # The model is told that nobody knows how the call ended.
    assert not find_body_faults(model.raw_requests[1])
    [told] = [message for message in model.requests[1]["messages"] if message["role"] == "tool"]
    assert told["tool_call_id"] == "c1"
    assert "unknown" in told["content"]


async def test_cancel_reaches_async_tool(cluster: EngineCluster, model: ScriptedModel) -> None:
    reached, cancelled = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    engine = await open_engine(cluster, Agent(name="A", functions=[slow]))
    model.call("slow")
    await engine.runs.start(KEY, make_start_run())
    await reached.wait()
    assert (await engine.runs.cancel(KEY, "r1")).status == "cancelled"
    async with asyncio.timeout(20):
        await cancelled.wait()


async def test_queued_run_is_cancelled_alone(engine: Engine, model: ScriptedModel) -> None:
    model.hang(then="One.")
    model.say("Three.")
    await engine.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    for run_id in ("r2", "r3"):
        await engine.runs.start(KEY, make_start_run(run_id=run_id, on_busy="queue"))
    waiting = asyncio.create_task(wait_for_end(engine, "r2"))
    view = await engine.runs.cancel(KEY, "r2")
    assert (view.status, view.messages) == ("cancelled", [])
    assert await waiting == view
    model.release()
    assert (await wait_for_end(engine)).output_text == "One."
    assert (await wait_for_end(engine, "r3")).output_text == "Three."


async def test_a_cancel_from_another_server(cluster: EngineCluster, engine: Engine, model: ScriptedModel) -> None:
    other = await cluster.open_engine(Agent(name="A"))
    model.hang(then="Too late.")
    model.say("Two.")
    await engine.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await other.runs.start(KEY, make_start_run(run_id="r2", on_busy="queue"))
    # The run ends, and with it its server's lease; what waited behind it begins on the server that ended it.
    view = await other.runs.cancel(KEY, "r1")
    assert view.status == "cancelled"
    assert (await wait_for_end(other, "r2")).output_text == "Two."
    model.release()
    await wait_for_state(engine, lambda state: not engine._worker.is_advancing(KEY))
    assert model.request_count == 2
    assert [event.type for event in await read_log(engine)] == [
        "session.created", "run.started", "message.added", "run.queued",
        "run.cancelled", "run.started", "message.added", "message.added", "run.completed",
    ]  # fmt: skip


async def test_a_waiting_run_can_be_cancelled(engine: Engine, model: ScriptedModel) -> None:
    model.call("look", {"city": "Oslo"})
    assert (await run_to_end(engine, options=NO_TOOLS)).status == "waiting"
    view = await engine.runs.cancel(KEY, "r1")
    assert (view.status, view.pending) == ("cancelled", ())
    model.say("Next.")
    assert (await run_to_end(engine, "Next?", "r2")).status == "completed"
    assert not find_body_faults(model.raw_requests[-1])
