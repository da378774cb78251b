"""Swarmkeep: agents in plain Python, and a server that keeps their conversations as events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swarmkeep.agent import Agent, Response, Result, ToolCallId, function_schema, tool

if TYPE_CHECKING:
    from swarmkeep.engine.swarm import AsyncSwarm, Swarm

__version__ = "0.1.0"
__all__ = ["Agent", "AsyncSwarm", "Response", "Result", "Swarm", "ToolCallId", "function_schema", "tool"]


def __getattr__(name: str) -> Any:
    # The loop and its clients are loaded by whoever runs agents, not by whoever writes them.
    if name in ("Swarm", "AsyncSwarm"):
        from swarmkeep.engine import swarm

        return getattr(swarm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
