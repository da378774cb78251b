"""How long a call that asks may take: its own limit and the run's; whichever ends it, nobody goes on below."""

from __future__ import annotations

import asyncio

import pytest

from swarmkeep import Agent
from swarmkeep.agent import Tool
from swarmkeep.decide.turns import ToolOutcome
from swarmkeep.events.state import State, ToolCall
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.calls import ToolCalls
from swarmkeep.runs.tool_runners import ThreadRunner
from swarmkeep.runs.toolbox import NO_SERVERS
from tests.runs.loop.memory import FixedPolicy, open_run

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
