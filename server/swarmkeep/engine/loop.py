"""The loop: record what follows by itself, then ask the model or call a tool. Everything that runs, runs here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec

from swarmkeep.agent import Agent, FunctionSchemaError, InvalidFunctionError, Tool
from swarmkeep.domain.decisions.drafts import draft_events
from swarmkeep.domain.decisions.settling import find_outside_step
from swarmkeep.domain.decisions.steps import CallTool
from swarmkeep.domain.decisions.turns import ToolOutcome, end_run, record_reply, record_result, start_tool
from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.errors import AgentUnavailable
from swarmkeep.domain.events import RunError, RunFailed, SessionEvent, ToolStarted
from swarmkeep.domain.request import ModelRequest, Profile, build_request
from swarmkeep.domain.state import Run, State, ToolCall
from swarmkeep.domain.window import count_turns
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.failpoints import MODEL_DELTA, MODEL_SENT, TOOL_DONE, reach
from swarmkeep.engine.models.failures import CONTEXT_TOO_LONG
from swarmkeep.engine.models.model import Delta, Model, Reply, TurnFailed, normalise_message
from swarmkeep.engine.policy import Decide, LoopPolicy, RunTimedOut, SessionLog
from swarmkeep.engine.tool_calls import make_unknown_outcome, perform_call
from swarmkeep.engine.tool_runners import ToolRunner

Json = dict[str, Any]


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

# Raises TurnFailed where the agent cannot be asked.
Prepare = Callable[[State], Awaitable[tuple[Agent, Profile]]]
Perform = Callable[[State, Agent | None, Tool | None, ToolCall], Awaitable[ToolOutcome]]


class Loop:
    """Advances one session, run after run, until there is nothing left to do or somebody must be waited for.

    `prepare` gives the agent that is to be asked, as its model sees it; `perform` carries out a started call.

    It may be dropped at any `await` and begun anew elsewhere: what it needs to know is in the state. `fresh` holds
    the calls whose start was recorded for this very loop to carry out, by itself or by the commit that set it going
    (`begun`), and that it has not carried out yet; a started call that is not among them was cut off, and its outcome
    is unknown.
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
        said: list[str] = []
        try:
            async with self._policy.time_limit(run), aclosing(self._run_turn(run)) as items:
                async for item in items:
                    if isinstance(item, MessageDelta):
                        said.append(item.delta.get("content") or "")
                    yield item
        except (TurnFailed, RunTimedOut) as failed:
            error = failed.error if isinstance(failed, TurnFailed) else _make_timeout_error(failed)
            partial = failed.partial if isinstance(failed, TurnFailed) else "".join(said)

            def fail(state: State, run: Run) -> list[SessionEvent]:
                return end_run(state, run, RunFailed, "error", error, partial=partial)

            for event in await self._commit(_restrict_to_run(run, fail)):
                yield event

    async def _run_turn(self, run: Run) -> AsyncGenerator[Item]:
        stream = self._policy.streams(run)
        state = self._log.state
        agent, profile = await self._prepare(state)
        self._asking_agent = agent
        if stream:
            yield MessageStarted(run.id, agent.name, state.seq)
        asked: ModelRequest | None = build_request(state, profile, stream=stream)
        while asked is not None:
            try:
                async with aclosing(self._send_request(run, agent, asked, stream)) as items:
                    async for item in items:
                        yield item
                return
            except TurnFailed as failed:
                turns = self._reduce_turns(asked, failed)
                if turns is None:
                    raise
                asked = build_request(state, profile, stream=stream, turns=turns)

    def _reduce_turns(self, asked: ModelRequest, failed: TurnFailed) -> int | None:
        """How much of the history to try next with a model that it was too long for: half, down to the last turn."""
        if not self._policy.shortens_history or failed.error.code != CONTEXT_TOO_LONG:
            return None
        return count_turns(asked.entries) // 2 or None

    async def _send_request(self, run: Run, agent: Agent, asked: ModelRequest, stream: bool) -> AsyncGenerator[Item]:
        seq = self._log.state.seq
        reach(MODEL_SENT)
        async with aclosing(self._model.ask(asked, stream=stream)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Delta):
                    reach(MODEL_DELTA)
                    yield MessageDelta(run.id, agent.name, seq, piece.delta)
                    continue
                for event in await self._record_reply(run, agent, asked, piece):
                    yield event

    async def _record_reply(self, run: Run, agent: Agent, asked: ModelRequest, reply: Reply) -> list[RecordedEvent]:
        taken = _list_call_ids(self._log.state) if reply.message.get("tool_calls") else ()
        message = normalise_message(reply.message, agent.name, taken)
        tools = agent.tools()
        approvals = {name for name, tool in tools.items() if tool.requires_approval}
        expires_at = self._policy.approval_expires_at() if approvals else None

        def decide(state: State, run: Run) -> list[SessionEvent]:
            return record_reply(run, message, reply.completion, needs_approval=approvals, expires_at=expires_at)

        return await self._commit(_restrict_to_run(run, decide), asked.blobs)

    async def _run_call(self, run: Run, call: ToolCall) -> list[RecordedEvent]:
        agent = self._find_calling_agent(self._log.state.agent)
        tool = None if agent is None else agent.tools().get(call.name)
        if (call.id, call.attempts) in self._own_starts:
            self._own_starts.discard((call.id, call.attempts))
            outcome = await self._perform(self._log.state, agent, tool, call)
            reach(TOOL_DONE)
        elif tool is not None and tool.idempotent:
            return await self._commit(_restrict_to_run(run, lambda state, run: [start_tool(call)]))
        else:
            outcome = make_unknown_outcome(call)
        return await self._commit(_restrict_to_run(run, lambda state, run: record_result(state, run, call, outcome)))

    def _find_calling_agent(self, name: str) -> Agent | None:
        # In one process agents may share a name: a call is for the one that asked, not for the one handed over to.
        if self._asking_agent is not None and self._asking_agent.name == name:
            return self._asking_agent
        return self._registry.active(name) if name in self._registry else None

    async def _commit(self, decide: Decide, blobs: Json | None = None) -> list[RecordedEvent]:
        return self._note_starts(await self._log.commit(decide, blobs))

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
) -> Loop:
    """The loop that asks a registry's agents and calls their tools."""
    prepare = partial(prepare_turn, registry, runner)
    perform = partial(perform_call, registry, runner, policy)
    return Loop(log, registry, model, policy, prepare=prepare, perform=perform, begun=begun)


async def prepare_turn(registry: Registry, runner: ToolRunner, state: State) -> tuple[Agent, Profile]:
    """The active agent, as its model is to see it now. Raises TurnFailed."""
    try:
        agent = registry.active(state.agent)
        profile = await registry.make_profile(agent, state.context_variables, runner)
    except AgentUnavailable as error:
        raise TurnFailed(RunError(code=error.code, message=str(error))) from error
    except (FunctionSchemaError, InvalidFunctionError) as error:
        raise TurnFailed(RunError(code="agent_invalid", message=str(error))) from error
    except Exception as error:
        text = f"the instructions of {state.agent!r} failed: {type(error).__name__}: {error}"
        raise TurnFailed(RunError(code="instructions_failed", message=text)) from error
    return agent, profile


def _make_timeout_error(over: RunTimedOut) -> RunError:
    return RunError(code="run_timeout", message=str(over), retryable=True)


def _find_started_calls(events: Sequence[RecordedEvent]) -> set[tuple[str, int]]:
    facts = (event.fact for event in events)
    return {(fact.tool_call_id, fact.attempt) for fact in facts if isinstance(fact, ToolStarted)}


def _list_call_ids(state: State) -> set[str]:
    """Every tool call id of the session so far."""
    asking = (entry for entry in state.messages if entry.role == "assistant" and entry.message.get("tool_calls"))
    return {call_id for entry in asking for call_id in entry.call_ids}


def _restrict_to_run(run: Run, decide: Callable[[State, Run], list[SessionEvent]]) -> Decide:
    """Decide for this run only: once it was cancelled or replaced, there is nothing more to say."""

    def guarded(state: State) -> list[EventDraft] | None:
        if state.run is None or state.run.id != run.id or state.run.status != "running":
            return None
        return draft_events(state.agent, decide(state, state.run), run.id)

    return guarded
