"""The loop: record what follows by itself, then ask the model or call a tool. Everything that runs, runs here."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from swarmkeep.agent import Agent, FunctionSchemaError, InvalidFunctionError
from swarmkeep.agent.output import OutputTypeError
from swarmkeep.decide.settle import find_outside_step
from swarmkeep.decide.steps import CallTool, CallTools, Compact
from swarmkeep.decide.turns import end_run, leave_out_recorded, record_reply, record_verdict, refuse_reply
from swarmkeep.events.codec import Json
from swarmkeep.events.errors import (
    AgentUnavailable,
    InvalidRequest,
    Overloaded,
    QuotaExceeded,
    SeqConflict,
    SessionDamaged,
)
from swarmkeep.events.facts import CompactionStarted, RecordedEvent, RunError, RunFailed, SessionEvent
from swarmkeep.events.messages import is_cut_end
from swarmkeep.events.records import CompletionRecord, read_usage, sum_usage
from swarmkeep.events.sizes import is_heavy
from swarmkeep.events.state import NOTHING_SAID, PartialReply, Run, State, find_call_ids
from swarmkeep.logs import outage_log
from swarmkeep.models.failures import CONTEXT_TOO_LONG, MalformedReply
from swarmkeep.models.model import Deltas, Model, Reply, TurnFailed, normalise_message
from swarmkeep.request.request import (
    ModelRequest,
    Profile,
    build_request,
    choose_rules,
    count_turns,
    measure_new_history,
)
from swarmkeep.runs import identifiers
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.calls import Perform, RunTogether, StartedCalls, ToolCalls, mask, run_together
from swarmkeep.runs.guardrails import Guards, judge_reply
from swarmkeep.runs.hub import Item, MessageDeltas, MessageStarted, join_text, merge_texts
from swarmkeep.runs.identifiers import MODEL_DELTA, MODEL_SENT, reach
from swarmkeep.runs.policy import Decide, DecideOnRun, LoopPolicy, RunTimedOut, SessionLog, restrict_to_run
from swarmkeep.runs.summaries import attempt_summary, find_compaction, record_summary, start_compaction
from swarmkeep.runs.tool_runners import ToolRunner
from swarmkeep.runs.toolbox import NO_SERVERS, Toolbox
from swarmkeep.store.records import AppendResult, OutcomeUnknown, SchemaBehind, StoreUnavailable

# One turn of a run: the agent that is asked, the request, and what its model says.

# Of no more, all is encoded within a few milliseconds.
_FEW_MESSAGES = 500
_FEW_BYTES = 200_000

# Files by their hashes.
ReadFiles = Callable[[Sequence[str]], Awaitable[Mapping[str, bytes]]]
# Raises TurnFailed where the agent cannot be asked.
Prepare = Callable[[State], Awaitable[tuple[Agent, Profile]]]


class ModelTurn:
    """One question to the model: what it is sent, and what it says."""

    agent: Agent
    profile: Profile

    def __init__(self, run: Run, state: State, policy: LoopPolicy) -> None:
        self.run = run
        self.state = state
        self.is_streamed = policy.should_stream(run)
        self.request: ModelRequest | None = None
        """The request to send next; none once it was answered."""
        self.compaction: CompactionStarted | None = None
        """What is to be made of the history before the model is asked."""
        self._policy = policy
        self._said: list[Json] = []

    @property
    def text(self) -> str:
        """The text that has come of it so far."""
        return join_text(self._said)

    async def prepare_agent(self, prepare: Prepare) -> None:
        try:
            await self._policy.check_tokens_left()
        except QuotaExceeded as error:
            raise TurnFailed(RunError(code=error.code, message=str(error), retryable=True)) from error
        self.agent, self.profile = await prepare(self.state)

    async def list_tools(self, agent: Agent, toolbox: Toolbox, log: SessionLog) -> list[RecordedEvent]:
        """Record what the agent's servers offer, where that is not what the session has recorded."""
        facts, texts = await toolbox.list_anew(agent, self.state) if agent.mcp_servers else ([], {})
        if not facts:
            return []
        listed = await log.commit(restrict_to_run(self.run, lambda state, run: facts), texts)
        self.state = log.state
        return listed

    async def plan_compaction(self, *, is_too_long: bool = False) -> None:
        """Have the history made shorter first, if the agent's settings ask for that now."""
        request = self.request
        if request is None or self.agent.compaction is None or not self._policy.compacts_history:
            return
        find = partial(find_compaction, self.agent, self.state, request, is_too_long=is_too_long)
        is_long = len(self.state.messages) > _FEW_MESSAGES
        self.compaction = await self._policy.run_aside(find) if is_long else find()
        if self.compaction is not None:
            self.request = None

    async def make_request(self, turns: int | None = None) -> None:
        state = self.state
        build = partial(build_request, state, self.profile, stream=self.is_streamed, turns=turns)
        is_long = len(state.messages) > _FEW_MESSAGES or state.size > _FEW_BYTES
        if is_long:
            messages, size = measure_new_history(state, choose_rules(state, self.profile))
            is_long = messages > _FEW_MESSAGES or size > _FEW_BYTES
        self.request = await self._policy.run_aside(build) if is_long else build()

    @asynccontextmanager
    async def send(self, model: Model, read_files: ReadFiles) -> AsyncGenerator[AsyncGenerator[Deltas | Reply]]:
        """The pieces of the answer. If the history was too long for the model, a shorter request is to be sent next, or
        a compaction comes first."""
        request = self.request
        assert request is not None
        sent = await attach_files(request, read_files, self._policy)
        await reach(MODEL_SENT)
        try:
            async with aclosing(model.ask(sent, stream=self.is_streamed)) as pieces:
                yield pieces
            self.request = None
        except TurnFailed as failure:
            if failure.error.code == CONTEXT_TOO_LONG:
                await self.plan_compaction(is_too_long=True)
            if self.compaction is not None:
                return
            turns = self._reduce_turns(request, failure)
            if turns is None:
                raise
            await self.make_request(turns)

    def _reduce_turns(self, request: ModelRequest, failure: TurnFailed) -> int | None:
        """Return how many turns of the history to try next with a model that it was too long for: half, down to the
        last turn."""
        if not self._policy.shortens_history or failure.error.code != CONTEXT_TOO_LONG:
            return None
        # Without those that are made up for it.
        return count_turns([entry for entry in request.entries if entry.seq]) // 2 or None

    def describe_completion(self, completion: CompletionRecord, state: State) -> CompletionRecord:
        """Describe the reply to be recorded in `state`: the log may not be what its request was made of any more."""
        if completion.request is None or state.last_change <= self.state.seq:
            return completion
        return replace(completion, request=replace(completion.request, history_upto=self.state.seq))

    def make_partial(self, text: str, finish_reason: str | None = None) -> PartialReply:
        """The reply that was cut off with this text, and what its provider said of that."""
        if not text:
            return NOTHING_SAID
        return PartialReply(
            run_id=self.run.id, seq=self.state.seq, agent=self.agent.name, text=text, finish_reason=finish_reason
        )

    @property
    def is_held(self) -> bool:
        """True if nothing is shown before the agent's guardrails have looked at the whole reply."""
        return self.request is not None and bool(self.agent.output_guardrails)

    async def show(self, said: Deltas) -> list[Item]:
        """Keep pieces; what may be shown of them at once."""
        if identifiers.armed_points:
            await reach(MODEL_DELTA, visits=len(said.deltas))
        self._said += said.deltas
        if self.agent.output_guardrails:
            return []
        return [MessageDeltas(self.run.id, self.agent.name, self.state.seq, said.deltas)]

    def show_held(self) -> list[Item]:
        """Return the items that were held back, with texts that follow each other in one piece."""
        deltas = merge_texts(self._said) if self.is_held else []
        return [MessageDeltas(self.run.id, self.agent.name, self.state.seq, deltas)] if deltas else []

    def decide_once(self, decide: DecideOnRun) -> DecideOnRun:
        """Return the decision on the reply; nothing where it is recorded: an attempt that failed was made after all."""
        return lambda state, run: [] if run.turns != self.run.turns else decide(state, run)


async def attach_files(request: ModelRequest, read_files: ReadFiles, policy: LoopPolicy) -> ModelRequest:
    """The request with the files that its messages refer to. They are in memory for as long as it is."""
    names = request.file_names
    if not names:
        return request
    sent = replace(request, files=await read_files(names))
    # Megabytes: no other task waits while they are encoded.
    await policy.run_aside(lambda: sent.sent_history)
    return sent


async def prepare_turn(
    registry: Registry, runner: ToolRunner, state: State, *, toolbox: Toolbox = NO_SERVERS
) -> tuple[Agent, Profile]:
    """The active agent, as its model is to see it now. Raises TurnFailed."""
    try:
        agent = registry.get_active(state.agent)
        more = await toolbox.describe(agent, state)
        profile = await registry.make_profile(agent, state.context_variables, runner, more)
    except AgentUnavailable as error:
        raise TurnFailed(RunError(code=error.code, message=str(error))) from error
    except OutputTypeError as error:
        raise TurnFailed(RunError(code="agent_invalid", message=f"agent {state.agent!r}: {error}")) from error
    except (FunctionSchemaError, InvalidFunctionError) as error:
        raise TurnFailed(RunError(code="agent_invalid", message=str(error))) from error
    except Exception as error:
        text = f"the instructions of {state.agent!r} failed: {type(error).__name__}: {error}"
        raise TurnFailed(RunError(code="instructions_failed", message=text)) from error
    return agent, profile


class Loop:
    """The loop that advances one session, run after run, until nothing is left to do or it has to wait.

    `prepare` gives the agent that is to be asked, as its model sees it; `perform` carries out a started call, and
    `together` several at once; `guards` asks what looks at an agent's input and replies; `toolbox` has what its model
    may call.

    It may be dropped at any `await` and begun again elsewhere: what it needs to know is in the state. `begun` is what
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

    async def advance(self) -> AsyncGenerator[Sequence[Item]]:
        """Do what there is to do; gives every recorded event, with those of its commit, and what the model says as it
        says it.

        Raises LeaseLost when another process has taken over.
        """
        while True:
            if settled := self._calls.note_starts(await self._log.settle()):
                yield settled
            run, step = self._log.state.run, find_outside_step(self._log.state)
            if run is None or step is None:
                return
            if isinstance(step, CallTool | Compact):
                yield await (self._calls.run(run, step.call) if isinstance(step, CallTool) else self._compact(run))
                continue
            work = self._calls.run_together(run, step.calls) if isinstance(step, CallTools) else self._ask_model(run)
            async with aclosing(work) as parts:
                async for items in parts:
                    yield items

    async def _ask_model(self, run: Run) -> AsyncGenerator[Sequence[Item]]:
        turn = ModelTurn(run, self._log.state, self._policy)
        try:
            async with self._policy.time_limit(run):
                if prepared := await self._prepare_turn(turn):
                    yield prepared
                if turn.request is not None and turn.is_streamed:
                    yield [MessageStarted(run.id, turn.agent.name, turn.state.seq)]
                while turn.request is not None:
                    async with turn.send(self._model, self._log.read_files) as pieces:
                        async for piece in pieces:
                            if isinstance(piece, Deltas):
                                yield await turn.show(piece)
                            else:
                                yield await self._record_reply(turn, piece)
                if turn.compaction is not None:
                    yield await self._start_compaction(turn, turn.compaction)
        except (TurnFailed, RunTimedOut) as failure:
            yield await self._record_failure(turn, failure)

    async def _start_compaction(self, turn: ModelTurn, fact: CompactionStarted) -> list[RecordedEvent]:
        """Record the compaction that is to come before the model is asked."""
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
        await turn.prepare_agent(self._prepare)
        await turn.make_request()
        await turn.plan_compaction()
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


# The attempts of one change: counts refusals, keeps outcomes in doubt, waits while the database is away.

T = TypeVar("T")

log = logging.getLogger(__name__)

UNAVAILABLE = (StoreUnavailable, SchemaBehind, Overloaded)

_MIN_PAUSE_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 1.0

# Others may change what a session is made of and leave its end alone (a redaction does), but not so often in a row.
_MAX_CONFLICTS = 10


class ConflictCounter:
    """The refusals that one change meets, each of them decided on what the log of the session it names holds.

    A log that has lost its end, or does not go on as it should, never ends where the session's row says that it does:
    a change would be decided on it for ever.
    """

    def __init__(self) -> None:
        self._refused: tuple[str, int] | None = None
        self._count = 0

    def count_conflict(self, conflict: SeqConflict) -> None:
        """A change was refused. Raises SessionDamaged when that was so at the same seq again and again."""
        refused = (conflict.session_id, conflict.expected)
        self._count = self._count + 1 if refused == self._refused else 1
        self._refused = refused
        if self._count == _MAX_CONFLICTS:
            raise SessionDamaged(conflict.session_id)


async def decide_until_recorded(attempt: Callable[[], Awaitable[T]], *, session_id: str | None = None) -> T:
    """Return the result of an attempt, which looks, decides and records; repeated each time that its basis has
    changed meanwhile.

    With a `session_id` only what has changed there is a reason for that. Raises SessionDamaged after too many, and
    what the attempt raises.
    """
    conflicts = ConflictCounter()
    while True:
        try:
            return await attempt()
        except SeqConflict as conflict:
            if session_id is not None and conflict.session_id != session_id:
                raise
            conflicts.count_conflict(conflict)


class Attempts:
    """The attempts to record one change.

    Between two, a caller who may wait pauses; the pauses grow to a second, and differ, so that not all callers
    come back at the same moment.
    """

    def __init__(self, session_id: str, doubt_seconds: float) -> None:
        self.in_doubt: list[AppendResult] = []
        self._session_id = session_id
        self._doubt_seconds = doubt_seconds
        self._conflicts = ConflictCounter()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.in_doubt.clear()
        self._doubt_ends_at = 0.0
        self._pause_seconds = _MIN_PAUSE_SECONDS

    def count_conflict(self, conflict: SeqConflict) -> None:
        """Count a refused change, which is decided again. Raises SessionDamaged after too many."""
        self._conflicts.count_conflict(conflict)
        self._begin_anew()

    def note_in_doubt(self, unknown: OutcomeUnknown) -> None:
        """An attempt may have been recorded: to hear of it is worth a few seconds."""
        if unknown.appended is not None:
            if not self.in_doubt:
                self._doubt_ends_at = asyncio.get_running_loop().time() + self._doubt_seconds
            self.in_doubt.append(unknown.appended)

    def may_wait(self, *, has_lease: bool) -> bool:
        """Tell if the attempt may be repeated while the database cannot be used."""
        return has_lease or (bool(self.in_doubt) and asyncio.get_running_loop().time() < self._doubt_ends_at)

    async def pause(self, error: Exception) -> None:
        outage_log.note(error, "changes delayed" if self._pause_seconds == _MIN_PAUSE_SECONDS else None)
        log.debug("session %s: waiting for the database: %s", self._session_id, error)
        await asyncio.sleep(self._pause_seconds * random.uniform(0.5, 1.0))
        self._pause_seconds = min(2 * self._pause_seconds, _MAX_PAUSE_SECONDS)


def log_failure(log: logging.Logger, error: Exception, what: str) -> None:
    """Log that something failed: as part of an outage where the database is the reason, else with all that is known."""
    if isinstance(error, UNAVAILABLE):
        outage_log.note(error)
        log.debug("%s: %s", what, error)
    else:
        log.error(what, exc_info=error)
