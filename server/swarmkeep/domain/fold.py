"""The fold: from events to state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import (
    IMPORTED,
    ApprovalDecided,
    ApprovalRequested,
    ContextUpdated,
    HandoffIgnored,
    HandoffMade,
    MessageAdded,
    RunCancelled,
    RunCompleted,
    RunEnded,
    RunFailed,
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
from swarmkeep.domain.messages import SUPERSEDED, Entry
from swarmkeep.domain.patch import apply, merge
from swarmkeep.domain.state import Origin, QueuedRun, Run, RunStatus, State, add_usage, make_calls, make_queued_run


def fold(events: Iterable[RecordedEvent], state: State | None = None) -> State:
    """The state after `events`, which follow `state` in the log."""
    folded = State() if state is None else state
    for event in events:
        folded = evolve(folded, event)
    return folded


def evolve(state: State, event: RecordedEvent) -> State:
    """The state after one more event. Pure and total."""
    fact = event.fact
    size = state.size + len(event.payload)
    if isinstance(fact, MessageAdded):
        # Half of all events: each copy of a state that is saved here counts when a long session is read.
        changes = _apply_message_added(state, event, fact)
        return replace(state, seq=event.seq, hash=event.hash, updated_at=event.at, size=size, **changes)
    state = replace(state, seq=event.seq, hash=event.hash, updated_at=event.at, size=size)
    match fact:
        case ToolStarted():
            return _update_call(state, fact.tool_call_id, attempts=fact.attempt)
        case ContextUpdated():
            nulls = () if fact.nulls is UNSET else fact.nulls
            return replace(state, context_variables=apply(state.context_variables, fact.patch, nulls))
        case HandoffMade():
            return replace(state, agent=fact.to_agent)
        case HandoffIgnored():
            return _apply_handoff_ignored(state, fact)
        case SessionCreated() | SessionUpdated() | SessionForked() | SessionImported():
            return _apply_session_event(state, event, fact)
        case SessionRedacted() | UnknownFact():
            return state
        case _:
            return _apply_run_event(state, event, fact)


def _apply_session_event(
    state: State, event: RecordedEvent, fact: SessionCreated | SessionUpdated | SessionForked | SessionImported
) -> State:
    match fact:
        case SessionCreated(agent=agent, context_variables=context, metadata=metadata):
            return replace(state, agent=agent, context_variables=context, metadata=metadata, created_at=event.at)
        case SessionUpdated():
            return _apply_session_updated(state, fact)
        case SessionForked():
            return _apply_session_forked(state, event, fact)
        case SessionImported():
            return _apply_session_imported(state, UNSET if fact.by is None else fact.by)
        case _:
            assert_never(fact)


def _apply_run_event(
    state: State,
    event: RecordedEvent,
    fact: RunQueued | RunStarted | RunWaiting | RunResumed | ApprovalRequested | ApprovalDecided
    | RunCompleted | RunFailed | RunCancelled | RunInterrupted,
) -> State:  # fmt: skip
    match fact:
        case RunStarted():
            return _apply_run_started(state, event, fact)
        case RunQueued():
            queued = QueuedRun(run_id=event.run_id or "", seq=event.seq, at=event.at, fact=fact)
            return replace(state, queue=(*state.queue, queued))
        case RunWaiting():
            return _update_run(state, status="waiting", pending=fact.pending, last_seq=event.seq)
        case RunResumed():
            return _apply_run_resumed(state, event, fact)
        case ApprovalRequested():
            return _update_call(state, fact.tool_call_id, approval="requested", expires_at=fact.expires_at)
        case ApprovalDecided():
            if fact.decision not in ("approve", "deny"):
                # Of a later release. Whatever it means, here nobody has said yes.
                return state
            return _update_call(state, fact.tool_call_id, approval=fact.decision, approval_reason=fact.reason)
        case RunCompleted() | RunFailed() | RunCancelled() | RunInterrupted():
            return _apply_run_ended(state, event, fact)
        case _:
            assert_never(fact)


def _update_run(state: State, **changes: Any) -> State:
    return state if state.run is None else replace(state, run=replace(state.run, **changes))


def _update_call(state: State, call_id: str | None, **changes: Any) -> State:
    return state if state.run is None else replace(state, run=_change_call(state.run, call_id, changes))


def _change_call(run: Run, call_id: str | None, changes: dict[str, Any]) -> Run:
    calls = tuple([replace(call, **changes) if call.id == call_id else call for call in run.calls])
    if not run.pending:
        return replace(run, calls=calls)
    settled = {call.id for call in calls if call.done or call.approval in ("approve", "deny")}
    pending = tuple(waited for waited in run.pending if waited.tool_call_id not in settled)
    return replace(run, calls=calls, pending=pending)


def _apply_message_added(state: State, event: RecordedEvent, fact: MessageAdded) -> dict[str, Any]:
    """What a message changes of a state."""
    entry = Entry(
        seq=event.seq,
        at=event.at,
        run_id=event.run_id,
        message=fact.message,
        completion=fact.completion,
        tool=fact.tool,
    )
    changes: dict[str, Any] = {"messages": state.messages.append(entry)}
    if fact.completion is not None:
        changes["usage"] = add_usage(state.usage, fact.completion.usage)
    if state.run is not None and event.run_id == state.run.id:
        run = _add_message_to_run(state.run, event, fact, len(state.messages) + 1)
        if entry.role == "tool":
            handoff = fact.tool.handoff if fact.tool is not None and fact.tool.handoff is not UNSET else None
            run = _change_call(run, fact.message.get("tool_call_id"), {"done": True, "handoff": handoff})
        changes["run"] = run
    return changes


def _add_message_to_run(run: Run, event: RecordedEvent, fact: MessageAdded, message_count: int) -> Run:
    if fact.completion is None:
        return replace(run, last_seq=event.seq, last_message=message_count)
    calls = make_calls(fact.message)
    return replace(
        run,
        last_seq=event.seq,
        last_message=message_count,
        turns=run.turns + 1,
        recoveries=0,
        usage=add_usage(run.usage, fact.completion.usage),
        calls=calls,
        answered=not calls,
    )


def _apply_handoff_ignored(state: State, fact: HandoffIgnored) -> State:
    # The result was recorded before it was known that a later call would hand over too. No model has seen it yet.
    for index in range(len(state.messages) - 1, -1, -1):
        entry = state.messages[index]
        if entry.role == "tool" and entry.message.get("tool_call_id") == fact.tool_call_id is not None:
            message = {**entry.message, "content": SUPERSEDED.format(agent=fact.to_agent)}
            tool = entry.tool and replace(entry.tool, status="superseded")
            return replace(state, messages=state.messages.replace_at(index, replace(entry, message=message, tool=tool)))
    return state


def _apply_session_updated(state: State, fact: SessionUpdated) -> State:
    if fact.metadata is not UNSET:
        state = replace(state, metadata=merge(state.metadata, fact.metadata))
    return state if fact.agent is UNSET else replace(state, agent=fact.agent)


def _apply_session_forked(state: State, event: RecordedEvent, fact: SessionForked) -> State:
    # The run that the copied history may end in goes on in the original, not here.
    if state.run is not None:
        ended = RunInterrupted(stop_reason="interrupted", usage=state.run.usage)
        state = _end_active(state, state.run, event, ended)
    origin = Origin(session_id=fact.from_session_id, seq=fact.from_seq, hash=fact.from_hash)
    return replace(state, queue=(), forked_from=origin, created_at=event.at)


def _apply_session_imported(state: State, by: str | UnsetType) -> State:
    # The last run to end may be tried again, with its calls.
    if len(state.finished):
        last = len(state.finished) - 1
        state = replace(state, finished=state.finished.replace_at(last, _mark_imported(state.finished[last], by)))
    queue = tuple(replace(queued, fact=replace(queued.fact, by=by, traceparent=UNSET)) for queued in state.queue)
    return replace(state, queue=queue, run=None if state.run is None else _mark_imported(state.run, by))


def _mark_imported(run: Run, by: str | UnsetType) -> Run:
    """The run without whatever was decided on its open calls, and without a trace.

    Who started it, only whoever imported it says.
    """
    calls = tuple(
        call if call.done else replace(call, imported=True, approval=None, approval_reason=None, expires_at=None)
        for call in run.calls
    )
    return replace(run, calls=calls, by=by, traceparent=UNSET)


def _apply_run_started(state: State, event: RecordedEvent, fact: RunStarted) -> State:
    run_id = event.run_id or ""
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
        first_message=len(state.messages),
        last_message=len(state.messages),
        idempotency_key=fact.idempotency_key,
        by=fact.by,
        traceparent=fact.traceparent,
    )
    return replace(state, run=run, queue=tuple(queued for queued in state.queue if queued.run_id != run_id))


def _apply_run_resumed(state: State, event: RecordedEvent, fact: RunResumed) -> State:
    anew = state.run is None and bool(state.finished) and state.finished[-1].id == event.run_id
    if anew:
        state = replace(state, run=replace(state.finished[-1], recoveries=-1), finished=state.finished.drop_last())
    if state.run is None:
        return state
    return _update_run(
        state,
        active_since=event.at,
        status="running",
        pending=(),
        stop_reason=None,
        error=None,
        finished_at=None,
        last_seq=event.seq,
        recoveries=state.run.recoveries + 1 if fact.reason == "recovery" else 0,
    )


_STATUS_BY_ENDING: dict[type[RunEnded], RunStatus] = {
    RunCompleted: "completed",
    RunFailed: "failed",
    RunCancelled: "cancelled",
    RunInterrupted: "interrupted",
}


def _apply_run_ended(state: State, event: RecordedEvent, fact: RunEnded) -> State:
    if state.run is not None and state.run.id == event.run_id:
        return _end_active(state, state.run, event, fact)
    for queued in state.queue:
        if queued.run_id == event.run_id:
            rest = replace(state, queue=tuple(other for other in state.queue if other is not queued))
            return _finish_run(rest, make_queued_run(state, queued), event, fact)
    return state


def _end_active(state: State, run: Run, event: RecordedEvent, fact: RunEnded) -> State:
    run = replace(run, agent=state.agent, context_variables=state.context_variables)
    if fact.error is not None and fact.error.code == IMPORTED:
        # So an import ends what ran, and before there was an event for imports nothing else told of them.
        run = _mark_imported(run, run.by)
    return _finish_run(replace(state, run=None), run, event, fact)


def _finish_run(state: State, run: Run, event: RecordedEvent, fact: RunEnded) -> State:
    run = replace(
        run,
        status=_STATUS_BY_ENDING[type(fact)],
        stop_reason=fact.stop_reason,
        error=fact.error,
        pending=(),
        last_seq=event.seq,
        finished_at=event.at,
    )
    return replace(state, finished=state.finished.append(run))
