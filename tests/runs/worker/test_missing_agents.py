"""Runs whose agent is not on every server, or on none: left to a server that has it, or ended."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from swarmkeep import Agent
from tests.runs.cluster import (
    KEY,
    LIMITS,
    LOOKS_OFTEN,
    EngineCluster,
    ToolGate,
    kill_engine,
    list_contents,
    make_start_run,
    read_types,
    start_hanging_run,
    wait_for_end,
)
from tests.runs.worker.servers import AGENT, look, open_engine
from tests.support.scripted import ScriptedModel


async def test_missing_agent_interrupts_run_for_retry(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    await start_hanging_run(one, model)
    await kill_engine(one)
    without = await cluster.open_engine(Agent(name="Other"))
    view = await wait_for_end(without)
    assert (view.status, view.stop_reason) == ("interrupted", "interrupted")
    assert view.error is not None
    assert view.error.code == "agent_unavailable"
    again = await cluster.open_engine(AGENT)
    model.say("Here I am.")
    await again.runs.resume(KEY, "r1")
    view = await wait_for_end(again)
    assert (view.status, view.error, view.output_text) == ("completed", None, "Here I am.")


async def test_run_is_left_for_agents_server(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    await start_hanging_run(one, model)
    await kill_engine(one)
    # It looks for what nobody advances before this returns.
    await cluster.open_engine(Agent(name="Other"), limits=replace(LIMITS, unserved_seconds=3600.0))
    model.say("Here I am.")
    two = await cluster.open_engine(AGENT)
    view = await wait_for_end(two)
    assert (view.status, view.output_text) == ("completed", "Here I am.")
    assert "run.interrupted" not in await read_types(two)


async def test_queued_run_is_left_for_agents_server(cluster: EngineCluster, model: ScriptedModel) -> None:
    other = Agent(name="B")
    one = await open_engine(cluster, limits=replace(LOOKS_OFTEN, unserved_seconds=3600.0))
    two = await cluster.open_engine(AGENT, other, limits=LOOKS_OFTEN)
    model.hang(then="One.")
    model.say("Two.")
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await two.runs.start(KEY, make_start_run("next", "r2", agent="B", on_busy="queue"))
    model.release()
    view = await wait_for_end(two, "r2")
    assert (view.status, view.agent, view.output_text) == ("completed", "B", "Two.")


@pytest.mark.long
async def test_queued_run_without_any_agent_fails(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster, limits=LOOKS_OFTEN)
    two = await cluster.open_engine(AGENT, Agent(name="B"), start=False)
    await start_hanging_run(one, model, then="One.")
    await two.runs.start(KEY, make_start_run("next", "r2", agent="B", on_busy="queue"))
    model.release()
    view = await wait_for_end(one, "r2")
    assert view.error is not None
    assert (view.status, view.error.code) == ("failed", "agent_unavailable")


async def test_calls_are_left_for_asking_agents_server(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()

    def wait() -> str:
        gate.enter()
        return "waited"

    first, second = Agent(name="A", functions=[wait, look]), Agent(name="B")
    one = await open_engine(cluster, first, second)
    model.calls([("wait", {}, "c1"), ("look", {"city": "Oslo"}, "c2")])
    await one.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    await one.sessions.update(KEY, agent="B")
    await kill_engine(one)
    await cluster.open_engine(second, limits=replace(LIMITS, unserved_seconds=3600.0))
    model.say("Hello from B.")
    two = await cluster.open_engine(first, second)
    view = await wait_for_end(two)
    await gate.open()
    assert list_contents(view.messages)[-2:] == ["rain in Oslo", "Hello from B."]
