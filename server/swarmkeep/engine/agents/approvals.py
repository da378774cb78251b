"""Which calls need a person's approval by today's agents, and until when it may be given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from datetime import datetime, timedelta

from swarmkeep.agent import Agent, FunctionSchemaError, InvalidFunctionError
from swarmkeep.domain.decisions.settling import Approvals
from swarmkeep.domain.state import State
from swarmkeep.domain.timestamps import to_timestamp
from swarmkeep.engine.agents.registry import Registry


class ApprovalRules:
    """The approvals that a server asks for. `read_clock` gives the time that requests expire by: every server's."""

    def __init__(
        self, registry: Registry, read_clock: Callable[[], Awaitable[datetime]], approval_seconds: float | None
    ) -> None:
        self._registry = registry
        self._read_clock = read_clock
        self._approval_seconds = approval_seconds

    def make_approvals(self, expires_at: str | None) -> Approvals:
        return make_approvals(self._registry, expires_at)

    async def expires_at(self) -> str | None:
        """Until when a request made now may be answered; None is for ever."""
        if self._approval_seconds is None:
            return None
        return to_timestamp(await self._read_clock() + timedelta(seconds=self._approval_seconds))


def make_approvals(registry: Registry, expires_at: str | None = None) -> Approvals:
    """What a registry's agents ask for: the one that asked for the calls, and the active one."""

    def find_guarded(state: State) -> Collection[str]:
        names = {state.agent, _find_asking_agent(state)}
        agents = [registry.get_active(name) for name in names if name in registry]
        return {name for agent in agents for name in _find_guarded_tools(agent)}

    return Approvals(find_guarded=find_guarded, expires_at=expires_at)


def _find_guarded_tools(agent: Agent) -> Collection[str]:
    try:
        return {name for name, tool in agent.tools().items() if tool.requires_approval}
    except (FunctionSchemaError, InvalidFunctionError):
        # None of its functions can be called.
        return ()


def _find_asking_agent(state: State) -> str:
    """The sender of the reply whose calls the active run carries out."""
    for index in range(len(state.messages) - 1, -1, -1):
        entry = state.messages[index]
        if entry.role == "assistant":
            return str(entry.message.get("sender", ""))
    return ""
