"""Words that the tests of runs share."""

from __future__ import annotations

from typing import Any

from swarmkeep import Agent
from swarmkeep.decide.commands import Approval
from swarmkeep.events.records import RunOptions
from swarmkeep.runs.limits import Limits
from tests.runs.cluster import KEY, LIMITS, EngineCluster, Server
from tests.support.waiting import wait_until

STREAM = RunOptions(stream=True)
NO_TOOLS = RunOptions(execute_tools=False)


def look(city: str) -> str:
    return f"rain in {city}"


async def open_engine(cluster: EngineCluster, *agents: Agent, limits: Limits = LIMITS) -> Server:
    """A server with a session on it."""
    return await cluster.begin(*agents, limits=limits)


def approve(call_id: str, **more: Any) -> Approval:
    return Approval(tool_call_id=call_id, decision="approve", **more)


async def wait_until_spoken(engine: Server, text: str) -> None:
    await wait_until(lambda: engine.hub.get_partial(KEY).text == text)
