"""A person takes over from the agent, answers in its place, and hands back."""

from __future__ import annotations

from msgspec import UNSET

from swarmkeep.domain.decisions.drafts import apply_drafts, draft_events
from swarmkeep.domain.decisions.turns import ToolOutcome, end_run, record_result
from swarmkeep.domain.envelope import EventDraft
from swarmkeep.domain.errors import NotTakenOver, SessionBusy, TakenOverByOther
from swarmkeep.domain.events import MessageAdded, RunCompleted, RunResumed, SessionEvent
from swarmkeep.domain.facts.takeovers import HandbackNote, SessionHandedBack, SessionTakenOver
from swarmkeep.domain.state import State, ToolCall

# Whoever it is, where nobody has a name because no keys are needed.
NOBODY_KNOWN = "person"
_NOTE = (
    "[A note from a person who had taken over this conversation and now hands it back to you; it is no message of the "
    "user.]\n\n{note}"
)


def take_over(state: State, *, by: str | None, note: str | None = None, force: bool = False) -> list[EventDraft]:
    """From here on a person answers. What is under way stops at its next step, and calls that have begun come first.

    Nothing if it is theirs already. Raises TakenOverByOther, unless it is done by `force`.
    """
    current = state.taken_over
    if current is not None and current.by == by:
        return []
    if current is not None and not force:
        raise TakenOverByOther(current.by, current.at)
    return _draft(state, [SessionTakenOver(by=by, note=note or UNSET)])


def answer(state: State, content: str, *, by: str | None) -> list[EventDraft]:
    """Say something in the agent's place. It is the answer to the run that waits, if one does.

    Calls that the run has not carried out are not any more. Raises NotTakenOver, TakenOverByOther, and SessionBusy
    while a call is under way.
    """
    _refuse_unless_own(state, by)
    run = state.run
    said = MessageAdded(
        message={"role": "assistant", "content": content, "sender": by or NOBODY_KNOWN}, person=by or NOBODY_KNOWN
    )
    if run is None:
        return draft_events(state.agent, [said], None)
    if run.status != "waiting":
        raise SessionBusy(run.id, run.status)
    drafts: list[EventDraft] = []
    for call in run.open_calls:
        assert state.run is not None
        ended = draft_events(state.agent, record_result(state, state.run, call, _leave_call(call)), run.id)
        state = apply_drafts(state, ended)
        drafts += ended
    assert state.run is not None
    facts = [said, *end_run(state, state.run, RunCompleted, "end_turn")]
    return drafts + draft_events(state.agent, facts, run.id)


def _leave_call(call: ToolCall) -> ToolOutcome:
    if call.attempts:
        text = f"Interrupted: a person took over and answered before {call.name} had ended. It may have taken effect."
        return ToolOutcome(status="unknown_outcome", content=text, session_id=call.session_id)
    text = f"Denied: a person took over and answered, so {call.name} did not run."
    return ToolOutcome(status="denied", content=text)


def hand_back(state: State, *, by: str | None, note: str | None = None, force: bool = False) -> list[EventDraft]:
    """The agent answers again, first what waits; its model reads the note before that.

    Raises NotTakenOver, and TakenOverByOther unless it is done by `force`.
    """
    if not force or state.taken_over is None:
        _refuse_unless_own(state, by)
    facts: list[SessionEvent] = [SessionHandedBack(by=by, note=note or UNSET)]
    run = state.run
    waits_for_more = run is not None and any(waited.reason != "person" for waited in run.pending)
    if run is not None and run.status == "waiting" and not waits_for_more:
        facts.append(RunResumed(reason="person"))
    return _draft(state, facts)


def tell_note(note: HandbackNote) -> MessageAdded:
    """The message in which a model reads what it is to know."""
    name = note.by or NOBODY_KNOWN
    message = {"role": "user", "content": _NOTE.format(note=note.text), "sender": name}
    return MessageAdded(message=message, person=name)


def _draft(state: State, facts: list[SessionEvent]) -> list[EventDraft]:
    return draft_events(state.agent, facts, None if state.run is None else state.run.id)


def _refuse_unless_own(state: State, by: str | None) -> None:
    current = state.taken_over
    if current is None:
        raise NotTakenOver
    if current.by != by:
        raise TakenOverByOther(current.by, current.at)
