"""The loop: record what follows by itself, then ask the model or call a tool. Everything that runs, runs here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial

import msgspec

from swarmkeep.domain.checking.known_ids import find_call_ids
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.guardrails import leave_out_recorded, refuse_reply
from swarmkeep.domain.decisions.outputs import record_verdict
from swarmkeep.domain.decisions.settling import find_outside_step
from swarmkeep.domain.decisions.sizes import is_heavy
from swarmkeep.domain.decisions.steps import CallTool, CallTools, Compact
from swarmkeep.domain.decisions.turns import end_run, record_reply
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.domain.events import RunError, RunFailed, SessionEvent
from swarmkeep.domain.facts.records import read_usage, sum_usage
from swarmkeep.domain.messages import is_cut_end
from swarmkeep.domain.state import Run, State
from swarmkeep.engine.agents.guardrails import Guards
from swarmkeep.engine.agents.outputs import judge_reply
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.calls.started import Perform, StartedCalls, mask
from swarmkeep.engine.calls.together import RunTogether, run_together
from swarmkeep.engine.calls.tool_calls import ToolCalls
from swarmkeep.engine.compaction.summarising import attempt_summary, record_summary, start_compaction
from swarmkeep.engine.failpoints import MODEL_DELTA, reach
from swarmkeep.engine.models.model import Deltas, Model, Reply, TurnFailed, normalise_message
from swarmkeep.engine.models.reply_errors import MalformedReply
from swarmkeep.engine.policy import Decide, LoopPolicy, RunTimedOut, SessionLog, restrict_to_run
from swarmkeep.engine.streams.items import Item, MessageStarted
from swarmkeep.engine.tool_runners import ToolRunner
from swarmkeep.engine.toolbox.toolbox import NO_SERVERS, Toolbox
from swarmkeep.engine.turn import ModelTurn, Prepare, prepare_turn


class Loop:
    """Advances one session, run after run, until there is nothing left to do or somebody must be waited for.

    `prepare` gives the agent that is to be asked, as its model sees it; `perform` carries out a started call, and
    `together` several at once; `guards` asks what looks at an agent's input and replies; `toolbox` has what its model
    may call.

    It may be dropped at any `await` and begun anew elsewhere: what it needs to know is in the state. `begun` is what
    set it going: the calls that were started with it are this very loop's to carry out.
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
        guards: Guards,
        toolbox: Toolbox = NO_SERVERS,
        begun: Sequence[RecordedEvent] = (),
        together: RunTogether = run_together,
    ) -> None:
        self._log = log
        self._registry = registry
        self._model = model
        self._policy = policy
        self._prepare = prepare
        self._guards = guards
        self._toolbox = toolbox
        self._calls = StartedCalls(log, registry, policy, toolbox, perform, together, begun)
        self.client_error: Exception | None = None
        """The exception of the model's client, if a run has failed by it."""

    async def advance(self) -> AsyncGenerator[Item]:
        """Do what there is to do; gives every recorded event, and what the model says as it says it.

        Raises LeaseLost when another process has taken over.
        """
        while True:
            for event in self._calls.note_starts(await self._log.settle()):
                yield event
            run, step = self._log.state.run, find_outside_step(self._log.state)
            if run is None or step is None:
                return
            if isinstance(step, CallTool | Compact):
                called = self._calls.run(run, step.call) if isinstance(step, CallTool) else self._compact(run)
                for event in await called:
                    yield event
                continue
            if isinstance(step, CallTools):
                async with aclosing(self._calls.run_together(run, step.calls)) as events:
                    async for event in events:
                        yield event
                continue
            async with aclosing(self._ask_model(run)) as items:
                async for item in items:
                    yield item

    async def _ask_model(self, run: Run) -> AsyncGenerator[Item]:
        turn = ModelTurn(run, self._log.state, self._policy)
        try:
            async with self._policy.time_limit(run):
                for event in await self._prepare_turn(turn):
                    yield event
                if turn.request is not None and turn.is_streamed:
                    yield MessageStarted(run.id, turn.agent.name, turn.state.seq)
                while turn.request is not None:
                    async with turn.send(self._model, self._log.read_files) as pieces:
                        async for piece in pieces:
                            if isinstance(piece, Deltas):
                                await reach(MODEL_DELTA, visits=len(piece.deltas))
                                items = turn.show(piece)
                            else:
                                items = await self._record_reply(turn, piece)
                            for item in items:
                                yield item
                for event in await self._start_compaction(turn):
                    yield event
        except (TurnFailed, RunTimedOut) as failure:
            for event in await self._record_failure(turn, failure):
                yield event

    async def _start_compaction(self, turn: ModelTurn) -> list[RecordedEvent]:
        """Record the compaction that is to come before the model is asked, if one is."""
        fact = turn.compaction
        if fact is None:
            return []
        return await self._commit(
            restrict_to_run(turn.run, lambda state, run: start_compaction(turn.state, state, fact))
        )

    async def _compact(self, run: Run) -> list[RecordedEvent]:
        """Have the next part of the history summed up. Without a summary, the run goes on with what there is."""
        turn = ModelTurn(run, self._log.state, self._policy)
        try:
            async with self._policy.time_limit(run):
                await turn.prepare_agent(self._prepare)
                name = run.options.model or turn.profile.model
                fact, blobs = await attempt_summary(self._model, turn.state, name, self._policy.secrets)
        except (TurnFailed, RunTimedOut) as failure:
            return await self._record_failure(turn, failure)
        return await self._commit(
            restrict_to_run(run, lambda state, run: record_summary(turn.state, state, fact)), blobs
        )

    async def _prepare_turn(self, turn: ModelTurn) -> list[RecordedEvent]:
        """Make the request, unless a guardrail of the agent refuses what is new to it."""
        name = turn.state.agent
        agent = self._registry.get_active(name) if name in self._registry else None
        refused: list[RecordedEvent] = []
        if agent is not None and agent.input_guardrails:
            verdict = await self._guards.check_input(agent, turn.state, turn.run)
            facts = verdict.list_facts(agent.name)
            if facts:
                decide = restrict_to_run(turn.run, lambda state, run: leave_out_recorded(state, run, facts))
                refused = await self._commit(decide)
                turn.state = self._log.state
            if verdict.trip is not None or not _is_active(self._log.state, turn.run):
                return refused
        listed = await turn.list_tools(agent, self._toolbox, self._log) if agent is not None else []
        await turn.prepare(self._prepare)
        self._calls.asking_agent = turn.agent
        return [*refused, *listed]

    async def _record_reply(self, turn: ModelTurn, reply: Reply) -> list[Item]:
        assert turn.request is not None
        taken = find_call_ids(self._log.state.messages) if reply.message.get("tool_calls") else ()
        aside = is_heavy(reply.message)
        source = (turn.request.params["model"], turn.profile.server.host)
        masked = await mask(self._policy, reply.message, aside=aside)
        is_cut = is_cut_end(reply.completion)
        normalise = partial(normalise_message, masked, turn.agent.name, taken, source, is_cut=is_cut)
        message = await self._policy.run_aside(normalise) if aside else normalise()
        if turn.agent.output_guardrails:
            trip, text = await self._guards.check_reply(
                turn.agent, message, self._log.state.context_variables, turn.run.options
            )
            if trip is not None:
                refuse = turn.decide_once(
                    lambda state, run: refuse_reply(
                        turn.agent.name, trip, text, turn.describe_completion(reply.completion, state)
                    )
                )
                return [*await self._commit(restrict_to_run(turn.run, refuse), turn.request.blobs)]
        verdict = await judge_reply(turn.agent, turn.run, message, reply.completion, self._policy)
        tools = self._toolbox.list_tools(turn.agent, self._log.state).values()
        approvals = {tool.name for tool in tools if tool.requires_approval}
        bare = {tool.name for tool in tools if not tool.has_parameters} if approvals else ()
        expires_at = await self._policy.approval_expires_at() if approvals else None

        def decide(state: State, run: Run) -> list[SessionEvent]:
            completion = turn.describe_completion(reply.completion, state)
            facts = record_reply(run, message, completion, needs_approval=approvals, expires_at=expires_at, bare=bare)
            if verdict is None:
                return facts
            usage = sum_usage(run.usage, read_usage(reply.completion.usage))
            return facts + record_verdict(run, verdict, turn.agent.name, usage)

        try:
            record = restrict_to_run(turn.run, turn.decide_once(decide))
            recorded = await self._commit(record, turn.request.blobs, aside=aside)
            return [*turn.show_held(), *recorded]
        except InvalidRequest as refused:
            text = f"the model's answer cannot be recorded: {refused}"
            error = RunError(code=MalformedReply.code, message=text, retryable=MalformedReply.retryable)
            raise TurnFailed(error, turn.text) from refused

    async def _record_failure(self, turn: ModelTurn, failure: TurnFailed | RunTimedOut) -> list[RecordedEvent]:
        if isinstance(failure, TurnFailed):
            error, text, self.client_error = failure.error, failure.partial, failure.client_error
            reported, finish_reason = failure.usage, failure.finish_reason
        else:
            reported = finish_reason = None
            error, text = RunError(code="run_timeout", message=str(failure), retryable=True), turn.text
        if turn.is_held:
            # Cut off before its guardrails could look at it.
            text = ""
        error = msgspec.structs.replace(error, message=self._policy.secrets.mask(error.message))
        aside = is_heavy(text)
        partial = turn.make_partial(await mask(self._policy, text, aside=aside), finish_reason)

        def decide(state: State, run: Run) -> list[SessionEvent]:
            return end_run(state, run, RunFailed, "error", error, partial=partial, reported=reported)

        return await self._commit(restrict_to_run(turn.run, decide), aside=aside)

    async def _commit(self, decide: Decide, blobs: Json | None = None, *, aside: bool = False) -> list[RecordedEvent]:
        return self._calls.note_starts(await self._log.commit(decide, blobs, aside=aside))


def _is_active(state: State, run: Run) -> bool:
    """Return whether a run still goes on: it may have been cancelled meanwhile."""
    return state.run is not None and state.run.id == run.id and state.run.status == "running"


def make_loop(
    log: SessionLog,
    registry: Registry,
    model: Model,
    runner: ToolRunner,
    policy: LoopPolicy,
    begun: Sequence[RecordedEvent] = (),
    *,
    toolbox: Toolbox = NO_SERVERS,
    trace_calls: Callable[[Perform], Perform] | None = None,
) -> Loop:
    """The loop that asks a registry's agents and calls their tools."""
    prepare = partial(prepare_turn, registry, runner, toolbox=toolbox)
    perform: Perform = ToolCalls(registry, runner, policy, toolbox).perform
    if trace_calls is not None:
        perform = trace_calls(perform)
    guards = Guards(runner, policy)
    return Loop(
        log, registry, model, policy, prepare=prepare, perform=perform, guards=guards, toolbox=toolbox, begun=begun
    )
