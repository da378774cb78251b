"""Several agents that are asked in one reply, and how long a call that asks may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from openai import AsyncOpenAI

from swarmkeep import Agent, AsyncSwarm, Result, tool
from swarmkeep.agent import Tool
from swarmkeep.decide.commands import Approval
from swarmkeep.decide.turns import ToolOutcome
from swarmkeep.events.facts import ToolStarted
from swarmkeep.events.state import State, ToolCall
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.calls import ToolCalls
from swarmkeep.runs.identifiers import derive_child_run
from swarmkeep.runs.tool_runners import ThreadRunner
from swarmkeep.runs.toolbox import NO_SERVERS
from swarmkeep.store.records import SessionKey
from tests.runs.calls.doors import Doors, find_sent_results, list_results, list_starts, wait_for_results
from tests.runs.cluster import KEY, EngineCluster, Server, kill_engine
from tests.runs.loop.memory import FixedPolicy, open_run
from tests.support.scripted import Call, ScriptedModel

pytestmark = pytest.mark.one_database


@tool(requires_approval=True)
def pay(name: str) -> str:
    """Pay somebody."""
    return f"saw {name}"


def make_desk(doors: Doors) -> Agent:
    """An agent that asks several others at once, each of which looks at a door, or pays."""

    @tool(idempotent=True)
    async def look(name: str) -> Result:
        await doors.pass_through(name)
        return Result(f"saw {name}", context_variables={name: True, "last": name})

    clerk = Agent(name="Clerk", functions=[look, pay])
    ask = clerk.as_tool("ask_clerk", "Ask the clerk.", concurrent=True)
    return Agent(name="Desk", functions=[ask], concurrent_tools=True)


def last_says(text: str) -> Callable[[Any], bool]:
    return lambda request: request["messages"][-1]["content"] == text


def ask_for(model: ScriptedModel, **functions: str) -> None:
    """The script: a reply that asks for all of these, and what those that are asked do and say."""
    model.calls([Call("ask_clerk", {"input": name}, id=name) for name in functions])
    for name, function in functions.items():
        model.call(function, {"name": name}, id=f"of-{name}", when=last_says(name))
        model.say(f"{name} is fine", when=last_says(f"saw {name}"))
    model.say("Done.")


async def find_children(engine: Server) -> dict[str, SessionKey]:
    starts = [event.fact for event in await engine.read_log() if isinstance(event.fact, ToolStarted)]
    return {fact.tool_call_id: SessionKey(KEY.tenant, str(fact.session_id)) for fact in starts}


async def test_concurrent_answers_keep_call_order(cluster: EngineCluster, model: ScriptedModel) -> None:
    doors = Doors()
    engine = await cluster.begin(make_desk(doors))
    ask_for(model, x="look", y="look", z="look")
    await engine.start_run()
    await doors.wait_until_begun("x", "y", "z")
    for name in ("z", "x", "y"):
        doors.open(name)
        await wait_for_results(engine, name)
    assert (await engine.wait()).output_text == "Done."
    events = await engine.read_log()
    assert list_starts(events) == [("x", 1), ("y", 1), ("z", 1)]
    assert list_results(events) == [("z", "ok"), ("x", "ok"), ("y", "ok")]
    assert find_sent_results(model) == ["x", "y", "z"]
    assert (await engine.read_state()).context_variables == {"x": True, "y": True, "z": True, "last": "z"}
    await engine.check_log()


@pytest.mark.parametrize("ended", [(), ("x",), ("y",)])
async def test_kill_between_answers_asks_no_repeats(
    cluster: EngineCluster, model: ScriptedModel, ended: tuple[str, ...]
) -> None:
    doors = Doors()
    one = await cluster.begin(make_desk(doors))
    ask_for(model, x="look", y="look", z="look")
    await one.start_run()
    await doors.wait_until_begun("x", "y", "z")
    for name in ended:
        doors.open(name)
        await wait_for_results(one, name)
    children = await find_children(one)
    await kill_engine(one)
    doors.open("x", "y", "z")
    two = await cluster.open_engine(make_desk(doors))
    assert (await two.wait()).output_text == "Done."
    assert list_starts(await two.read_log()) == [("x", 1), ("y", 1), ("z", 1)]
    assert dict(list_results(await two.read_log())) == {"x": "ok", "y": "ok", "z": "ok"}
    assert (await two.read_state()).context_variables == {"x": True, "y": True, "z": True, "last": "z"}
    for child in children.values():
        assert (await two.read_types(child)).count("run.started") == 1
    await two.check_log()


async def test_run_waits_below_after_other_answers(cluster: EngineCluster, model: ScriptedModel) -> None:
    doors = Doors()
    engine = await cluster.begin(make_desk(doors))
    ask_for(model, x="pay", y="look", z="pay")
    await engine.start_run()
    await doors.wait_until_begun("y")
    children = await find_children(engine)
    for name in ("x", "z"):
        await engine.wait_for_state(lambda state: state.status == "waiting", children[name])
    assert (await engine.read_state()).status == "running"
    doors.open("y")
    for name, left in (("z", ["x", "z"]), ("x", ["x"])):
        view = await engine.wait()
        assert [(call.tool_call_id, call.reason) for call in view.pending] == [(each, "session") for each in left]
        asked = [call.approvals[0] for call in view.pending if call.approvals]
        assert [(each.tool_call_id, each.session_id) for each in asked] == [
            (f"of-{each}", children[each].id) for each in left
        ]
        decided = [Approval(tool_call_id=f"of-{name}", decision="approve")]
        await engine.runs.resume(children[name], derive_child_run(children[name]), approvals=decided)
        await wait_for_results(engine, name)
    assert (await engine.wait()).output_text == "Done."
    assert list_results(await engine.read_log()) == [("y", "ok"), ("z", "ok"), ("x", "ok")]
    await engine.check_log()


async def test_a_cancel_ends_all_of_them(cluster: EngineCluster, model: ScriptedModel) -> None:
    doors = Doors()
    engine = await cluster.begin(make_desk(doors))
    model.calls([Call("ask_clerk", {"input": name}, id=name) for name in ("x", "y")])
    for name in ("x", "y"):
        model.call("look", {"name": name}, when=last_says(name))
    await engine.start_run()
    await doors.wait_until_begun("x", "y")
    await engine.runs.cancel(KEY, "r1")
    children = await find_children(engine)
    assert set(children) == {"x", "y"}
    for child in children.values():
        assert [run.status for run in (await engine.read_state(child)).finished] == ["cancelled"]
    await doors.wait_until_cancelled("x", "y")


async def test_memory_sessions_ask_concurrently(model: ScriptedModel, async_client: AsyncOpenAI) -> None:
    doors = Doors()
    ask_for(model, x="look", y="look")
    asked: list[Any] = [{"role": "user", "content": "Go."}]
    running = asyncio.create_task(AsyncSwarm(client=async_client).run(make_desk(doors), asked))
    await doors.wait_until_begun("x", "y")
    doors.open("y", "x")
    answer = await running
    assert answer.messages[-1]["content"] == "Done."
    assert answer.context_variables == {"x": True, "y": True, "last": "y"}


# How long a call that asks may take: its own limit and the run's; then nothing goes on below.

ASKED = Agent(name="Clerk")


class NeverAnswering:
    """The agents of nobody: none of them answers."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.cancelled: list[str] = []

    async def ask(self, state: State, tool: Tool, call: ToolCall, text: str) -> ToolOutcome:
        self.texts.append(text)
        await asyncio.Event().wait()
        raise AssertionError

    async def cancel(self, state: State, call: ToolCall) -> None:
        self.cancelled.append(call.id)


async def perform(tool_seconds: float | None, run_seconds: float | None) -> tuple[ToolOutcome, NeverAnswering]:
    agent = Agent(name="Desk", functions=[ASKED.as_tool("ask_clerk", "Ask.", timeout=tool_seconds)])
    log, agents, policy = await open_run(agent), NeverAnswering(), FixedPolicy(seconds=run_seconds)
    policy.agents = agents
    call = ToolCall(id="c1", name="ask_clerk", arguments='{"input": "Hm?"}', attempts=1)
    tool = agent.tools()["ask_clerk"]
    calls = ToolCalls(Registry([agent]), ThreadRunner(), policy, NO_SERVERS)
    outcome = await calls.perform(log.state, agent, tool, call)
    return outcome, agents


@pytest.mark.parametrize(("tool_seconds", "run_seconds"), [(0.01, None), (None, 0.01)])
async def test_time_is_up_for_both(tool_seconds: float | None, run_seconds: float | None) -> None:
    outcome, agents = await perform(tool_seconds, run_seconds)
    assert outcome.status == "timeout"
    assert agents.texts == ["Hm?"]
    assert agents.cancelled == ["c1"]


async def test_wrong_arguments_ask_nobody() -> None:
    agent = Agent(name="Desk", functions=[ASKED.as_tool("ask_clerk", "Ask.")])
    log, agents, policy = await open_run(agent), NeverAnswering(), FixedPolicy()
    policy.agents = agents
    call = ToolCall(id="c1", name="ask_clerk", arguments='{"text": "Hm?"}', attempts=1)
    tool = agent.tools()["ask_clerk"]
    calls = ToolCalls(Registry([agent]), ThreadRunner(), policy, NO_SERVERS)
    outcome = await calls.perform(log.state, agent, tool, call)
    assert (outcome.status, agents.texts) == ("error", [])
    assert "input is missing" in outcome.content
