"""One tool call of a run: carried out within the run's time, its handoff checked."""

from __future__ import annotations

import msgspec

from swarmkeep.agent import Agent, Tool
from swarmkeep.domain.decisions.turns import ToolOutcome
from swarmkeep.domain.state import State, ToolCall
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.policy import LoopPolicy, RunTimedOut
from swarmkeep.engine.tools import ToolRunner, call_tool, make_unknown_tool_outcome


class ToolCalls:
    """Carries out calls with the tools of a registry."""

    def __init__(self, registry: Registry, caller: ToolRunner, policy: LoopPolicy) -> None:
        self._registry = registry
        self._tool_runner = caller
        self._policy = policy

    async def perform(self, state: State, agent: Agent | None, tool: Tool | None, call: ToolCall) -> ToolOutcome:
        """Run the call; whatever happens becomes an outcome, the end of the run's time as well."""
        if tool is None:
            return make_unknown_tool_outcome(call, list(self._registry.tools(agent)) if agent is not None else [])
        assert state.run is not None
        try:
            async with self._policy.time_limit(state.run):
                outcome, result = await call_tool(
                    tool, call, state.context_variables, self._tool_runner, self._policy.tool_seconds
                )
        except RunTimedOut as over:
            text = f"Error: {call.name} was abandoned: {over}. It may or may not have taken effect."
            return ToolOutcome(status="timeout", content=text)
        return outcome if result.agent is None else apply_handoff(self._registry, outcome, result.agent)


def apply_handoff(registry: Registry, outcome: ToolOutcome, agent: Agent) -> ToolOutcome:
    """The outcome of a call that returned an agent; one that is not served would leave the session stranded."""
    if registry.admit(agent):
        return msgspec.structs.replace(outcome, handoff=agent.name)
    content = f"Error: agent {agent.name!r} is not served here, so nothing was handed over to it."
    return msgspec.structs.replace(outcome, status="error", content=content, context_variables=None)


def make_unknown_outcome(call: ToolCall) -> ToolOutcome:
    text = (
        f"Interrupted: {call.name} had been started when the process stopped. It may or may not have taken effect; "
        "find out before doing it again."
    )
    return ToolOutcome(status="unknown_outcome", content=text)
