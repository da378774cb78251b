"""Runs are cancelled: in a model call, in a tool, in the queue, and from another server."""

from __future__ import annotations

import asyncio

import pytest

from swarmkeep import Agent
from swarmkeep.events.codec import Json
from swarmkeep.runs.engine import Engine
from tests.runs.cluster import (
    KEY,
    EngineCluster,
    ToolGate,
    list_contents,
    make_start_run,
    read_log,
    read_state,
    run_to_end,
    start_hanging_run,
    wait_for_end,
    wait_for_state,
)
from tests.runs.runs.sessions import NO_TOOLS, STREAM, open_engine, wait_until_spoken
from tests.support.rules import find_body_faults
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


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


async def test_a_cancel_before_anything_was_said(engine: Engine, model: ScriptedModel) -> None:
    await start_hanging_run(engine, model)
    view = await engine.runs.cancel(KEY, "r1")
    assert list_contents(view.messages) == ["hello"]
    await model.wait_for_disconnects_async(1)


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


async def test_cancelled_run_is_followed_by_next_queued(engine: Engine, model: ScriptedModel) -> None:
    model.hang()
    model.say("Two.")
    await engine.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await engine.runs.start(KEY, make_start_run(run_id="r2", on_busy="queue"))
    await engine.runs.cancel(KEY, "r1")
    assert (await wait_for_end(engine, "r2")).output_text == "Two."


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
