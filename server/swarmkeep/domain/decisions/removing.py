"""Take messages out of a conversation, and make runs unfindable as responses. The log keeps both."""

from __future__ import annotations

from collections.abc import Iterator

from swarmkeep.domain.chain import Chain
from swarmkeep.domain.checking.known_ids import list_call_ids
from swarmkeep.domain.decisions.drafts import draft_events
from swarmkeep.domain.envelope import EventDraft
from swarmkeep.domain.errors import EventNotFound, RunNotFound, SessionBusy
from swarmkeep.domain.events import RunHidden
from swarmkeep.domain.facts.history import MessageRemoved
from swarmkeep.domain.messages import Entry, ends_calls, find_message, without_calls
from swarmkeep.domain.state import State
from swarmkeep.domain.views import find_run


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
    return EventNotFound(entry.seq, f"message {entry.seq} neither asks for the call {call_id!r} nor is its result")


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
