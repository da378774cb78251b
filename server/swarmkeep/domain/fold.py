"""The fold: from events to state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, assert_never, get_args

from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.domain.codec import Json
from swarmkeep.domain.envelope import RecordedEvent, is_redacted
from swarmkeep.domain.events import (
    IMPORTED,
    ApprovalDecided,
    ApprovalRequested,
    ContextUpdated,
    HandoffMade,
    MessageAdded,
    RunEnded,
    RunHidden,
    RunInterrupted,
    RunQueued,
    RunResumed,
    RunStarted,
    RunWaiting,
    SessionCreated,
    SessionForked,
    SessionImported,
    SessionRedacted,
    SessionUpdated,
    ToolStarted,
    UnknownFact,
)
from swarmkeep.domain.facts.fact import Fact
from swarmkeep.domain.facts.records import read_usage, sum_usage
from swarmkeep.domain.facts.takeovers import SessionHandedBack, SessionTakenOver
from swarmkeep.domain.facts.tools import ToolsListed
from swarmkeep.domain.files.references import list_file_names
from swarmkeep.domain.folding.calls import (
    add_message_to_run,
    add_reply_to_run,
    apply_tool_started,
    decide_call,
    forget_approvals,
    forget_sessions,
    make_held_changes,
    note_change_made,
    update_call,
)
from swarmkeep.domain.folding.history import HistoryFact, apply_history_event
from swarmkeep.domain.folding.imports import apply_session_imported, mark_imported
from swarmkeep.domain.folding.listings import apply_tools_listed
from swarmkeep.domain.folding.removals import hide_run
from swarmkeep.domain.folding.takeovers import apply_takeover
from swarmkeep.domain.folding.waits import make_going_on, make_queued_run, make_waiting, note_approval
from swarmkeep.domain.messages import Entry
from swarmkeep.domain.patch import apply, merge
from swarmkeep.domain.state import STATUS_BY_ENDING, Origin, QueuedRun, Run, State

SessionFact = (
    SessionCreated | SessionUpdated | SessionForked | SessionImported | SessionTakenOver | SessionHandedBack
    | ToolsListed
)  # fmt: skip
RunFact = RunQueued | RunWaiting | RunResumed | RunHidden | ApprovalRequested | ApprovalDecided


def fold(events: Iterable[RecordedEvent], state: State | None = None) -> State:
    """The state after `events`, which follow `state` in the log."""
    folded = State() if state is None else state
    size = folded.size
    event: RecordedEvent | None = None
    for event in events:
        size += len(event.payload)
        fact = event.fact
        folded = _STEPS[type(fact)](folded, event, fact)
    if event is None:
        return folded
    # Once for all of them: each copy of a state that is saved counts when a long session is read. So the steps say
    # what an event changes of a state, but for the state's place in the log.
    return replace(folded, seq=event.seq, hash=event.hash, updated_at=event.at, size=size)


def evolve(state: State, event: RecordedEvent) -> State:
    """The state after one more event. Pure and total."""
    return fold((event,), state)


def _apply_session_event(state: State, event: RecordedEvent, fact: SessionFact) -> State:
    match fact:
        case SessionCreated(agent=agent, context_variables=context, metadata=metadata):
            created = replace(state, agent=agent, context_variables=context, metadata=metadata, created_at=event.at)
            return created if fact.parent is UNSET else replace(created, parent=fact.parent)
        case SessionUpdated():
            return _apply_session_updated(state, fact)
        case SessionForked():
            return _apply_session_forked(state, event, fact)
        case SessionImported():
            return apply_session_imported(state, UNSET if fact.by is None else fact.by)
        case SessionTakenOver() | SessionHandedBack():
            return apply_takeover(state, event, fact)
        case ToolsListed():
            return apply_tools_listed(state, event, fact)
        case _:
            assert_never(fact)


def _apply_run_event(state: State, event: RecordedEvent, fact: RunFact) -> State:
    match fact:
        case RunQueued():
            queued = QueuedRun(run_id=event.run_id or "", seq=event.seq, at=event.at, fact=fact)
            # Its event refers to them, whatever becomes of the run.
            files = state.queued_files
            for name in list_file_names(fact.messages):
                files = files.append(name)
            forgot = state.forgot_keys or is_redacted(event)
            return replace(state, queue=(*state.queue, queued), queued_files=files, forgot_keys=forgot)
        case RunWaiting():
            return state if state.run is None else replace(state, run=make_waiting(state.run, event, fact))
        case RunResumed():
            return _apply_run_resumed(state, event, fact)
        case ApprovalRequested():
            state = note_approval(state, event, fact)
            return update_call(state, fact.tool_call_id, approval="requested", expires_at=fact.expires_at)
        case ApprovalDecided():
            if fact.decision not in ("approve", "deny"):
                # Of a later release. Whatever it means, here nobody has said yes.
                return state
            state = note_approval(state, event, fact)
            return decide_call(state, event, fact)
        case RunHidden():
            return hide_run(state, event.run_id, fact.part)
        case _:
            assert_never(fact)


def _apply_message_added(state: State, event: RecordedEvent, fact: MessageAdded) -> State:
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
            run = add_reply_to_run(run, event, fact, len(messages), called)
    elif run is not None and is_of_run:
        run = add_message_to_run(run, event, fact, len(messages))
    if person is not UNSET and entry.role == "user":
        return replace(state, messages=messages, usage=usage, run=run, handback_note=None)
    return replace(state, messages=messages, usage=usage, run=run)


def _apply_context_updated(state: State, event: RecordedEvent, fact: ContextUpdated) -> State:
    context = apply(state.context_variables, fact.patch, () if fact.nulls is UNSET else fact.nulls)
    run = state.run
    if run is not None and fact.tool_call_id is not None:
        run = note_change_made(run, fact.tool_call_id)
    return replace(state, context_variables=context, run=run)


def _apply_handoff_made(state: State, event: RecordedEvent, fact: HandoffMade) -> State:
    return replace(state, agent=fact.to_agent)


def _apply_session_redacted(state: State, event: RecordedEvent, fact: SessionRedacted) -> State:
    # What is under way with the messages as they were, as a summary is, comes too late from here on.
    forgotten = state.forgotten_texts if fact.texts is UNSET else state.forgotten_texts | {*fact.texts}
    return replace(state, last_change=event.seq, forgotten_texts=forgotten)


def _keep(state: State, event: RecordedEvent, fact: UnknownFact) -> State:
    return state


def _apply_session_updated(state: State, fact: SessionUpdated) -> State:
    if fact.metadata is not UNSET:
        state = replace(state, metadata=merge(state.metadata, fact.metadata))
    return state if fact.agent is UNSET else replace(state, agent=fact.agent)


def _apply_session_forked(state: State, event: RecordedEvent, fact: SessionForked) -> State:
    # The run that the copied history may end in goes on in the original, not here.
    if state.run is not None:
        ended = RunInterrupted(stop_reason="interrupted", usage=state.run.usage)
        context, run = make_held_changes(state.context_variables, state.run)
        state = _end_active(replace(state, context_variables=context), run, event, ended)
    origin = Origin(session_id=fact.from_session_id, seq=fact.from_seq, hash=fact.from_hash)
    # A fork is asked nothing by anybody, and nobody speaks in it for its agent.
    return replace(
        forget_approvals(forget_sessions(state)),
        queue=(),
        compaction=None,
        forked_from=origin,
        parent=None,
        taken_over=None,
        handback_note=None,
        created_at=event.at,
    )


def _apply_run_started(state: State, event: RecordedEvent, fact: RunStarted) -> State:
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
    return replace(state, run=run, queue=queue, forgot_keys=state.forgot_keys or is_redacted(event))


def _apply_run_resumed(state: State, event: RecordedEvent, fact: RunResumed) -> State:
    anew = state.run is None and bool(state.finished) and state.finished[-1].id == event.run_id
    if anew:
        state = replace(state, run=replace(state.finished[-1], recoveries=-1), finished=state.finished.drop_last())
    if state.run is None:
        return state
    return replace(state, run=make_going_on(state.run, event, fact))


def _apply_run_ended(state: State, event: RecordedEvent, fact: RunEnded) -> State:
    if state.run is not None and state.run.id == event.run_id:
        return _end_active(state, state.run, event, fact)
    for queued in state.queue:
        if queued.run_id == event.run_id:
            run = make_queued_run(state, queued)
            ended = _finish_run(run, event, fact, run.agent, run.context_variables)
            rest = tuple(other for other in state.queue if other is not queued)
            return replace(state, queue=rest, finished=state.finished.append(ended))
    return state


def _end_active(state: State, run: Run, event: RecordedEvent, fact: RunEnded) -> State:
    if fact.error is not None and fact.error.code == IMPORTED:
        # So an import ends what ran, and before there was an event for imports nothing else told of them.
        run = mark_imported(run, run.by)
    ended = _finish_run(run, event, fact, state.agent, state.context_variables)
    return replace(state, run=None, finished=state.finished.append(ended))


def _finish_run(run: Run, event: RecordedEvent, fact: RunEnded, agent: str, context: Json) -> Run:
    return replace(
        run,
        status=STATUS_BY_ENDING[type(fact)],
        stop_reason=fact.stop_reason,
        error=fact.error,
        pending=(),
        last_seq=event.seq,
        finished_at=event.at,
        agent=agent,
        context_variables=context,
    )


# A table, because `match` asks of one class after the other whether it is an instance, and each no takes longer than
# the whole table.
_STEPS: dict[type[Fact], Callable[[State, RecordedEvent, Any], State]] = {
    MessageAdded: _apply_message_added,
    ToolStarted: apply_tool_started,
    ContextUpdated: _apply_context_updated,
    HandoffMade: _apply_handoff_made,
    RunStarted: _apply_run_started,
    **dict.fromkeys(STATUS_BY_ENDING, _apply_run_ended),
    **dict.fromkeys(get_args(RunFact), _apply_run_event),
    **dict.fromkeys(get_args(SessionFact), _apply_session_event),
    **dict.fromkeys(get_args(HistoryFact), apply_history_event),
    SessionRedacted: _apply_session_redacted,
    UnknownFact: _keep,
}
