"""Agents that are asked where nothing is kept: each in a session in memory, which is over with its answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from copy import copy

from msgspec.structs import replace

from swarmkeep.agent import Agent, Tool
from swarmkeep.domain.decisions.commands import StartRun, create_session, start_run
from swarmkeep.domain.decisions.drafts import draft_events
from swarmkeep.domain.decisions.settling import NO_APPROVALS, Approvals
from swarmkeep.domain.decisions.turns import ToolOutcome
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.domain.state import State, ToolCall
from swarmkeep.domain.views import find_run, view_run
from swarmkeep.engine.agents.approvals import make_approvals
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.loop import make_loop
from swarmkeep.engine.models.model import Model
from swarmkeep.engine.policy import AskedAgents, LoopPolicy
from swarmkeep.engine.swarm.memory_log import MemorySessionLog
from swarmkeep.engine.teams.answers import make_answer, make_error
from swarmkeep.engine.teams.links import MOST_DEPTH
from swarmkeep.engine.tool_runners import ToolRunner
from swarmkeep.engine.toolbox.toolbox import NO_SERVERS, Toolbox

_RUN = "run"
_NO_OPTIONS = RunOptions()


class AgentsInMemory:
    """The agents that are asked by a session in memory.

    `choose_registry` gives the agents that the asked one knows, `make_policy` the policy of its loop, in which the
    agents that it asks itself are those given.
    """

    def __init__(
        self,
        model: Model,
        runner: ToolRunner,
        choose_registry: Callable[[Agent], Registry],
        make_policy: Callable[[AskedAgents], LoopPolicy],
        *,
        approvals: Approvals = NO_APPROVALS,
        options: RunOptions = _NO_OPTIONS,
        toolbox: Toolbox = NO_SERVERS,
    ) -> None:
        self._model = model
        self._runner = runner
        self._choose_registry = choose_registry
        self._make_policy = make_policy
        self._approvals = approvals
        self._options = options
        self._toolbox = toolbox
        self._depth = 0

    async def ask(self, state: State, tool: Tool, call: ToolCall, text: str) -> ToolOutcome:
        if self._depth >= MOST_DEPTH:
            return make_error(tool, f"was not asked: agents may ask one another up to {MOST_DEPTH} deep")
        assert isinstance(tool.asked_agent, Agent)
        registry = self._choose_registry(tool.asked_agent)
        name = registry.get(tool.asked_agent.name).name
        log = MemorySessionLog(approvals=replace(self._approvals, find_bare=make_approvals(registry).find_bare))
        made = create_session(name, state.context_variables, {}, ())
        await log.commit(lambda state: draft_events(name, made, None))
        message = {"role": "user", "content": text, "sender": call.agent or state.agent}
        asked = StartRun(run_id=_RUN, messages=(message,), options=self._options)
        begun = await log.commit(lambda state: start_run(state, asked))
        policy = self._make_policy(self._go_deeper())
        loop = make_loop(log, registry, self._model, self._runner, policy, begun, toolbox=self._toolbox)
        async with aclosing(loop.advance()) as items:
            async for _ in items:
                pass
        run = find_run(log.state, _RUN)
        assert run is not None
        return make_answer(tool, view_run("", log.state, run), state.context_variables)

    def _go_deeper(self) -> AskedAgents:
        deeper = copy(self)
        deeper._depth += 1
        return deeper

    async def cancel(self, state: State, call: ToolCall) -> None:
        """Nothing of it is left."""
