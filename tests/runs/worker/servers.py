"""Servers of one agent, and what is read of the runs that they went on with."""

from __future__ import annotations

from typing import Any

from swarmkeep import Agent
from swarmkeep.events.codec import Json
from swarmkeep.runs.limits import Limits
from tests.runs.cluster import LIMITS, EngineCluster, Server, ToolGate

SECONDS = 20.0


def look(city: str) -> str:
    return f"rain in {city}"


AGENT = Agent(name="A", functions=[look])


async def open_engine(cluster: EngineCluster, *agents: Agent, limits: Limits = LIMITS) -> Server:
    """A server, of AGENT unless others are given, with a session on it."""
    return await cluster.begin(*(agents or [AGENT]), limits=limits)


async def read_resume_reasons(engine: Server) -> list[str]:
    return [event.fact.reason for event in await engine.read_log() if event.type == "run.resumed"]  # type: ignore[union-attr]


def count_answers(request: Json) -> int:
    return sum(message["role"] == "tool" for message in request["messages"])


def make_gated_tool(gate: ToolGate) -> Any:
    def slow() -> str:
        gate.enter()
        return "ok"

    return slow
