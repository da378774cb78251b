"""Runs outlive the server that began them: cut at each step, and taken over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from swarmkeep import Agent, ToolCallId, tool
from swarmkeep.decide.commands import Approval
from swarmkeep.events.records import RunOptions
from swarmkeep.runs.engine import Engine
from swarmkeep.runs.limits import Limits
from tests.runs.cluster import (
    KEY,
    EngineCluster,
    ToolGate,
    kill_engine,
    list_contents,
    make_start_run,
    read_log,
    read_state,
    read_types,
    run_to_end,
    start_hanging_run,
    wait_for_end,
)
from tests.runs.worker.servers import AGENT, SECONDS, count_answers, open_engine, read_resume_reasons
from tests.support.rules import find_body_faults
from tests.support.scripted import ScriptedModel


async def test_run_cut_in_model_call_asks_again(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    await start_hanging_run(one, model, options=RunOptions(stream=True))
    await kill_engine(one)
    model.say("Hello.")
    two = await cluster.open_engine(AGENT)
    view = await wait_for_end(two)
    assert (view.status, view.output_text) == ("completed", "Hello.")
    assert model.raw_requests[0] == model.raw_requests[1]
    assert await read_types(two) == [
        "session.created", "run.started", "message.added", "run.resumed", "message.added", "run.completed",
    ]  # fmt: skip
    assert await read_resume_reasons(two) == ["recovery"]


async def test_run_cut_in_tool_does_not_repeat(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate, calls = ToolGate(), []

    def send() -> str:
        calls.append("send")
        gate.enter()
        return "sent"

    agent = Agent(name="A", functions=[send])
    one = await open_engine(cluster, agent)
    model.call("send", id="c1")
    await one.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    await kill_engine(one)
    model.say("I do not know.")
    two = await cluster.open_engine(agent)
    view = await wait_for_end(two)
    await gate.open()
    assert view.status == "completed"
    assert calls == ["send"]
    [message] = [message for message in model.requests[1]["messages"] if message["role"] == "tool"]
    assert "send had been started when the process stopped" in message["content"]
    [entry] = [entry for entry in (await read_state(two)).messages if entry.role == "tool"]
    assert entry.tool is not None
    assert entry.tool.status == "unknown_outcome"


async def test_idempotent_tool_reruns_with_same_id(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()
    ids: list[str] = []

    @tool(idempotent=True)
    def pay(tool_call_id: ToolCallId) -> str:
        ids.append(tool_call_id)
        if len(ids) == 1:
            gate.enter()
        return f"paid {len(ids)}"

    agent = Agent(name="A", functions=[pay])
    one = await open_engine(cluster, agent)
    model.call("pay", id="c1")
    await one.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    await kill_engine(one)
    model.say("Paid.")
    two = await cluster.open_engine(agent)
    view = await wait_for_end(two)
    assert list_contents(view.messages)[-2:] == ["paid 2", "Paid."]
    assert ids == ["c1", "c1"]
    starts = [event.fact for event in await read_log(two) if event.type == "tool.started"]
    assert [(fact.tool_call_id, fact.attempt) for fact in starts] == [("c1", 1), ("c1", 2)]  # type: ignore[union-attr]
    await gate.open()


async def test_a_waiting_run_survives_without_anybody(cluster: EngineCluster, model: ScriptedModel) -> None:
    launched: list[str] = []

    @tool(requires_approval=True)
    def launch() -> str:
        launched.append("launch")
        return "launched"

    agent = Agent(name="A", functions=[launch])
    one = await open_engine(cluster, agent)
    model.call("launch", id="c1")
    assert (await run_to_end(one)).status == "waiting"
    await kill_engine(one)
    two = await cluster.open_engine(agent)
    assert (await two.reader.get_run(KEY, "r1")).status == "waiting"
    assert await read_resume_reasons(two) == []
    model.say("Launched.")
    await two.runs.resume(KEY, "r1", approvals=[Approval(tool_call_id="c1", decision="approve")])
    assert (await wait_for_end(two)).output_text == "Launched."
    assert launched == ["launch"]


async def test_queued_runs_follow_after_takeover(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    await start_hanging_run(one, model)
    await one.runs.start(KEY, make_start_run("next", "r2", on_busy="queue"))
    await kill_engine(one)
    model.say("One.")
    model.say("Two.")
    two = await cluster.open_engine(AGENT)
    assert (await wait_for_end(two)).output_text == "One."
    assert (await wait_for_end(two, "r2")).output_text == "Two."


@pytest.mark.parametrize("step", range(2, 7))
async def test_run_cut_after_any_commit_finishes(cluster: EngineCluster, model: ScriptedModel, step: int) -> None:
    """The server stops right after its n-th commit of the run, whichever that is."""
    calls: list[str] = []

    def note(text: str) -> str:
        calls.append(text)
        return f"noted {text}"

    agent = Agent(name="A", functions=[note])
    one = await open_engine(cluster, agent)
    stopped = asyncio.Event()
    stop_after(one, step, stopped)
    # The script follows what the model is shown, so that it is the same however often it is asked.
    model.call("note", {"text": "x"}, id="c1", when=lambda request: count_answers(request) == 0)
    model.call("note", {"text": "y"}, id="c2", when=lambda request: count_answers(request) == 1)
    model.say("Done.", when=lambda request: count_answers(request) == 2)
    await one.runs.start(KEY, make_start_run())
    async with asyncio.timeout(SECONDS):
        await stopped.wait()
    await kill_engine(one)
    two = await cluster.open_engine(agent)
    view = await wait_for_end(two)
    assert view.status == "completed"
    assert view.output_text == "Done."
    assert len(calls) == len(set(calls)), "a tool ran twice"
    events = await read_log(two)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    for body in model.raw_requests:
        assert not find_body_faults(body)


def stop_after(engine: Engine, step: int, stopped: asyncio.Event) -> None:
    """Let the engine never hear that its commit number `step` from now was made."""
    append = engine.store.append
    left = step

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        appended = await append(*args, **kwargs)
        left -= 1
        if left == 0:
            stopped.set()
            await asyncio.Event().wait()
        return appended

    engine.store.append = counted  # type: ignore[method-assign]


# As often as it takes, and no more.


async def test_run_with_many_takeovers_is_interrupted(cluster: EngineCluster, model: ScriptedModel) -> None:
    limits = Limits(lease_seconds=30, grace_seconds=0.05, max_recoveries=2)
    engine = await open_engine(cluster, limits=limits)
    await start_hanging_run(engine, model)
    for n in (2, 3):
        await kill_engine(engine)
        model.hang()
        engine = await cluster.open_engine(AGENT, limits=limits)
        await model.wait_for_requests_async(n)
    await kill_engine(engine)
    engine = await cluster.open_engine(AGENT, limits=limits)
    view = await wait_for_end(engine)
    assert view.status == "interrupted"
    assert view.error is not None
    assert view.error.code == "too_many_recoveries"
    assert await read_resume_reasons(engine) == ["recovery", "recovery"]
    model.say("At last.")
    await engine.runs.resume(KEY, "r1")
    assert (await wait_for_end(engine)).output_text == "At last."


async def test_progressing_run_has_unlimited_takeovers(cluster: EngineCluster, model: ScriptedModel) -> None:
    limits = Limits(lease_seconds=30, grace_seconds=0.05, max_recoveries=1)
    engine = await open_engine(cluster, limits=limits)
    model.hang()
    await engine.runs.start(KEY, make_start_run())
    for n in range(3):
        await model.wait_for_requests_async(2 * n + 1)
        await kill_engine(engine)
        model.call("look", {"city": "Oslo"})
        model.hang()
        engine = await cluster.open_engine(AGENT, limits=limits)
        await model.wait_for_requests_async(2 * n + 3)
    await kill_engine(engine)
    model.say("Done.")
    engine = await cluster.open_engine(AGENT, limits=limits)
    assert (await wait_for_end(engine)).status == "completed"
