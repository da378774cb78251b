"""The calls whose starts are recorded: carried out, alone or at once, and their results recorded."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import msgspec

from swarmkeep.agent import Agent, Tool
from swarmkeep.domain.decisions.cut_calls import find_last_reply, is_cut
from swarmkeep.domain.decisions.outputs import Verdict, record_verdict
from swarmkeep.domain.decisions.sizes import is_heavy
from swarmkeep.domain.decisions.turns import (
    ToolOutcome,
    record_result,
    record_waits,
    request_approval,
    restart_tool,
)
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import QuotaExceeded
from swarmkeep.domain.events import SessionEvent
from swarmkeep.domain.state import Run, State, ToolCall
from swarmkeep.engine.agents.outputs import find_called_output, judge_calls
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.calls.together import RunTogether
from swarmkeep.engine.calls.tool_calls import find_started_calls, fit_outcome, goes_on, make_unknown_outcome
from swarmkeep.engine.failpoints import TOOL_DONE, reach
from swarmkeep.engine.policy import Decide, LoopPolicy, SessionLog, restrict_to_run
from swarmkeep.engine.toolbox.toolbox import Toolbox

T = TypeVar("T")
Wait = tuple[ToolCall, ToolOutcome]
Perform = Callable[[State, Agent | None, Tool | None, ToolCall], Awaitable[ToolOutcome]]


class StartedCalls:
    """Carries out calls for a loop. `perform` does one, `together` several at once.

    `_own_starts` are the calls whose start was recorded for this very loop to carry out, by itself or by the commit
    that set it going (`begun`), and that it has not carried out yet; a started call that is not among them was cut
    off, and its outcome is unknown.
    """

    def __init__(
        self,
        log: SessionLog,
        registry: Registry,
        policy: LoopPolicy,
        toolbox: Toolbox,
        perform: Perform,
        together: RunTogether,
        begun: Sequence[RecordedEvent],
    ) -> None:
        self.asking_agent: Agent | None = None
        """The agent whose model was asked last."""
        self._log = log
        self._registry = registry
        self._policy = policy
        self._toolbox = toolbox
        self._perform = perform
        self._together = together
        self._own_starts = find_started_calls(begun)

    def note_starts(self, events: list[RecordedEvent]) -> list[RecordedEvent]:
        """The events, once it is known which calls they start."""
        self._own_starts |= find_started_calls(events)
        return events

    async def run_together(self, run: Run, calls: Sequence[ToolCall]) -> AsyncGenerator[RecordedEvent]:
        """Carry out calls at once, once it is known of each that it was not cut off; each result is recorded as it
        comes. The run waits for those that wait for somebody once nothing else is under way."""
        alone = next((call for call in calls if not self._is_carried_out(call, self._find_tool(call)[1])), None)
        if alone is not None:
            for event in await self.run(run, alone):
                yield event
            return
        known = 0
        while True:
            waiting: list[Wait] = []
            async with aclosing(self._carry_out(run, calls, waiting)) as events:
                async for event in events:
                    yield event
            if not (waiting and self._is_going_on(run)):
                return
            if len(waiting) == known:
                break
            # What they wait for may have been decided while others were under way: they are looked at again.
            known, waiting_ids = len(waiting), {call.id for call, _ in waiting}
            calls = [call for call in calls if call.id in waiting_ids]
        outcomes = {call.id: outcome for call, outcome in waiting}
        in_order = [(call, outcomes[call.id]) for call in calls]
        for event in await self._commit(restrict_to_run(run, lambda state, run: record_waits(run, in_order))):
            yield event

    async def _carry_out(
        self, run: Run, calls: Sequence[ToolCall], waiting: list[Wait]
    ) -> AsyncGenerator[RecordedEvent]:
        """Record what comes of calls; those that come to wait for somebody are added to `waiting`."""
        self._own_starts -= {(call.id, call.attempts) for call in calls}
        before = self._log.state

        async def carry_out(call: ToolCall) -> ToolOutcome:
            agent, tool = self._find_tool(call)
            return await self._mask_outcome(await self._perform(before, agent, tool, call))

        async with aclosing(self._together(calls, carry_out)) as outcomes:
            async for call, outcome in outcomes:
                if outcome.waits:
                    waiting.append((call, outcome))
                    continue
                await reach(TOOL_DONE)
                for event in await self._record_outcome(run, call, outcome):
                    yield event
                if not self._is_going_on(run):
                    return

    def _is_going_on(self, run: Run) -> bool:
        current = self._log.state.run
        return current is not None and current.id == run.id and current.status == "running"

    def _find_tool(self, call: ToolCall) -> tuple[Agent | None, Tool | None]:
        agent = self._find_calling_agent(call.agent or self._log.state.agent)
        return agent, None if agent is None else self._toolbox.list_tools(agent, self._log.state).get(call.name)

    async def run(self, run: Run, call: ToolCall) -> list[RecordedEvent]:
        """Carry out a call, or record what becomes of one that was cut off."""
        agent, tool = self._find_tool(call)
        if agent is not None and (output := find_called_output(agent, run, call)) is not None:
            return await self._take_output(run, call, await judge_calls(agent, output, (call,), self._policy))
        if self._is_carried_out(call, tool):
            self._own_starts.discard((call.id, call.attempts))
            outcome = await self._mask_outcome(await self._perform(self._log.state, agent, tool, call))
            await reach(TOOL_DONE)
        elif tool is not None and tool.idempotent and not self._was_cut(run, tool, call):
            return await self._commit(restrict_to_run(run, await self._decide_restart(tool, call), call.agent))
        else:
            outcome = make_unknown_outcome(call)
        return await self._record_outcome(run, call, outcome)

    def _was_cut(self, run: Run, tool: Tool, call: ToolCall) -> bool:
        """Return whether a call that an earlier release started was cut by the end of its reply."""
        reply = find_last_reply(self._log.state, run)
        return reply is not None and is_cut(run, reply, call, () if tool.has_parameters else (call.name,))

    def _is_carried_out(self, call: ToolCall, tool: Tool | None) -> bool:
        """Whether a call was not cut off, or goes on where it was."""
        return (call.id, call.attempts) in self._own_starts or goes_on(tool, call)

    async def _record_outcome(self, run: Run, call: ToolCall, outcome: ToolOutcome) -> list[RecordedEvent]:
        """Record what came of a call. Its files are left out where the tenant may not have them: what a run has done is
        recorded in any case."""
        try:
            return await self._commit_outcome(run, call, outcome)
        except QuotaExceeded as error:
            return await self._commit_outcome(run, call, outcome.leave_out_files(str(error)))

    async def _commit_outcome(self, run: Run, call: ToolCall, outcome: ToolOutcome) -> list[RecordedEvent]:
        def decide(state: State, run: Run) -> list[SessionEvent]:
            return record_result(state, run, call, fit_outcome(state, run, call, outcome, self._policy.sizes))

        current = self._log.state.run or run
        has_changes = outcome.change is not None or any(other.held is not None for other in current.calls)
        aside = is_heavy(outcome) or (has_changes and is_heavy(self._log.state.context_variables))
        files = outcome.file_content
        return await self._commit(restrict_to_run(run, decide), files, aside=aside, within_quota=bool(files))

    async def _take_output(self, run: Run, call: ToolCall, verdict: Verdict) -> list[RecordedEvent]:
        """Record what becomes of a call that gives the output, where a reply was parted from it: nothing is done by it,
        so it is no matter whether it was started before."""

        def decide(state: State, run: Run) -> list[SessionEvent]:
            if not any(open_call.id == call.id for open_call in run.open_calls):
                return []
            return record_verdict(run, verdict, state.agent, run.usage)

        return await self._commit(restrict_to_run(run, decide, call.agent))

    async def _mask_outcome(self, outcome: ToolOutcome) -> ToolOutcome:
        parts: list[Any] = [outcome.content, outcome.patch, list(outcome.nulls), outcome.values, list(outcome.files)]
        content, patch, nulls, values, files = await mask(self._policy, parts, aside=is_heavy(parts))
        return msgspec.structs.replace(
            outcome, content=content, patch=patch, nulls=tuple(nulls), values=values, files=tuple(files)
        )

    async def _decide_restart(self, tool: Tool, call: ToolCall) -> Callable[[State, Run], list[SessionEvent]]:
        """Start an idempotent call again, once it is approved if that is needed by now."""
        if call.approval == "approve" or not (tool.requires_approval or call.imported):
            return lambda state, run: restart_tool(run, call)
        expires_at = await self._policy.approval_expires_at()
        return lambda state, run: [request_approval(call, expires_at)]

    def _find_calling_agent(self, name: str) -> Agent | None:
        # In one process agents may share a name: then only memory tells which of them asked.
        if self.asking_agent is not None and self.asking_agent.name == name:
            return self.asking_agent
        return self._registry.get_active(name) if name in self._registry else None

    async def _commit(
        self,
        decide: Decide,
        files: Mapping[str, bytes] | None = None,
        *,
        aside: bool = False,
        within_quota: bool = False,
    ) -> list[RecordedEvent]:
        return self.note_starts(await self._log.commit(decide, files, aside=aside, within_quota=within_quota))


async def mask(policy: LoopPolicy, value: T, *, aside: bool) -> T:
    """What somebody sent, without what is secret."""
    work = partial(policy.secrets.mask, value)
    return await policy.run_aside(work) if aside else work()
