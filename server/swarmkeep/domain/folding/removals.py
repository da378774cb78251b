"""Fold what was taken out: messages that models are not sent any more, and runs that are not found as responses."""

from __future__ import annotations

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from swarmkeep.domain.checking.known_ids import find_finished_runs
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.facts.history import MessageRemoved
from swarmkeep.domain.folding.compactions import drop_summaries
from swarmkeep.domain.messages import find_message, read_tool_calls
from swarmkeep.domain.state import Run, State


def apply_message_removed(state: State, event: RecordedEvent, fact: MessageRemoved) -> State:
    for seq in (fact.message_seq, *fact.seqs):
        state = drop_summaries(state, seq)
    messages, finished = state.messages, state.finished
    gone: dict[str | None, set[str]] = {}
    for seq in fact.seqs:
        if (at := find_message(messages, seq)) is not None:
            entry = messages[at]
            messages = messages.replace_at(at, replace(entry, removed=True))
            gone.setdefault(entry.run_id, set()).update(call_id for call_id, _, _ in read_tool_calls(entry.message))
    at = None if fact.tool_call_id is None else find_message(messages, fact.message_seq)
    if at is not None and fact.tool_call_id is not None:
        entry = messages[at]
        if fact.tool_call_id not in entry.removed_calls:
            messages = messages.replace_at(at, replace(entry, removed_calls=(*entry.removed_calls, fact.tool_call_id)))
        gone.setdefault(entry.run_id, set()).add(fact.tool_call_id)
    if fact.content is True and (said := find_message(messages, fact.message_seq)) is not None:
        messages = messages.replace_at(said, replace(messages[said], removed_content=True))
    if len(finished) and (calls := gone.get(finished[-1].id)):
        finished = finished.replace_at(-1, _without_calls(finished[-1], calls))
    return replace(
        state,
        messages=messages,
        finished=finished,
        # Counted as they are told, so that the count is the same for whoever has let go of old messages.
        removed_messages=state.removed_messages + len(fact.seqs),
        last_change=event.seq,
    )


def _without_calls(run: Run, call_ids: set[str]) -> Run:
    """The run without these of its calls: were it tried again, they would not be carried out."""
    return replace(run, calls=tuple(call for call in run.calls if call.id not in call_ids))


def hide_run(state: State, run_id: str | None, part: int | UnsetType) -> State:
    if state.run is not None and state.run.id == run_id:
        return replace(state, run=_hide(state.run, part))
    places = () if run_id is None else find_finished_runs(state.finished).find(run_id)
    if not places:
        return state
    finished = state.finished
    return replace(state, finished=finished.replace_at(places[-1], _hide(finished[places[-1]], part)))


def _hide(run: Run, part: int | UnsetType) -> Run:
    if part is UNSET:
        return replace(run, hidden=True)
    # It has no others, whatever an event of a file says.
    if part > run.waits or part in run.hidden_parts:
        return run
    return replace(run, hidden_parts=(*run.hidden_parts, part))
