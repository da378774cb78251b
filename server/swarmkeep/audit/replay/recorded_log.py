"""A recorded log in the place of a store: what a loop commits is compared with what was committed then."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.audit.replay.batches import changes_context, count_given_up, find_recorded_batch, follows_verdict
from swarmkeep.audit.replay.divergences import DivergenceKind, ReplayFindings
from swarmkeep.audit.replay.recorded_facts import describe_change, describe_refusal, get_request_record, is_reply
from swarmkeep.domain.decisions.settling import NO_APPROVALS, Approvals, draft_follow_up, settle
from swarmkeep.domain.envelope import EventDraft, RecordedEvent, is_redacted
from swarmkeep.domain.events import (
    FACTS,
    ApprovalDecided,
    ApprovalRequested,
    ContextUpdated,
    GuardrailTripped,
    HandoffIgnored,
    HandoffMade,
    MessageAdded,
    RequestRecord,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunHidden,
    RunInterrupted,
    RunResumed,
    RunStarted,
    RunWaiting,
    SessionForked,
    SessionRedacted,
    SessionUpdated,
    ToolStarted,
    UnknownFact,
)
from swarmkeep.domain.facts.compaction import CompactionFailed, CompactionStarted, CompactionSummarised
from swarmkeep.domain.facts.history import MessageRemoved
from swarmkeep.domain.facts.tools import ToolsListed
from swarmkeep.domain.fold import evolve
from swarmkeep.domain.folding.listings import find_listing
from swarmkeep.domain.state import State
from swarmkeep.engine.policy import Decide, decide_nothing

# What may happen while a model speaks.
_PASSING = (
    SessionUpdated, ContextUpdated, SessionRedacted, MessageRemoved, RunHidden, UnknownFact,
    CompactionStarted, CompactionSummarised, CompactionFailed,
)  # fmt: skip


class EndOfRecordedLog(Exception):
    """There is nothing more to compare with."""


class RecordedLog:
    """A session log that is written already.

    Its state is always the fold of the recorded events, never of what the loop makes of them: so each step is
    compared for itself, and a difference does not drag others behind it. Whatever came from outside (inputs,
    decisions, cancels, failures of the provider) is taken over as it is.
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
        """Whether the next event was a model's reply, and what it said and was asked is redacted."""
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
        # What somebody did after a follow-up may lead to another one.
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
                # Whoever took over had started nothing itself.
                self._is_taken_over = True
                for _ in range(count_given_up(self.list_next(), self.state.run)):
                    self._apply()

    def _is_made_by_loop(self, event: RecordedEvent) -> bool:
        """Whether the loop led to this event, rather than somebody outside."""
        running = self.state.run is not None and self.state.run.status == "running"
        match event.fact:
            case MessageAdded(completion=completion) if completion is not None:
                asked = completion.request is not None or is_redacted(event)
                return completion.partial is not True and asked
            case MessageAdded(person=person) if person is not UNSET:
                # An answer is somebody's own; a note follows from handing back.
                return self.state.handback_note is not None and event.fact.message.get("role") == "user"
            case MessageAdded(tool=tool, correction=correction, guardrail=guardrail):
                return (tool is not None or correction is not UNSET or guardrail is not UNSET) and running
            case ContextUpdated(tool_call_id=call_id):
                return call_id is not None and not self._belongs_to_end(event)
            case GuardrailTripped() | ToolStarted():
                return True
            case HandoffMade() | HandoffIgnored():
                # What a caller delivers may decide one, too, while the run waits.
                return running and not self._belongs_to_end(event)
            case RunCompleted() | ApprovalRequested() | RunWaiting():
                # While it waits, only a person's answer completes it, and only an import asks anew.
                return self.state.run is None or running
            case UnknownFact():
                return event.type in FACTS and not self._is_input(event)
            case _:
                return False

    def _belongs_to_end(self, event: RecordedEvent) -> bool:
        """Whether somebody who ended the run recorded it: what calls were to change that had ended by then. A fork may
        have cut off that end."""
        for later in islice(self._events, event.seq, None):
            if not isinstance(later.fact, ContextUpdated | HandoffMade | HandoffIgnored):
                return isinstance(later.fact, RunCancelled | RunInterrupted | RunFailed | SessionForked)
        return True

    def _is_input(self, event: RecordedEvent) -> bool:
        """Whether an event that cannot be read must be what the user said: no request is compared by that."""
        if event.type != MessageAdded.type:
            return False
        return event.run_id is None or isinstance(self._events[self._next - 1].fact, RunStarted)
