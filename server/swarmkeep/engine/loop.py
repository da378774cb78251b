"""The loop: record what follows by itself, then ask the model or call a tool. Everything that runs, runs here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import msgspec

from swarmkeep.agent import Agent, Tool
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.drafts import draft_events
from swarmkeep.domain.decisions.settling import find_outside_step
from swarmkeep.domain.decisions.sizes import is_heavy
from swarmkeep.domain.decisions.steps import CallTool
from swarmkeep.domain.decisions.turns import (
    ToolOutcome,
    end_run,
    record_reply,
    record_result,
    request_approval,
    restart_tool,
)
from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.domain.events import RunError, RunFailed, SessionEvent, ToolStarted
from swarmkeep.domain.state import Run, State, ToolCall
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.failpoints import MODEL_DELTA, TOOL_DONE, reach
from swarmkeep.engine.models.model import Delta, Model, Reply, TurnFailed, normalise_message
from swarmkeep.engine.models.reply_errors import MalformedReply
from swarmkeep.engine.policy import Decide, LoopPolicy, RunTimedOut, SessionLog
from swarmkeep.engine.tool_calls import fit_outcome, make_unknown_outcome, perform_call
from swarmkeep.engine.tool_runners import ToolRunner
from swarmkeep.engine.turn import ModelTurn, Prepare, prepare_turn

T = TypeVar("T")


class MessageStarted(msgspec.Struct, frozen=True):
    """A model call has begun on the history up to `seq`; what it says follows as deltas."""

    run_id: str
    agent: str
    seq: int


class MessageDelta(msgspec.Struct, frozen=True):
    """A piece of what a model says on the history up to `seq`; passing, never recorded."""

    run_id: str
    agent: str
    seq: int
    delta: Json


Item = RecordedEvent | MessageStarted | MessageDelta

Perform = Callable[[State, Agent | None, Tool | None, ToolCall], Awaitable[ToolOutcome]]


class Loop:
    """Advances one session, run after run, until there is nothing left to do or somebody must be waited for.

    `prepare` gives the agent that is to be asked, as its model sees it; `perform` carries out a started call.

    It may be dropped at any `await` and begun anew elsewhere: what it needs to know is in the state. `_own_starts`
    are the calls whose start was recorded for this very loop to carry out, by itself or by the commit that set it
    going (`begun`), and that it has not carried out yet; a started call that is not among them was cut off, and its
    outcome is unknown.
    """

    def __init__(
        self,
        log: SessionLog,
        registry: Registry,
        model: Model,
        policy: LoopPolicy,
        *,
        prepare: Prepare,
        perform: Perform,
        begun: Sequence[RecordedEvent] = (),
    ) -> None:
        self._log = log
        self._registry = registry
        self._model = model
        self._policy = policy
        self._prepare = prepare
        self._perform = perform
        self._own_starts = _find_started_calls(begun)
        self._asking_agent: Agent | None = None
        self.client_error: Exception | None = None
        """The exception of the model's client, if a run has failed by it."""

    async def advance(self) -> AsyncGenerator[Item]:
        """Do what there is to do; gives every recorded event, and what the model says as it says it.

        Raises LeaseLost when another process has taken over.
        """
        while True:
            for event in self._note_starts(await self._log.settle()):
                yield event
            run, step = self._log.state.run, find_outside_step(self._log.state)
            if run is None or step is None:
                return
            if isinstance(step, CallTool):
                for event in await self._run_call(run, step.call):
                    yield event
                continue
            async with aclosing(self._ask_model(run)) as items:
                async for item in items:
                    yield item

    async def _ask_model(self, run: Run) -> AsyncGenerator[Item]:
        turn = ModelTurn(run, self._log.state, self._policy)
        try:
            async with self._policy.time_limit(run):
                await turn.prepare(self._prepare)
                self._asking_agent = turn.agent
                if turn.is_streamed:
                    yield MessageStarted(run.id, turn.agent.name, turn.state.seq)
                while turn.request is not None:
                    async with turn.send(self._model) as pieces:
                        async for piece in pieces:
                            if isinstance(piece, Delta):
                                reach(MODEL_DELTA)
                                turn.add(piece)
                                yield MessageDelta(run.id, turn.agent.name, turn.state.seq, piece.delta)
                            else:
                                for event in await self._record_reply(turn, piece):
                                    yield event
        except (TurnFailed, RunTimedOut) as failure:
            for event in await self._record_failure(turn, failure):
                yield event

    async def _record_reply(self, turn: ModelTurn, reply: Reply) -> list[RecordedEvent]:
        assert turn.request is not None
        taken = _list_call_ids(self._log.state) if reply.message.get("tool_calls") else ()
        aside = is_heavy(reply.message)
        message = normalise_message(await self._mask(reply.message, aside), turn.agent.name, taken)
        approvals = {name for name, tool in turn.agent.tools().items() if tool.requires_approval}
        expires_at = await self._policy.approval_expires_at() if approvals else None

        def decide(state: State, run: Run) -> list[SessionEvent]:
            if run.turns != turn.run.turns:
                # It is recorded: an attempt that failed was made after all.
                return []
            return record_reply(run, message, reply.completion, needs_approval=approvals, expires_at=expires_at)

        try:
            return await self._commit(_restrict_to_run(turn.run, decide), turn.request.blobs, aside=aside)
        except InvalidRequest as refused:
            text = f"the model's answer cannot be recorded: {refused}"
            error = RunError(code=MalformedReply.code, message=text, retryable=MalformedReply.retryable)
            raise TurnFailed(error, turn.text) from refused

    async def _record_failure(self, turn: ModelTurn, failure: TurnFailed | RunTimedOut) -> list[RecordedEvent]:
        if isinstance(failure, TurnFailed):
            error, text, self.client_error = failure.error, failure.partial, failure.client_error
        else:
            error, text = RunError(code="run_timeout", message=str(failure), retryable=True), turn.text
        error = msgspec.structs.replace(error, message=self._policy.secrets.mask(error.message))
        aside = is_heavy(text)
        partial = turn.make_partial(await self._mask(text, aside))

        def decide(state: State, run: Run) -> list[SessionEvent]:
            return end_run(state, run, RunFailed, "error", error, partial=partial)

        return await self._commit(_restrict_to_run(turn.run, decide), aside=aside)

    async def _run_call(self, run: Run, call: ToolCall) -> list[RecordedEvent]:
        agent = self._find_calling_agent(call.agent or self._log.state.agent)
        tool = None if agent is None else agent.tools().get(call.name)
        if (call.id, call.attempts) in self._own_starts:
            self._own_starts.discard((call.id, call.attempts))
            outcome = await self._mask_outcome(await self._perform(self._log.state, agent, tool, call))
            reach(TOOL_DONE)
        elif tool is not None and tool.idempotent:
            return await self._commit(_restrict_to_run(run, await self._decide_restart(tool, call), call.agent))
        else:
            outcome = make_unknown_outcome(call)

        def decide(state: State, run: Run) -> list[SessionEvent]:
            return record_result(state, run, call, fit_outcome(state, call, outcome, self._policy.sizes))

        changes = outcome.patch or outcome.nulls
        aside = is_heavy(outcome) or (bool(changes) and is_heavy(self._log.state.context_variables))
        return await self._commit(_restrict_to_run(run, decide), aside=aside)

    async def _mask(self, value: T, aside: bool) -> T:
        mask = partial(self._policy.secrets.mask, value)
        return await self._policy.run_aside(mask) if aside else mask()

    async def _mask_outcome(self, outcome: ToolOutcome) -> ToolOutcome:
        parts: list[Any] = [outcome.content, outcome.patch, list(outcome.nulls)]
        content, patch, nulls = await self._mask(parts, is_heavy(parts))
        return msgspec.structs.replace(outcome, content=content, patch=patch, nulls=tuple(nulls))

    async def _decide_restart(self, tool: Tool, call: ToolCall) -> Callable[[State, Run], list[SessionEvent]]:
        """Start an idempotent call again, once it is approved if that is needed by now."""
        if call.approval == "approve" or not (tool.requires_approval or call.imported):
            return lambda state, run: restart_tool(run, call)
        expires_at = await self._policy.approval_expires_at()
        return lambda state, run: [request_approval(call, expires_at)]

    def _find_calling_agent(self, name: str) -> Agent | None:
        # In one process agents may share a name: then only memory tells which of them asked.
        if self._asking_agent is not None and self._asking_agent.name == name:
            return self._asking_agent
        return self._registry.get_active(name) if name in self._registry else None

    async def _commit(self, decide: Decide, blobs: Json | None = None, *, aside: bool = False) -> list[RecordedEvent]:
        return self._note_starts(await self._log.commit(decide, blobs, aside=aside))

    def _note_starts(self, events: list[RecordedEvent]) -> list[RecordedEvent]:
        self._own_starts |= _find_started_calls(events)
        return events


def make_loop(
    log: SessionLog,
    registry: Registry,
    model: Model,
    runner: ToolRunner,
    policy: LoopPolicy,
    begun: Sequence[RecordedEvent] = (),
    *,
    trace_calls: Callable[[Perform], Perform] | None = None,
) -> Loop:
    """The loop that asks a registry's agents and calls their tools."""
    prepare = partial(prepare_turn, registry, runner)
    perform: Perform = partial(perform_call, registry, runner, policy)
    if trace_calls is not None:
        perform = trace_calls(perform)
    return Loop(log, registry, model, policy, prepare=prepare, perform=perform, begun=begun)


def _find_started_calls(events: Sequence[RecordedEvent]) -> set[tuple[str, int]]:
    facts = (event.fact for event in events)
    return {(fact.tool_call_id, fact.attempt) for fact in facts if isinstance(fact, ToolStarted)}


def _list_call_ids(state: State) -> set[str]:
    """Every tool call id of the session so far."""
    asking = (entry for entry in state.messages if entry.role == "assistant" and entry.message.get("tool_calls"))
    return {call_id for entry in asking for call_id in entry.call_ids}


def _restrict_to_run(run: Run, decide: Callable[[State, Run], list[SessionEvent]], agent: str = "") -> Decide:
    """Decide for this run only: once it was cancelled or replaced, there is nothing more to say.

    `agent` is the one whose doing it is, if not the active one's.
    """

    def decide_for_run(state: State) -> list[EventDraft] | None:
        if state.run is None or state.run.id != run.id or state.run.status != "running":
            return None
        return draft_events(agent or state.agent, decide(state, state.run), run.id)

    return decide_for_run
