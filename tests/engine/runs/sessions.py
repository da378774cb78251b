"""Words that the tests of runs share."""

from __future__ import annotations

from typing import Any

from swarmkeep import Agent
from swarmkeep.domain.decisions.resuming import Approval
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.engine.engine import Engine
from swarmkeep.engine.limits import Limits
from tests.engine.cluster import KEY, LIMITS, EngineCluster, open_session, wait_until

STREAM = RunOptions(stream=True)
NO_TOOLS = RunOptions(execute_tools=False)


def look(city: str) -> str:
    return f"rain in {city}"


async def open_engine(cluster: EngineCluster, *agents: Agent, limits: Limits = LIMITS) -> Engine:
    """A server with a session on it."""
    engine = await cluster.open_engine(*agents, limits=limits)
    await open_session(engine)
    return engine


def approve(call_id: str, **more: Any) -> Approval:
    return Approval(tool_call_id=call_id, decision="approve", **more)


async def wait_until_spoken(engine: Engine, text: str) -> None:
    await wait_until(lambda: engine.hub.get_partial(KEY).text == text)
