"""A recorded log in the place of a store: what a loop commits is compared with what was committed then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET

from swarmkeep.audit.divergences import Findings, Kind
from swarmkeep.audit.redacted import is_redacted
from swarmkeep.domain.envelope import Draft, Recorded
from swarmkeep.domain.events import (
    FACTS,
    ApprovalRequested,
    ContextUpdated,
    HandoffIgnored,
    HandoffMade,
    MessageAdded,
    RequestRecord,
    RunCompleted,
    RunResumed,
    RunStarted,
    RunWaiting,
    SessionCreated,
    SessionRedacted,
    SessionUpdated,
    ToolStarted,
    UnknownFact,
)
from swarmkeep.domain.fold import evolve
from swarmkeep.domain.settling import settle
from swarmkeep.domain.state import State
from swarmkeep.engine.ledger import Decide


class EndOfRecording(Exception):
    """There is nothing more to compare with."""


class Recording:
    """A Ledger that is written already.

    Its state is always the fold of the recorded events, never of what the loop makes of them: so each step is
    compared for itself, and a difference does not drag others behind it. Whatever came from outside (inputs,
    decisions, cancels, failures of the provider) is taken over as it is.
    """

    def __init__(self, events: Sequence[Recorded], findings: Findings) -> None:
        self.state = State()
        self.findings = findings
        # The states in which the next model call may have been made: the session may be changed while a model speaks.
        self.candidates: list[State] = [self.state]
        self.skips = False
        self.knows_arguments = True
        self.knows_context = True
        self._events = events
        self._next = 0
        self._taken_over = False
        self._take_in_outside_events()

    @property
    def upcoming(self) -> Recorded:
        """The next event that the loop is to lead to. Raises EndOfRecording."""
        if self._next >= len(self._events):
            raise EndOfRecording
        return self._events[self._next]

    @property
    def last_seq(self) -> int:
        return self.state.seq

    @property
    def following(self) -> Recorded | None:
        """The event after the upcoming one."""
        return self._events[self._next + 1] if self._next + 1 < len(self._events) else None

    @property
    def request_record(self) -> RequestRecord | None:
        """What the model was sent whose reply comes next, if one does. Raises EndOfRecording."""
        return request_record(self.upcoming)

    @property
    def is_forgotten_reply(self) -> bool:
        """Whether the next event was a model's reply, and what it said and was asked is redacted."""
        return _is_reply(self.upcoming) and is_redacted(self.upcoming)

    def note_redacted(self) -> None:
        """Note that something cannot be compared, because the upcoming event is redacted."""
        self.findings.add_redacted(self.upcoming.seq)

    def note(self, kind: Kind, recorded: Any, actual: Any) -> None:
        """Note a difference that shows at the upcoming event."""
        self.findings.add(self.upcoming.seq, kind, recorded, actual)

    async def commit(self, decide: Decide, blobs: Mapping[str, str] | None = None) -> list[Recorded]:
        """Go on to where the recorded log has what `decide` makes of the state; differences are noted.

        Raises EndOfRecording, also when the two have come apart.
        """
        _ = self.upcoming
        if self.skips:
            self.skips = False
            applied = self._follow()
        else:
            decided = decide(self.state)
            applied = self._compare([] if decided is None else settle(self.state, decided))
        self.candidates = [self.state]
        self._take_in_outside_events()
        return [] if self._taken_over else applied

    def come_apart(self, actual: str) -> EndOfRecording:
        """Note that the recorded log goes on with something else than today's code would."""
        event = self.upcoming
        unreadable = isinstance(event.fact, UnknownFact)
        self.findings.add(event.seq, "unreadable" if unreadable else "order", event.type, actual)
        return EndOfRecording()

    def _compare(self, drafts: Sequence[Draft]) -> list[Recorded]:
        applied: list[Recorded] = []
        for draft in drafts:
            if not isinstance(draft.fact, ContextUpdated):
                applied += self._forgotten_changes()
            if self._next >= len(self._events):
                break
            event = self.upcoming
            if type(draft.fact) is not type(event.fact):
                if applied and not self._is_of_the_loop(event):
                    # Cut off here, as in a fork that ends in the middle of what was one commit.
                    break
                if not {ApprovalRequested} & {type(draft.fact), type(event.fact)}:
                    raise self.come_apart(draft.fact.type)
                self._note_approval(draft, event)
                return applied + self._follow()
            self._note_details(draft, event)
            applied.append(self._apply())
        applied += self._forgotten_changes()
        if not applied:
            raise self.come_apart("nothing")
        return applied

    def _forgotten_changes(self) -> list[Recorded]:
        """Changes of the context that the loop may not make any more: a redaction took what they were, or built on."""
        applied: list[Recorded] = []
        while self._next < len(self._events):
            event = self._events[self._next]
            lost = not self.knows_context or is_redacted(event)
            if not (lost and isinstance(event.fact, ContextUpdated) and self._is_of_the_loop(event)):
                break
            applied.append(self._apply())
        return applied

    def _note_approval(self, draft: Draft, event: Recorded) -> None:
        asks_today = isinstance(draft.fact, ApprovalRequested)
        asked = draft.fact if asks_today else event.fact
        assert isinstance(asked, ApprovalRequested)
        needed, free = f"{asked.name} needs an approval", f"{asked.name} needs none"
        self.findings.add(event.seq, "approval", free if asks_today else needed, needed if asks_today else free)

    def _note_details(self, draft: Draft, event: Recorded) -> None:
        actual, recorded = draft.fact, event.fact
        known = self.knows_context and not is_redacted(event)
        if known and isinstance(actual, ContextUpdated) and isinstance(recorded, ContextUpdated) and actual != recorded:
            self.findings.add(event.seq, "context", _change(recorded), _change(actual))
        if isinstance(actual, RunCompleted) and isinstance(recorded, RunCompleted):
            reasons = recorded.stop_reason, actual.stop_reason
            if reasons[0] != reasons[1]:
                self.findings.add(event.seq, "order", *reasons)

    def _follow(self) -> list[Recorded]:
        """Take the recorded events as they are, up to where the next reply or result is needed."""
        applied = [self._apply()]
        while self._next < len(self._events) and self._is_of_the_loop(event := self._events[self._next]):
            if isinstance(event.fact, MessageAdded | UnknownFact):
                break
            applied.append(self._apply())
        return applied

    def _apply(self) -> Recorded:
        event = self._events[self._next]
        if _is_reply(event):
            self.knows_arguments = not is_redacted(event)
        if isinstance(event.fact, ContextUpdated | SessionCreated) and is_redacted(event):
            # What instructions and later changes find in the context may be missing from here on.
            self.knows_context = False
            self.findings.add_redacted(event.seq)
        self.state = evolve(self.state, event)
        self._next += 1
        return event

    def _take_in_outside_events(self) -> None:
        self._taken_over = False
        while self._next < len(self._events) and not self._is_of_the_loop(self._events[self._next]):
            fact = self._apply().fact
            passing = isinstance(fact, SessionUpdated | ContextUpdated | SessionRedacted | UnknownFact)
            self.candidates = [*self.candidates, self.state] if passing else [self.state]
            if isinstance(fact, RunResumed):
                # Whoever took over had started nothing itself.
                self._taken_over = True

    def _is_of_the_loop(self, event: Recorded) -> bool:
        """Whether the loop led to this event, rather than somebody outside."""
        running = self.state.run is not None and self.state.run.status == "running"
        match event.fact:
            case MessageAdded(completion=completion) if completion is not None:
                asked = completion.request is not None or is_redacted(event)
                return completion.partial is not True and asked
            case MessageAdded(tool=tool):
                return tool is not None and running
            case ContextUpdated(tool_call_id=call_id):
                return call_id is not None
            case ToolStarted() | HandoffMade() | HandoffIgnored() | ApprovalRequested() | RunWaiting() | RunCompleted():
                return True
            case UnknownFact():
                return event.type in FACTS and not self._is_input(event)
            case _:
                return False

    def _is_input(self, event: Recorded) -> bool:
        """Whether an event that cannot be read must be what the user said: no request is compared by that."""
        if event.type != MessageAdded.type:
            return False
        return event.run_id is None or isinstance(self._events[self._next - 1].fact, RunStarted)


def _is_reply(event: Recorded) -> bool:
    return isinstance(event.fact, MessageAdded) and event.fact.completion is not None


def request_record(event: Recorded) -> RequestRecord | None:
    """What a model was sent, of an event that is its reply."""
    fact = event.fact
    return fact.completion.request if isinstance(fact, MessageAdded) and fact.completion is not None else None


def _change(fact: ContextUpdated) -> dict[str, object]:
    return {"patch": fact.patch, "nulls": [] if fact.nulls is UNSET else list(fact.nulls)}
