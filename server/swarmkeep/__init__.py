"""Swarmkeep: agents in plain Python, and a server that keeps their conversations as events."""

from __future__ import annotations

# As in `typing`, which takes a while to load: Ctrl-C shows a traceback until the command line has begun.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from swarmkeep.agent import (
        Agent,
        AgentFunction,
        Compaction,
        File,
        MCPServer,
        Refusal,
        Response,
        Result,
        ToolCallId,
        function_schema,
        tool,
    )
    from swarmkeep.runs.swarm import AsyncSwarm, Swarm

__version__ = "0.2.0"
__all__ = [
    "Agent",
    "AgentFunction",
    "AsyncSwarm",
    "Compaction",
    "File",
    "MCPServer",
    "Refusal",
    "Response",
    "Result",
    "Swarm",
    "ToolCallId",
    "function_schema",
    "tool",
]


if not TYPE_CHECKING:  # A type checker that saw it would take any name for one of this module.

    def __getattr__(name: str) -> Any:
        # The words that agents are written in need pydantic, and the loop a client of the model: the command line,
        # which is in this package too, begins without them.
        from importlib import import_module

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = "swarmkeep.runs.swarm" if name in ("Swarm", "AsyncSwarm") else "swarmkeep.agent"
        return globals().setdefault(name, getattr(import_module(home), name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
