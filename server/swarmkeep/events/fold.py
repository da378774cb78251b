"""The fold: from events to state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, assert_never, get_args

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from swarmkeep.events import active_run, facts
from swarmkeep.events.chain import Chain
from swarmkeep.events.codec import Json
from swarmkeep.events.files import list_file_names
from swarmkeep.events.messages import SUPERSEDED, Entry, find_message, read_tool_calls
from swarmkeep.events.patch import apply, merge
from swarmkeep.events.records import read_usage, sum_usage
from swarmkeep.events.state import (
    STATUS_BY_ENDING,
    Feedback,
    KnownIds,
    OpenCompaction,
    Origin,
    QueuedRun,
    RatedAnswer,
    Run,
    State,
    Summary,
    Verdict,
    find_finished_runs,
    find_ids,
    find_results,
)

# Compactions: what models are sent in the place of messages.


def apply_compaction(
    state: State,
    event: facts.RecordedEvent,
    fact: facts.CompactionStarted | facts.CompactionSummarised | facts.CompactionFailed,
) -> State:
    match fact:
        case facts.CompactionStarted():
            return _apply_started(state, event, fact)
        case facts.CompactionSummarised():
            return _apply_summarised(state, event, fact)
        case facts.CompactionFailed():
            return replace(state, compaction=None)
        case _:
            assert_never(fact)


def _apply_started(state: State, event: facts.RecordedEvent, fact: facts.CompactionStarted) -> State:
    messages = state.messages
    for seq in fact.shortened:
        at = find_message(messages, seq)
        if at is not None and fact.result_characters > 0:
            messages = messages.replace_at(at, replace(messages[at], shortened=fact.result_characters))
    opened = OpenCompaction(seq=event.seq, fact=fact) if 0 < fact.last_seq < event.seq else None
    return replace(state, messages=messages, compaction=opened, compacted_at=event.seq, last_change=event.seq)


def _apply_summarised(state: State, event: facts.RecordedEvent, fact: facts.CompactionSummarised) -> State:
    last_seq = min(fact.last_seq, event.seq - 1)
    if state.compaction is not None and last_seq >= state.compaction.fact.last_seq:
        state = replace(state, compaction=None)
    if fact.completion is not None:
        state = replace(state, usage=sum_usage(state.usage, read_usage(fact.completion.usage)))
        if state.run is not None and state.run.id == event.run_id:
            run = replace(state.run, usage=sum_usage(state.run.usage, read_usage(fact.completion.usage)))
            state = replace(state, run=run)
        request = fact.completion.request
        if request is not None:
            state = replace(state, other_texts=state.other_texts.append(request.instructions))
    covered = 0 if state.summary is None else state.summary.last_seq
    # One without a text was redacted.
    if not fact.summary or last_seq <= covered:
        return state
    summary = Summary(seq=event.seq, at=event.at, first_seq=fact.first_seq, last_seq=last_seq, text=fact.summary)
    return replace(state, summaries=state.summaries.append(summary), last_change=event.seq)


def drop_summaries(state: State, seq: int) -> State:
    """Without the summaries of this message: what was taken out is not sent in other words either."""
    summaries = state.summaries
    while len(summaries) and summaries[-1].first_seq <= seq <= summaries[-1].last_seq:
        summaries = summaries.drop_last()
    return state if summaries is state.summaries else replace(state, summaries=summaries)


# What was taken out: messages that models are not sent any more, and runs that are not found as responses.


def apply_message_removed(state: State, event: facts.RecordedEvent, fact: facts.MessageRemoved) -> State:
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
        # Counted as they are told, so that the count is the same for a process that has let go of old messages.
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
    # It has no others, even if an event of a file says so.
    if part > run.waits or part in run.hidden_parts:
        return run
    return replace(run, hidden_parts=(*run.hidden_parts, part))


# The history that models are sent: handoffs that lost, messages taken out, summaries.

HistoryFact = (
    facts.HandoffIgnored
    | facts.GuardrailTripped
    | facts.MessageRemoved
    | facts.CompactionStarted
    | facts.CompactionSummarised
    | facts.CompactionFailed
)


def apply_history_event(state: State, event: facts.RecordedEvent, fact: HistoryFact) -> State:
    match fact:
        case facts.HandoffIgnored():
            return _apply_handoff_ignored(state, fact)
        case facts.GuardrailTripped():
            return _apply_guardrail_tripped(state, event, fact)
        case facts.MessageRemoved():
            return apply_message_removed(state, event, fact)
        case _:
            return apply_compaction(state, event, fact)


def _apply_handoff_ignored(state: State, fact: facts.HandoffIgnored) -> State:
    # The result was recorded before it was known that a later call would hand over too. No model has seen it yet.
    places = () if fact.tool_call_id is None else find_results(state.messages).find(fact.tool_call_id)
    if not places:
        return state
    entry = state.messages[places[-1]]
    message = {**entry.message, "content": SUPERSEDED.format(agent=fact.to_agent)}
    tool = entry.tool and replace(entry.tool, status="superseded")
    return replace(state, messages=state.messages.replace_at(places[-1], replace(entry, message=message, tool=tool)))


def _apply_guardrail_tripped(state: State, event: facts.RecordedEvent, fact: facts.GuardrailTripped) -> State:
    run = state.run
    if run is None or run.id != event.run_id:
        return state
    run = replace(run, last_seq=event.seq, tripped=run.tripped or fact.stage in ("input", "output"))
    for seq in () if fact.messages is UNSET else fact.messages:
        state = drop_summaries(state, seq)
    return replace(state, messages=refuse_messages(state.messages, fact), run=run, last_change=event.seq)


def refuse_messages(messages: Chain[Entry], fact: facts.GuardrailTripped) -> Chain[Entry]:
    """The messages, those marked that no model is sent any more."""
    for seq in () if fact.messages is UNSET else fact.messages:
        if (at := find_message(messages, seq)) is not None:
            messages = messages.replace_at(at, replace(messages[at], guardrail=fact.name))
    return messages


# Imports: nothing that came out of the file was decided here.


def apply_session_imported(state: State, by: str | UnsetType) -> State:
    # The last run to end may be tried again, with its calls.
    if len(state.finished):
        last = mark_imported(state.finished[-1], by)
        state = replace(state, finished=state.finished.replace_at(-1, last))
    queue = tuple(replace(queued, fact=replace(queued.fact, by=by, traceparent=UNSET)) for queued in state.queue)
    run = None if state.run is None else mark_imported(state.run, by)
    # Whose call it was made for, and which tool of which server a name stands for, only the file says.
    # The people and queues that it names are those of another server.
    return replace(
        state,
        compaction=None,
        listings=Chain(),
        queue=queue,
        run=run,
        parent=None,
        taken_over=None,
        handback_note=None,
        assignee=None,
    )


def mark_imported(run: Run, by: str | UnsetType) -> Run:
    """Return the run without any decision on its open calls, and without a trace.

    Only the importing caller says who started it.
    """
    calls = tuple(call if call.done else replace(active_run.make_undecided(call), imported=True) for call in run.calls)
    return replace(run, calls=calls, by=by, traceparent=UNSET)


# Lists of tools: of each agent and server, the last one.


def apply_tools_listed(state: State, event: facts.RecordedEvent, fact: facts.ToolsListed) -> State:
    listing = facts.ToolListing(agent=event.agent or state.agent, fact=fact)
    texts = state.other_texts if fact.schemas is None else state.other_texts.append(fact.schemas)
    return replace(state, listings=state.listings.append(listing), other_texts=texts)


def find_listing(state: State, agent: str, server: str) -> facts.ToolsListed | None:
    """Return the tools of a server that an agent is offered, as the session last recorded them."""
    places = find_ids(state.listings, _Listed, lambda listing: [_name(listing.agent, listing.fact.server)])
    found = places.find(_name(agent, server))
    return state.listings[found[-1]].fact if found else None


class _Listed(KnownIds, frozen=True):
    """By agent and server, where their lists are."""


def _name(agent: str, server: str) -> str:
    # With a length in front no two are alike, with any names that a file brings.
    return f"{len(agent)} {agent} {server}"


# What people think of answers.


def apply_feedback(state: State, event: facts.RecordedEvent, fact: facts.FeedbackAdded) -> State:
    before = find_rating(state, fact.seq)
    value = _VERDICTS.get(fact.value)
    if value is None or value == before:
        return state
    up = state.feedback.up + (value == "up") - (before == "up")
    down = state.feedback.down + (value == "down") - (before == "down")
    rated = state.rated.append(RatedAnswer(seq=fact.seq, value=value))
    return replace(state, rated=rated, feedback=Feedback(up=up, down=down))


# Any other value is one of a later release.
_VERDICTS: dict[str, Verdict] = {"up": "up", "down": "down"}


def find_rating(state: State, seq: int) -> Verdict | None:
    """Return what was last thought of an answer; None if it was not said."""
    places = find_ids(state.rated, _Rated, lambda answer: (str(answer.seq),)).find(str(seq))
    return state.rated[places[-1]].value if places else None


class _Rated(KnownIds, frozen=True):
    """By the seqs of answers, what was thought of them."""


# People who speak in the agent's place.


def apply_takeover(
    state: State, event: facts.RecordedEvent, fact: facts.SessionTakenOver | facts.SessionHandedBack
) -> State:
    if isinstance(fact, facts.SessionTakenOver):
        note = None if fact.note is UNSET else fact.note
        return replace(state, taken_over=facts.TakenOver(by=fact.by, at=event.at, note=note))
    run = state.run
    if run is not None and any(waited.reason == "person" for waited in run.pending):
        run = replace(run, pending=tuple(waited for waited in run.pending if waited.reason != "person"))
    told = facts.HandbackNote(text=fact.note, by=fact.by) if fact.note else state.handback_note
    return replace(state, taken_over=None, run=run, handback_note=told)


SessionFact = (
    facts.SessionCreated | facts.SessionUpdated | facts.SessionForked | facts.SessionImported
    | facts.SessionTakenOver | facts.SessionHandedBack | facts.SessionHeld | facts.SessionReleased
    | facts.SessionAssigned | facts.ToolsListed
)  # fmt: skip
RunFact = (
    facts.RunQueued
    | facts.RunWaiting
    | facts.RunResumed
    | facts.RunHidden
    | facts.ApprovalRequested
    | facts.ApprovalDecided
)


def fold(events: Iterable[facts.RecordedEvent], state: State | None = None) -> State:
    """The state after `events`, which follow `state` in the log."""
    folded = State() if state is None else state
    size = folded.size
    event: facts.RecordedEvent | None = None
    for event in events:
        size += len(event.payload)
        fact = event.fact
        folded = _STEPS[type(fact)](folded, event, fact)
    if event is None:
        return folded
    # Once for all of them: each copy of a state that is saved counts when a long session is read. So the steps say
    # what an event changes of a state, but for the state's place in the log.
    return replace(folded, seq=event.seq, hash=event.hash, updated_at=event.at, size=size)


def evolve(state: State, event: facts.RecordedEvent) -> State:
    """The state after one more event. Pure and total."""
    return fold((event,), state)


def _apply_session_event(state: State, event: facts.RecordedEvent, fact: SessionFact) -> State:
    match fact:
        case facts.SessionCreated(agent=agent, context_variables=context, metadata=metadata):
            created = replace(state, agent=agent, context_variables=context, metadata=metadata, created_at=event.at)
            return created if fact.parent is UNSET else replace(created, parent=fact.parent)
        case facts.SessionUpdated():
            return _apply_session_updated(state, fact)
        case facts.SessionForked():
            return _apply_session_forked(state, event, fact)
        case facts.SessionImported():
            return apply_session_imported(state, UNSET if fact.by is None else fact.by)
        case facts.SessionTakenOver() | facts.SessionHandedBack():
            return apply_takeover(state, event, fact)
        case facts.SessionHeld():
            return replace(state, hold=facts.Hold(reason=fact.reason, by=fact.by, at=event.at))
        case facts.SessionReleased():
            return replace(state, hold=None)
        case facts.SessionAssigned():
            return replace(state, assignee=fact.to)
        case facts.ToolsListed():
            return apply_tools_listed(state, event, fact)
        case _:
            assert_never(fact)


def _apply_run_event(state: State, event: facts.RecordedEvent, fact: RunFact) -> State:
    match fact:
        case facts.RunQueued():
            queued = QueuedRun(run_id=event.run_id or "", seq=event.seq, at=event.at, fact=fact)
            # Its event refers to them, regardless of the run's end.
            files = state.queued_files
            for name in list_file_names(fact.messages):
                files = files.append(name)
            forgot = state.forgot_keys or facts.is_redacted(event)
            return replace(state, queue=(*state.queue, queued), queued_files=files, forgot_keys=forgot)
        case facts.RunWaiting():
            return state if state.run is None else replace(state, run=active_run.make_waiting(state.run, event, fact))
        case facts.RunResumed():
            return _apply_run_resumed(state, event, fact)
        case facts.ApprovalRequested():
            state = active_run.note_approval(state, event, fact)
            return active_run.update_call(state, fact.tool_call_id, approval="requested", expires_at=fact.expires_at)
        case facts.ApprovalDecided():
            if fact.decision not in ("approve", "deny"):
                # Of a later release. It may mean anything, but is no approval here.
                return state
            state = active_run.note_approval(state, event, fact)
            return active_run.decide_call(state, event, fact)
        case facts.RunHidden():
            return hide_run(state, event.run_id, fact.part)
        case _:
            assert_never(fact)


def _apply_message_added(state: State, event: facts.RecordedEvent, fact: facts.MessageAdded) -> State:
    completion, person = fact.completion, fact.person
    entry = Entry(
        seq=event.seq,
        at=event.at,
        run_id=event.run_id,
        message=fact.message,
        completion=completion,
        tool=fact.tool,
        is_correction=fact.correction is not UNSET,
        guardrail=None if fact.guardrail is UNSET else fact.guardrail,
        person=None if person is UNSET else person,
    )
    messages, usage, run = state.messages.append(entry), state.usage, state.run
    is_of_run = run is not None and event.run_id == run.id
    if completion is not None:
        called = read_usage(completion.usage)
        usage = sum_usage(usage, called)
        if run is not None and is_of_run:
            run = active_run.add_reply_to_run(run, event, fact, completion, len(messages), called)
    elif run is not None and is_of_run:
        run = active_run.add_message_to_run(run, event, fact, len(messages))
    if person is not UNSET and entry.role == "user":
        return replace(state, messages=messages, usage=usage, run=run, handback_note=None)
    return replace(state, messages=messages, usage=usage, run=run)


def _apply_context_updated(state: State, event: facts.RecordedEvent, fact: facts.ContextUpdated) -> State:
    context = apply(state.context_variables, fact.patch, () if fact.nulls is UNSET else fact.nulls)
    run = state.run
    if run is not None and fact.tool_call_id is not None:
        run = active_run.note_change_made(run, fact.tool_call_id)
    return replace(state, context_variables=context, run=run)


def _apply_handoff_made(state: State, event: facts.RecordedEvent, fact: facts.HandoffMade) -> State:
    return replace(state, agent=fact.to_agent)


def _apply_session_redacted(state: State, event: facts.RecordedEvent, fact: facts.SessionRedacted) -> State:
    # What is under way with the messages as they were, as a summary is, comes too late from here on.
    forgotten = state.forgotten_texts if fact.texts is UNSET else state.forgotten_texts | {*fact.texts}
    return replace(state, last_change=event.seq, forgotten_texts=forgotten)


def _keep(state: State, event: facts.RecordedEvent, fact: facts.NoteAdded | facts.UnknownFact) -> State:
    return state


def _apply_session_updated(state: State, fact: facts.SessionUpdated) -> State:
    if fact.metadata is not UNSET:
        state = replace(state, metadata=merge(state.metadata, fact.metadata))
    return state if fact.agent is UNSET else replace(state, agent=fact.agent)


def _apply_session_forked(state: State, event: facts.RecordedEvent, fact: facts.SessionForked) -> State:
    # The run that the copied history may end in goes on in the original, not here.
    if state.run is not None:
        ended = facts.RunInterrupted(stop_reason="interrupted", usage=state.run.usage)
        context, run = active_run.make_held_changes(state.context_variables, state.run)
        state = _end_active(replace(state, context_variables=context), run, event, ended)
    origin = Origin(session_id=fact.from_session_id, seq=fact.from_seq, hash=fact.from_hash)
    # A fork waits for no answer, and no person speaks in it for its agent or looks after it. A hold is on the original.
    return replace(
        active_run.forget_approvals(active_run.forget_sessions(state)),
        queue=(),
        compaction=None,
        forked_from=origin,
        forked_at=event.seq,
        parent=None,
        taken_over=None,
        hold=None,
        handback_note=None,
        assignee=None,
        rated=Chain(),
        feedback=Feedback(),
        created_at=event.at,
    )


def _apply_run_started(state: State, event: facts.RecordedEvent, fact: facts.RunStarted) -> State:
    run_id, message_count = event.run_id or "", len(state.messages)
    run = Run(
        id=run_id,
        status="running",
        options=fact.options,
        first_seq=event.seq,
        last_seq=event.seq,
        created_at=event.at,
        active_since=event.at,
        agent=state.agent,
        context_variables=state.context_variables,
        first_message=message_count,
        last_message=message_count,
        idempotency_key=fact.idempotency_key,
        by=fact.by,
        traceparent=fact.traceparent,
    )
    queue = state.queue and tuple([queued for queued in state.queue if queued.run_id != run_id])
    return replace(state, run=run, queue=queue, forgot_keys=state.forgot_keys or facts.is_redacted(event))


def _apply_run_resumed(state: State, event: facts.RecordedEvent, fact: facts.RunResumed) -> State:
    is_resumed = state.run is None and bool(state.finished) and state.finished[-1].id == event.run_id
    if is_resumed:
        state = replace(state, run=replace(state.finished[-1], recoveries=-1), finished=state.finished.drop_last())
    if state.run is None:
        return state
    return replace(state, run=active_run.make_going_on(state.run, event, fact))


def _apply_run_ended(state: State, event: facts.RecordedEvent, fact: facts.RunEnded) -> State:
    if state.run is not None and state.run.id == event.run_id:
        return _end_active(state, state.run, event, fact)
    for queued in state.queue:
        if queued.run_id == event.run_id:
            run = active_run.make_queued_run(state, queued)
            ended = _finish_run(run, event, fact, run.agent, run.context_variables)
            rest = tuple(other for other in state.queue if other is not queued)
            return replace(state, queue=rest, finished=state.finished.append(ended))
    return state


def _end_active(state: State, run: Run, event: facts.RecordedEvent, fact: facts.RunEnded) -> State:
    if fact.error is not None and fact.error.code == facts.IMPORTED:
        # So an import ends what ran, and before there was an event for imports nothing else told of them.
        run = mark_imported(run, run.by)
    ended = _finish_run(run, event, fact, state.agent, state.context_variables)
    return replace(state, run=None, finished=state.finished.append(ended))


def _finish_run(run: Run, event: facts.RecordedEvent, fact: facts.RunEnded, agent: str, context: Json) -> Run:
    return replace(
        run,
        status=STATUS_BY_ENDING[type(fact)],
        stop_reason=fact.stop_reason,
        error=fact.error,
        pending=(),
        waited_ms=active_run.sum_waits(run, event.at) if run.waiting_since else run.waited_ms,
        waiting_since="",
        last_seq=event.seq,
        finished_at=event.at,
        agent=agent,
        context_variables=context,
    )


# A table, because `match` asks of one class after the other whether it is an instance, and each no takes longer than
# the whole table.
_STEPS: dict[type[facts.Fact], Callable[[State, facts.RecordedEvent, Any], State]] = {
    facts.MessageAdded: _apply_message_added,
    facts.ToolStarted: active_run.apply_tool_started,
    facts.ContextUpdated: _apply_context_updated,
    facts.HandoffMade: _apply_handoff_made,
    facts.RunStarted: _apply_run_started,
    **dict.fromkeys(STATUS_BY_ENDING, _apply_run_ended),
    **dict.fromkeys(get_args(RunFact), _apply_run_event),
    **dict.fromkeys(get_args(SessionFact), _apply_session_event),
    **dict.fromkeys(get_args(HistoryFact), apply_history_event),
    facts.SessionRedacted: _apply_session_redacted,
    facts.FeedbackAdded: apply_feedback,
    facts.NoteAdded: _keep,
    facts.UnknownFact: _keep,
}
