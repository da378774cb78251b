"""Take messages out of a conversation, and make runs unfindable as responses. The log keeps both."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from swarmkeep.agent.values import check_assignee
from swarmkeep.decide.drafts import apply_drafts, draft_events
from swarmkeep.decide.turns import ToolOutcome, end_run, record_result
from swarmkeep.events.chain import Chain
from swarmkeep.events.errors import (
    EventNotFound,
    InvalidRequest,
    NotTakenOver,
    RunNotFound,
    SessionBusy,
    TakenOverByOther,
    quote,
)
from swarmkeep.events.facts import (
    EventDraft,
    FeedbackAdded,
    HandbackNote,
    MessageAdded,
    MessageRemoved,
    NoteAdded,
    RunCompleted,
    RunHidden,
    RunResumed,
    SessionAssigned,
    SessionEvent,
    SessionHandedBack,
    SessionHeld,
    SessionReleased,
    SessionTakenOver,
)
from swarmkeep.events.messages import Entry, ends_calls, find_message, without_calls
from swarmkeep.events.state import State, ToolCall, Verdict, list_call_ids
from swarmkeep.events.views import find_run


def remove_message(
    state: State, seq: int, tool_call_id: str | None = None, by: str | None = None, *, content_only: bool = False
) -> list[EventDraft]:
    """Take out a message, or one call with its result; a call goes with its result, and a result with its call.

    With `content_only` what a message says, and not its calls.

    Nothing for what was taken out before. Raises EventNotFound for what is no message, or has no such call, and
    SessionBusy for what belongs to the active run.
    """
    at = find_message(state.messages, seq)
    if at is None:
        raise EventNotFound(seq, f"event {seq} is not a message of this session")
    entry = state.messages[at]
    if content_only and _list_left_calls(entry):
        gone = entry.removed or entry.removed_content
        fact = None if gone else MessageRemoved(message_seq=entry.seq, content=True, by=by)
    else:
        fact = _plan(state.messages, at, tool_call_id, by)
    if fact is None:
        return []
    run = state.run
    if run is not None and any(entry.run_id == run.id for entry in _list_affected(state.messages, fact)):
        raise SessionBusy(run.id, run.status)
    return draft_events(state.agent, [fact], None)


def _list_affected(messages: Chain[Entry], fact: MessageRemoved) -> Iterator[Entry]:
    places = (find_message(messages, seq) for seq in {fact.message_seq, *fact.seqs})
    return (messages[at] for at in places if at is not None)


def _plan(messages: Chain[Entry], at: int, call_id: str | None, by: str | None) -> MessageRemoved | None:
    entry = messages[at]
    if entry.role == "tool":
        own = entry.message.get("tool_call_id")
        if call_id not in (None, own):
            raise _no_such_call(entry, call_id)
        asking = _find_asking(messages, at)
        if asking is None:
            return None if entry.removed else MessageRemoved(message_seq=entry.seq, seqs=(entry.seq,), by=by)
        at, call_id, entry = asking, own, messages[asking]
    elif call_id is not None and call_id not in list_call_ids(entry):
        raise _no_such_call(entry, call_id)
    if entry.removed or call_id in entry.removed_calls:
        return None
    if call_id is None:
        results = [result.seq for result in _list_results(messages, at) if not result.removed]
        return MessageRemoved(message_seq=entry.seq, seqs=(entry.seq, *results), by=by)
    results = [
        result.seq
        for result in _list_results(messages, at)
        if result.message.get("tool_call_id") == call_id and not result.removed
    ]
    rest = Entry(seq=0, at="", run_id=None, message=without_calls(entry.shown_message, (call_id or "",)))
    seqs = (entry.seq, *results) if rest.is_empty else tuple(results)
    return MessageRemoved(message_seq=entry.seq, tool_call_id=call_id, seqs=seqs, by=by)


def _no_such_call(entry: Entry, call_id: str | None) -> EventNotFound:
    return EventNotFound(entry.seq, f"message {entry.seq} neither asks for the call {quote(call_id)} nor is its result")


def _list_left_calls(entry: Entry) -> list[str]:
    return [call_id for call_id in list_call_ids(entry) if call_id not in entry.removed_calls]


def _list_results(messages: Chain[Entry], at: int) -> Iterator[Entry]:
    """The results of the calls that this message asks for."""
    call_ids = list_call_ids(messages[at])
    for index in range(at + 1, len(messages)) if call_ids else ():
        entry = messages[index]
        if entry.role == "tool":
            if entry.message.get("tool_call_id") in call_ids:
                yield entry
        elif ends_calls(entry):
            return


def _find_asking(messages: Chain[Entry], at: int) -> int | None:
    """The message that asks for the call which this result is of."""
    for index in range(at - 1, -1, -1):
        if ends_calls(messages[index]):
            return index if messages[at].message.get("tool_call_id") in list_call_ids(messages[index]) else None
    return None


def hide_run(state: State, run_id: str, by: str | None = None, part: int | None = None) -> list[EventDraft]:
    """Make a run unfindable as a response, or what it did after so many waits; nothing if it is so already.

    Raises RunNotFound, and SessionBusy for what goes on, or is queued.
    """
    run = find_run(state, run_id)
    if run is None:
        raise RunNotFound(run_id)
    goes_on = run.status in ("queued", "running", "waiting")
    if goes_on and (part is None or part >= run.waits):
        raise SessionBusy(run_id, run.status)
    if run.hidden or part in run.hidden_parts:
        return []
    # What never waited is one response.
    hidden = RunHidden(by=by) if part is None or not run.waits else RunHidden(by=by, part=part)
    return draft_events(state.agent, [hidden], run_id)


# A person takes over from the agent, answers in its place, and hands back.

# Any person, if there are no names because no keys are needed.
NOBODY_KNOWN = "person"
_NOTE = (
    "[A note from a person who had taken over this conversation and now hands it back to you; it is no message of the "
    "user.]\n\n{note}"
)


def take_over(
    state: State, *, by: str | None, note: str | None = None, force: bool = False, owner: str | None = None
) -> list[EventDraft]:
    """From here on a person answers. What is under way stops at its next step, and calls that have begun come first.

    With `owner`, that name looks after the session from here on. Nothing if it is theirs already. Raises
    TakenOverByOther, unless it is done by `force`.
    """
    current = state.taken_over
    if current is not None and current.by == by:
        return []
    if current is not None and not force:
        raise TakenOverByOther(current.by, current.at)
    taken = _draft(state, [SessionTakenOver(by=by, note=note or UNSET)])
    return taken if owner is None else taken + assign(state, to=owner, by=by)


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


# The desk. Neither event is of a run: a run's caller sees neither who looks after the session nor what is noted of it.

MAX_NOTE = 10_000


def assign(state: State, *, to: str | None, by: str | None, reason: str | None = None) -> list[EventDraft]:
    """From here on the person or queue `to` looks after the session, or with None no one in particular.

    Nothing if it is so already. Raises InvalidRequest.
    """
    if to is not None:
        try:
            check_assignee(to)
        except ValueError as error:
            raise InvalidRequest(str(error), "/to") from None
    if state.assignee == to:
        return []
    return draft_events(state.agent, [SessionAssigned(to=to, by=by, reason=reason or UNSET)], None)


def add_note(state: State, text: str, *, by: str | None) -> list[EventDraft]:
    """Note something for colleagues. Raises InvalidRequest."""
    if not text.strip() or len(text) > MAX_NOTE:
        raise InvalidRequest(f"give a text, of up to {MAX_NOTE} characters", "/text")
    return draft_events(state.agent, [NoteAdded(text=text, by=by)], None)


def add_feedback(
    state: State, *, seq: int | None, run_id: str | None, value: Verdict, comment: str | None, by: str | None
) -> list[EventDraft]:
    """Say what a person thinks of an answer: that of this seq, or the last one of this run.

    Raises InvalidRequest, RunNotFound and EventNotFound.
    """
    if (seq is None) == (run_id is None):
        raise InvalidRequest("give either the answer's `seq`, or the `run_id`", "/seq")
    if comment is not None and len(comment) > MAX_NOTE:
        raise InvalidRequest(f"give a comment of up to {MAX_NOTE} characters", "/comment")
    answer = _find_answer(state, run_id) if seq is None else seq
    at = find_message(state.messages, answer)
    entry = None if at is None else state.messages[at]
    if entry is None or entry.role != "assistant" or entry.removed:
        raise EventNotFound(answer, f"event {answer} is not an answer; give the seq of an assistant message")
    fact = FeedbackAdded(seq=answer, value=value, comment=comment or UNSET, by=by)
    return draft_events(state.agent, [fact], None)


def _find_answer(state: State, run_id: str | None) -> int:
    run = None if run_id is None else find_run(state, run_id)
    if run is None:
        raise RunNotFound(run_id or "")
    for entry in reversed(state.messages[run.first_message : run.last_message]):
        if entry.run_id == run.id and entry.role == "assistant" and not entry.removed:
            return entry.seq
    raise InvalidRequest(f"run {quote(run.id)} has no answer; say what you think of a later one", "/run_id")


def hold(state: State, *, reason: str, by: str | None) -> list[EventDraft]:
    """From here on nothing of the session is redacted or deleted. Nothing if it is held for that reason already."""
    if state.hold is not None and state.hold.reason == reason:
        return []
    return draft_events(state.agent, [SessionHeld(reason=reason, by=by)], None)


def release(state: State, *, by: str | None) -> list[EventDraft]:
    """Lift the hold. Nothing if there is none."""
    return [] if state.hold is None else draft_events(state.agent, [SessionReleased(by=by)], None)


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
