"""Rules of today's agents for calls: which need a person's approval, until when, and which start together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta

from swarmkeep.agent import Agent, FunctionSchemaError, InvalidFunctionError, Tool
from swarmkeep.domain.decisions.concurrent_calls import MAX_AT_ONCE, find_batch
from swarmkeep.domain.decisions.settling import Approvals
from swarmkeep.domain.state import Run, State, ToolCall
from swarmkeep.domain.timestamps import to_timestamp
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.agents.server_tools import list_server_tools


class ApprovalRules:
    """The approvals that a server asks for. `read_clock` gives the time that requests expire by: every server's."""

    def __init__(
        self,
        registry: Registry,
        read_clock: Callable[[], Awaitable[datetime]],
        approval_seconds: float | None,
        max_calls: int = MAX_AT_ONCE,
    ) -> None:
        self._registry = registry
        self._read_clock = read_clock
        self._approval_seconds = approval_seconds
        self._max_calls = max_calls

    def make_approvals(self, expires_at: str | None) -> Approvals:
        return make_approvals(self._registry, expires_at, self._max_calls)

    def asks_agent(self, state: State, call: ToolCall) -> bool:
        """Whether a call is to be answered by another agent."""
        name = call.agent or state.agent
        agent = self._registry.get_active(name) if name in self._registry else None
        tool = None if agent is None else _find_tools(agent).get(call.name)
        return tool is not None and tool.asked_agent is not None

    async def expires_at(self) -> str | None:
        """Until when a request made now may be answered; None is for ever."""
        if self._approval_seconds is None:
            return None
        return to_timestamp(await self._read_clock() + timedelta(seconds=self._approval_seconds))


def make_approvals(registry: Registry, expires_at: str | None = None, max_calls: int = MAX_AT_ONCE) -> Approvals:
    """What a registry's agents ask for: the one that asked for the calls, and the active one."""

    def find_guarded(state: State) -> Collection[str]:
        names = {state.agent, _find_asking_agent(state)}
        agents = [registry.get_active(name) for name in names if name in registry]
        return {name for agent in agents for name in _find_guarded_tools(agent, state)}

    def find_bare(state: State) -> Collection[str]:
        name = _find_asking_agent(state) or state.agent
        tools = _find_tools(registry.get_active(name)) if name in registry else {}
        return {name for name, tool in tools.items() if not tool.has_parameters}

    def find_calls(state: State, run: Run) -> Sequence[ToolCall]:
        concurrent = find_concurrent_tools(registry, state, run)
        return find_batch(run, concurrent, find_guarded(state), max_calls=max_calls) if concurrent else ()

    return Approvals(find_guarded=find_guarded, find_bare=find_bare, expires_at=expires_at, find_batch=find_calls)


def find_concurrent_tools(registry: Registry, state: State, run: Run) -> Collection[str]:
    """The functions, of the agent that asked for the open calls, whose calls may run beside one another."""
    name = next((call.agent for call in run.own_open_calls if call.agent), state.agent)
    return list_concurrent_tools(registry.get_active(name)) if name in registry else ()


def list_concurrent_tools(agent: Agent) -> list[str]:
    if not agent.concurrent_tools:
        return []
    try:
        return [name for name, tool in agent.tools().items() if tool.concurrent]
    except (FunctionSchemaError, InvalidFunctionError):
        return []


def _find_guarded_tools(agent: Agent, state: State) -> Collection[str]:
    own = {name for name, tool in _find_tools(agent).items() if tool.requires_approval}
    if not agent.mcp_servers:
        return own
    try:
        return own | {tool.name for tool in list_server_tools(agent, state) if tool.requires_approval}
    except (FunctionSchemaError, InvalidFunctionError):
        return own


def _find_tools(agent: Agent) -> dict[str, Tool]:
    try:
        return agent.tools()
    except (FunctionSchemaError, InvalidFunctionError):
        # None of its functions can be called.
        return {}


def _find_asking_agent(state: State) -> str:
    """The sender of the reply whose calls the active run carries out."""
    for entry in reversed(state.messages):
        if entry.role == "assistant":
            return str(entry.message.get("sender", ""))
    return ""
