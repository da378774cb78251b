"""A recorded log in the place of a store: what a loop commits is compared with what was committed then."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, zip_longest
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.agent import Agent, Tool, ToolArgumentsError
from swarmkeep.agent.guardrails import runs_in_replays
from swarmkeep.agent.values import copy_plain_object
from swarmkeep.decide.settle import NO_APPROVALS, Approvals, draft_follow_up, settle
from swarmkeep.decide.turns import InputVerdict, NewInput, ToolOutcome, Trip, find_new_input
from swarmkeep.events.codec import Json, MalformedJson
from swarmkeep.events.errors import InvalidImport
from swarmkeep.events.facts import (
    FACTS,
    ApprovalDecided,
    ApprovalRequested,
    CompactionFailed,
    CompactionStarted,
    CompactionSummarised,
    ContextUpdated,
    EventDraft,
    FeedbackAdded,
    GuardrailTripped,
    HandoffIgnored,
    HandoffMade,
    MessageAdded,
    MessageRemoved,
    NoteAdded,
    PendingCall,
    RecordedEvent,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunHidden,
    RunInterrupted,
    RunResumed,
    RunStarted,
    RunWaiting,
    SessionAssigned,
    SessionForked,
    SessionRedacted,
    SessionUpdated,
    ToolsListed,
    ToolStarted,
    UnknownFact,
    is_redacted,
)
from swarmkeep.events.fold import evolve, find_listing
from swarmkeep.events.messages import Entry, list_result_parts
from swarmkeep.events.records import RequestRecord, RunOptions
from swarmkeep.events.redaction import REDACTED
from swarmkeep.events.state import Run, State, ToolCall
from swarmkeep.history.divergences import (
    DivergenceKind,
    ReplayFindings,
    changes_context,
    count_given_up,
    find_recorded_batch,
    follows_verdict,
)
from swarmkeep.history.export import EventLine, InvalidLine, MissingSession, parse_event_line, read_export_line
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.calls import make_refused_outcome, make_unknown_tool_outcome
from swarmkeep.runs.guardrails import Guards
from swarmkeep.runs.policy import Decide, LoopPolicy, decide_nothing
from swarmkeep.runs.tool_runners import ToolRunner
from swarmkeep.runs.toolbox import Toolbox

# Reads and describes recorded facts for a replay.


def is_reply(event: RecordedEvent) -> bool:
    return isinstance(event.fact, MessageAdded) and event.fact.completion is not None


def describe_refusal(fact: GuardrailTripped) -> dict[str, object]:
    return {"stage": fact.stage, "refused": True, "name": fact.name, "message": fact.message}


def get_request_record(event: RecordedEvent) -> RequestRecord | None:
    """The request that a model was sent, of an event that is its reply."""
    fact = event.fact
    return fact.completion.request if isinstance(fact, MessageAdded) and fact.completion is not None else None


def describe_change(fact: ContextUpdated) -> dict[str, object]:
    return {"patch": fact.patch, "nulls": [] if fact.nulls is UNSET else list(fact.nulls)}


# What may happen while a model speaks.
_PASSING = (
    SessionUpdated, ContextUpdated, SessionRedacted, MessageRemoved, RunHidden, SessionAssigned, NoteAdded,
    FeedbackAdded, UnknownFact, CompactionStarted, CompactionSummarised, CompactionFailed,
)  # fmt: skip


class EndOfRecordedLog(Exception):
    """There is nothing more to compare with."""


class RecordedLog:
    """A session log that is written already.

    Its state is always the fold of the recorded events, never of what the loop makes of them: so each step is compared
    for itself, and a difference does not drag others behind it. Everything from outside (inputs, decisions, cancels,
    failures of the provider) is taken over as it is.
    """

    def __init__(
        self, events: Sequence[RecordedEvent], findings: ReplayFindings, approvals: Approvals = NO_APPROVALS
    ) -> None:
        self.state = State()
        self.findings = findings
        # The states in which the next model call may have been made: the session may be changed while a model speaks.
        self.candidates: list[State] = [self.state]
        self.is_turn_skipped = False
        self.knows_arguments = True
        self.knows_context = True
        # Which calls start together is as it was recorded: it makes no difference to what comes of them.
        self._approvals = replace(approvals, find_batch=lambda _, run: find_recorded_batch(self.list_next(), run))
        self._events = events
        self._next = 0
        self._is_taken_over = False
        self._apply_outside_events()

    @property
    def next_event(self) -> RecordedEvent:
        """The next event that the loop is to lead to. Raises EndOfRecordedLog."""
        if self._next >= len(self._events):
            raise EndOfRecordedLog
        return self._events[self._next]

    def is_redacted_at(self, seq: int) -> bool:
        return is_redacted(self._events[seq - 1])

    def find_redacted_listing(self, agent: str, servers: Iterable[str]) -> int | None:
        """A list of tools that the agent is offered now and whose descriptions were redacted, if there is one."""
        offered = [find_listing(self.state, agent, server) for server in servers]
        if not any(listing is not None and listing.is_without_schemas for listing in offered):
            return None
        seqs = self._redacted_listings.get(agent, [])
        at = bisect_left(seqs, self.next_event.seq)
        return seqs[at - 1] if at else None

    @cached_property
    def _redacted_listings(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for event in self._events:
            if isinstance(event.fact, ToolsListed) and is_redacted(event):
                found.setdefault(event.agent, []).append(event.seq)
        return found

    @property
    def event_after_next(self) -> RecordedEvent | None:
        """The event after the upcoming one."""
        return self._events[self._next + 1] if self._next + 1 < len(self._events) else None

    @property
    def request_record(self) -> RequestRecord | None:
        """The request whose reply comes next, if one does. Raises EndOfRecordedLog."""
        return get_request_record(self.next_event)

    @property
    def is_redacted_reply(self) -> bool:
        """Tell if the next event was a model's reply whose text and request are redacted."""
        return is_reply(self.next_event) and is_redacted(self.next_event)

    def note_redacted(self) -> None:
        """Note that something cannot be compared, because the upcoming event is redacted."""
        self.findings.add_redacted(self.next_event.seq)

    def note(self, kind: DivergenceKind, recorded: Any, actual: Any) -> None:
        """Note a difference that shows at the upcoming event."""
        self.findings.add(self.next_event.seq, kind, recorded, actual)

    def list_next(self) -> Iterator[RecordedEvent]:
        """The events that the loop is to lead to, in order."""
        return islice(self._events, self._next, None)

    async def commit(
        self,
        decide: Decide,
        blobs: Mapping[str, str | bytes] | None = None,
        *,
        aside: bool = False,
        within_quota: bool = False,
    ) -> list[RecordedEvent]:
        """Go on to where the recorded log has what `decide` makes of the state; differences are noted.

        Raises EndOfRecordedLog, also when the two have come apart.
        """
        _ = self.next_event
        if self.is_turn_skipped:
            self.is_turn_skipped = False
            applied = self._follow()
        else:
            decided = decide(self.state)
            applied = self._compare([] if decided is None else settle(self.state, decided, approvals=self._approvals))
        self.candidates = [self.state]
        self._apply_outside_events()
        return [] if self._is_taken_over else applied

    async def read_files(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """Nothing: no model is asked, and requests are compared by what they refer to."""
        return {}

    async def settle(self) -> list[RecordedEvent]:
        settled: list[RecordedEvent] = []
        # A person's action after a follow-up may lead to another one.
        while draft_follow_up(self.state, approvals=self._approvals) is not None:
            settled += await self.commit(decide_nothing)
        return settled

    def note_mismatch(self, actual: str) -> EndOfRecordedLog:
        """Note that the recorded log goes on with something else than today's code would."""
        event = self.next_event
        unreadable = isinstance(event.fact, UnknownFact)
        self.findings.add(event.seq, "unreadable" if unreadable else "order", event.type, actual)
        return EndOfRecordedLog()

    def _compare(self, drafts: Sequence[EventDraft]) -> list[RecordedEvent]:
        applied: list[RecordedEvent] = []
        for draft in drafts:
            if not isinstance(draft.fact, ContextUpdated):
                applied += self._apply_redacted_changes()
            if self._next >= len(self._events):
                break
            event = self.next_event
            if type(draft.fact) is not type(event.fact):
                if applied and not self._is_made_by_loop(event):
                    # Cut off here, as in a fork that ends in the middle of what was one commit.
                    break
                if isinstance(event.fact, GuardrailTripped):
                    self.note("guardrail", describe_refusal(event.fact), None)
                    return applied + self._follow()
                if not {ApprovalRequested} & {type(draft.fact), type(event.fact)}:
                    raise self.note_mismatch(draft.fact.type)
                self._note_approval_difference(draft, event)
                return applied + self._follow()
            self._note_details(draft, event)
            applied.append(self._apply())
        applied += self._apply_redacted_changes()
        if not applied:
            raise self.note_mismatch("nothing")
        return applied

    def _apply_redacted_changes(self) -> list[RecordedEvent]:
        """Changes of the context that the loop may not make any more: a redaction took what they were, or built on."""
        applied: list[RecordedEvent] = []
        while self._next < len(self._events):
            event = self._events[self._next]
            lost = not self.knows_context or is_redacted(event)
            if not (lost and isinstance(event.fact, ContextUpdated) and self._is_made_by_loop(event)):
                break
            applied.append(self._apply())
        return applied

    def _note_approval_difference(self, draft: EventDraft, event: RecordedEvent) -> None:
        asks_today = isinstance(draft.fact, ApprovalRequested)
        asked = draft.fact if asks_today else event.fact
        assert isinstance(asked, ApprovalRequested)
        needed, free = f"{asked.name} needs an approval", f"{asked.name} needs none"
        self.findings.add(event.seq, "approval", free if asks_today else needed, needed if asks_today else free)

    def _note_details(self, draft: EventDraft, event: RecordedEvent) -> None:
        actual, recorded = draft.fact, event.fact
        known = self.knows_context and not is_redacted(event)
        if known and isinstance(actual, ContextUpdated) and isinstance(recorded, ContextUpdated) and actual != recorded:
            self.findings.add(event.seq, "context", describe_change(recorded), describe_change(actual))
        if isinstance(actual, RunCompleted) and isinstance(recorded, RunCompleted):
            reasons = recorded.stop_reason, actual.stop_reason
            if reasons[0] != reasons[1]:
                self.findings.add(event.seq, "order", *reasons)

    def _follow(self) -> list[RecordedEvent]:
        """Take the recorded events as they are, up to where the next reply or result is needed."""
        applied = [self._apply()]
        while self._next < len(self._events) and self._is_made_by_loop(event := self._events[self._next]):
            if isinstance(event.fact, UnknownFact) or (
                isinstance(event.fact, MessageAdded) and not follows_verdict(event.fact, applied[-1].fact)
            ):
                break
            applied.append(self._apply())
        return applied

    def _apply(self) -> RecordedEvent:
        event = self._events[self._next]
        if is_reply(event):
            self.knows_arguments = not is_redacted(event)
        elif isinstance(event.fact, ApprovalDecided) and event.fact.arguments is not UNSET and is_redacted(event):
            self.knows_arguments = False
        if changes_context(event.fact) and is_redacted(event):
            # What instructions and later changes find in the context may be missing from here on.
            self.knows_context = False
            self.findings.add_redacted(event.seq)
        self.state = evolve(self.state, event)
        self._next += 1
        return event

    def _apply_outside_events(self) -> None:
        self._is_taken_over = False
        while self._next < len(self._events) and not self._is_made_by_loop(self._events[self._next]):
            fact = self._apply().fact
            passing = isinstance(fact, _PASSING)
            self.candidates = [*self.candidates, self.state] if passing else [self.state]
            if isinstance(fact, RunResumed):
                # The process that took over had started nothing itself.
                self._is_taken_over = True
                for _ in range(count_given_up(self.list_next(), self.state.run)):
                    self._apply()

    def _is_made_by_loop(self, event: RecordedEvent) -> bool:
        """Tell if the loop led to this event, rather than a command from outside."""
        running = self.state.run is not None and self.state.run.status == "running"
        match event.fact:
            case MessageAdded(completion=completion) if completion is not None:
                asked = completion.request is not None or is_redacted(event)
                return completion.partial is not True and asked
            case MessageAdded(person=person) if person is not UNSET:
                # An answer is a person's own; a note follows from handing back.
                return self.state.handback_note is not None and event.fact.message.get("role") == "user"
            case MessageAdded(tool=tool, correction=correction, guardrail=guardrail):
                return (tool is not None or correction is not UNSET or guardrail is not UNSET) and running
            case ContextUpdated(tool_call_id=call_id):
                return call_id is not None and not self._belongs_to_end(event)
            case SessionAssigned(tool_call_id=call_id):
                return call_id is not UNSET and running
            case GuardrailTripped() | ToolStarted():
                return True
            case HandoffMade() | HandoffIgnored():
                # What a caller delivers may decide one, too, while the run waits.
                return running and not self._belongs_to_end(event)
            case RunCompleted() | ApprovalRequested() | RunWaiting():
                # While it waits, only a person's answer completes it, and only an import asks again.
                return self.state.run is None or running
            case UnknownFact():
                return event.type in FACTS and not self._is_input(event)
            case _:
                return False

    def _belongs_to_end(self, event: RecordedEvent) -> bool:
        """Tell if a command that ended the run recorded it: the context changes of calls had ended by then. A fork may
        have cut off that end."""
        for later in islice(self._events, event.seq, None):
            if not isinstance(later.fact, ContextUpdated | HandoffMade | HandoffIgnored):
                return isinstance(later.fact, RunCancelled | RunInterrupted | RunFailed | SessionForked)
        return True

    def _is_input(self, event: RecordedEvent) -> bool:
        """Tell if an event that cannot be read must be a user's message: no request is compared by that."""
        if event.type != MessageAdded.type:
            return False
        return event.run_id is None or isinstance(self._events[self._next - 1].fact, RunStarted)


# Today's guardrails on what passed, or was refused, in a recorded conversation. What was decided then stands.


class RecordedGuards(Guards):
    """Stands in for what asks guardrails; a verdict that would be another one today is noted.

    Those that ask something outside are not asked. Of a reply that was refused no text is kept, so nothing can be
    compared there.
    """

    def __init__(self, recording: RecordedLog, runner: ToolRunner, policy: LoopPolicy) -> None:
        super().__init__(runner, policy)
        self._recording = recording

    async def check_input(self, agent: Agent, state: State, run: Run) -> InputVerdict:
        new = find_new_input(state, run, agent.name)
        event = self._recording.next_event
        recorded = self._read_verdict(new)
        seqs = [run.first_seq, *(entry.seq for entry in (*new.history, *new.entries))]
        if self._recording.knows_context and not any(map(self._recording.is_redacted_at, seqs)):
            actual = await super().check_input(_without_outside(agent), state, run)
            asks_outside = _asks_outside(agent.input_guardrails)
            self._compare("input", event, recorded.trip, actual.trip, asks_outside)
            for before, after in zip_longest(recorded.past, actual.past):
                if before is None or after is None or before[1] != after[1]:
                    self._compare("history", event, before and before[0], after and after[0], asks_outside)
                    break
                self._compare("history", event, before[0], after[0], asks_outside)
        return recorded

    def _read_verdict(self, new: NewInput) -> InputVerdict:
        """The verdict that comes next in the recorded log."""
        known = {entry.seq: entry for entry in new.history}
        past: list[tuple[Trip, tuple[Entry, ...]]] = []
        for event in self._recording.list_next():
            if (trip := read_trip(event, "history")) is not None:
                assert isinstance(event.fact, GuardrailTripped)
                seqs = () if event.fact.messages is UNSET else event.fact.messages
                past.append((trip, tuple(known[seq] for seq in seqs if seq in known)))
                continue
            return InputVerdict(trip=read_trip(event, "input"), entries=new.entries, past=tuple(past))
        return InputVerdict(entries=new.entries, past=tuple(past))

    async def check_reply(
        self, agent: Agent, message: Json, context: Json, options: RunOptions
    ) -> tuple[Trip | None, str]:
        event = self._recording.next_event
        after = self._recording.event_after_next
        if isinstance(event.fact, MessageAdded) and event.fact.guardrail is not UNSET:
            return None if after is None else read_trip(after, "output"), ""
        if self._recording.knows_context:
            actual, _ = await super().check_reply(_without_outside(agent), message, context, options)
            self._compare("output", event, None, actual, _asks_outside(agent.output_guardrails))
        return None, ""

    async def compare_call(self, tool: Tool, call: ToolCall, context: Json, recorded: Trip | None) -> None:
        """Note where today's guardrails of a function would decide otherwise."""
        if self._recording.knows_context and self._recording.knows_arguments:
            guardrails = [each for each in tool.guardrails if runs_in_replays(each)]
            actual = await self.check_call(tool, call, context, guardrails)
            self._compare("tool", self._recording.next_event, recorded, actual, _asks_outside(tool.guardrails))

    def _compare(
        self, stage: str, event: RecordedEvent, recorded: Trip | None, actual: Trip | None, asks_outside: bool
    ) -> None:
        if recorded is not None and actual is None and asks_outside:
            return
        alike = (recorded is None) == (actual is None) if is_redacted(event) else recorded == actual
        if not alike:
            self._recording.note("guardrail", _describe(stage, recorded), _describe(stage, actual))


def read_trip(event: RecordedEvent, stage: str) -> Trip | None:
    """The refusal that an event records, if it does, at that stage."""
    fact = event.fact
    if not isinstance(fact, GuardrailTripped) or fact.stage != stage:
        return None
    return Trip(name=fact.name, message=fact.message, error=None if fact.error is UNSET else fact.error)


def _without_outside(agent: Agent) -> Agent:
    kept = {
        field: [each for each in getattr(agent, field) if runs_in_replays(each)]
        for field in ("input_guardrails", "output_guardrails")
    }
    return agent.model_copy(update=kept)


def _asks_outside(guardrails: Sequence[object]) -> bool:
    return not all(map(runs_in_replays, guardrails))  # type: ignore[arg-type]


def _describe(stage: str, trip: Trip | None) -> Json:
    """A verdict as it is shown beside the other one."""
    if trip is None:
        return {"stage": stage, "refused": False}
    told = {"stage": stage, "refused": True, "name": trip.name, "message": trip.message}
    return told if trip.error is None else {**told, "error": trip.error}


# Tool calls of a recorded conversation: their results stand in, today's functions are only asked whether they fit.


class RecordedCalls:
    """Stands in for what carries out a loop's calls."""

    def __init__(self, recording: RecordedLog, registry: Registry, guards: RecordedGuards, toolbox: Toolbox) -> None:
        self._recording = recording
        self._registry = registry
        self._guards = guards
        self._toolbox = toolbox

    async def perform(self, state: State, agent: Agent | None, tool: Tool | None, call: ToolCall) -> ToolOutcome:
        """Return the recorded outcome of the call; what would be otherwise today is noted."""
        outcome = self._read_outcome(state, call)
        if agent is None:
            return outcome
        if outcome.status == "error" and is_redacted(self._recording.next_event):
            # Why it failed is not known any more: maybe there was no such function then.
            self._recording.note_redacted()
            return outcome
        was_unknown = outcome.content.startswith(make_unknown_tool_outcome(call, ()).content.removesuffix("none."))
        if tool is None and not was_unknown:
            self._recording.note("missing_tool", call.name, sorted(self._toolbox.list_tools(agent, state)))
        elif tool is not None and was_unknown:
            self._recording.note("missing_tool", None, call.name)
        elif tool is not None and outcome.status == "ok" and self._recording.knows_arguments:
            self._check_arguments(state, tool, call)
        if tool is not None and (outcome.trip is not None or (tool.guardrails and outcome.status == "ok")):
            await self._guards.compare_call(tool, call, state.context_variables, outcome.trip)
        if outcome.handoff is not None and outcome.handoff not in self._registry:
            self._recording.note("agent", outcome.handoff, self._registry.names)
        return outcome

    def _check_arguments(self, state: State, tool: Tool, call: ToolCall) -> None:
        try:
            tool.bind(
                call.arguments, context_variables=copy_plain_object(state.context_variables), tool_call_id=call.id
            )
        except ToolArgumentsError as error:
            self._recording.note("arguments", f"{call.name}: {call.arguments}", str(error))

    def _read_outcome(self, state: State, call: ToolCall) -> ToolOutcome:
        """Read the recorded outcome of the call, with the change of the context that was recorded beside it."""
        event, after = self._recording.next_event, self._recording.event_after_next
        trip = read_trip(event, "tool")
        if trip is not None:
            if after is None or not isinstance(after.fact, MessageAdded):
                # A fork was cut off between the refusal and the result that came with it.
                return make_refused_outcome(call, trip)
            event, after = after, None
        fact = event.fact
        if isinstance(fact, RunWaiting):
            for waited in fact.pending:
                if _is_awaited(waited, call):
                    approvals = () if waited.approvals is UNSET else waited.approvals
                    return ToolOutcome(
                        status="waiting", content="", session_id=call.session_id, waits=True, approvals=approvals
                    )
        if not isinstance(fact, MessageAdded) or fact.tool is None or fact.message.get("tool_call_id") != call.id:
            raise self._recording.note_mismatch(MessageAdded.type)
        patch: Json = {}
        nulls: tuple[str, ...] = ()
        values: Json = {}
        if fact.tool.context is not UNSET:
            held = fact.tool.context
            patch, nulls = held.patch, () if held.nulls is UNSET else held.nulls
            values = {} if held.values is UNSET else held.values
        elif after is not None and isinstance(after.fact, ContextUpdated) and after.fact.tool_call_id == call.id:
            patch, nulls = after.fact.patch, () if after.fact.nulls is UNSET else after.fact.nulls
        content = fact.message.get("content")
        return ToolOutcome(
            status=fact.tool.status,
            content=content if isinstance(content, str) else "",
            duration_ms=fact.tool.duration_ms,
            handoff=None if fact.tool.handoff is UNSET else fact.tool.handoff,
            patch=patch,
            nulls=nulls,
            values=values,
            trip=trip,
            files=list_result_parts(fact.tool),
            assign=self._read_assignment(call),
        )

    def _read_assignment(self, call: ToolCall) -> str | None:
        """The name that the call's function gave the session to: after its result and what that changed."""
        for event in islice(self._recording.list_next(), 1, None):
            fact = event.fact
            if isinstance(fact, SessionAssigned) and fact.tool_call_id == call.id:
                # A redaction removes the name.
                return fact.to or REDACTED
            if not isinstance(fact, ContextUpdated | MessageAdded):
                return None
        return None


def _is_awaited(waited: PendingCall, call: ToolCall) -> bool:
    return waited.reason == "session" and waited.tool_call_id == call.id


# Recorded conversations out of an export: whole ones, with the texts that their requests name.


class RecordedSession(msgspec.Struct, kw_only=True):
    """A session's events, oldest first, and instructions and tool schemas by their content hash."""

    session_id: str
    events: list[RecordedEvent] = []
    texts: dict[str, str] = {}


def read_recorded_sessions(lines: Iterable[bytes]) -> Iterator[RecordedSession]:
    """The sessions of an export, one after the other; also of a list of events as the API gives them, in lines.

    What it reads is not verified: an import does that. Raises InvalidImport, which names the line.
    """
    current: RecordedSession | None = None
    for number, line in enumerate(lines, start=1):
        found = _read_event(line.strip(), number)
        if found is None:
            continue
        event, texts = found
        if current is None or current.session_id != event.session_id:
            if current is not None:
                yield current
            current = RecordedSession(session_id=event.session_id, events=[], texts={})
        current.events.append(event)
        current.texts |= texts
    if current is not None:
        yield current


def _read_event(line: bytes, number: int) -> tuple[RecordedEvent, dict[str, str]] | None:
    if not line:
        return None
    try:
        found = read_export_line(line)
    except InvalidLine as bad:
        try:
            return parse_event_line(line), {}
        except (MalformedJson, msgspec.ValidationError):
            raise InvalidImport(str(bad), line=number) from None
    if isinstance(found, MissingSession):
        raise InvalidImport(f"session {found.session_id!r} is missing: {found.detail}", line=number)
    return (found.sealed.event, found.texts) if isinstance(found, EventLine) else None


def split_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a document that comes in pieces, without their breaks."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest
