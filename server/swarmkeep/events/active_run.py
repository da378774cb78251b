"""The active run of a session, as its events change it: its calls, its answer, its waits."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.events import facts
from swarmkeep.events.codec import Json, count_milliseconds
from swarmkeep.events.patch import apply_change
from swarmkeep.events.records import CompletionRecord, Usage, sum_usage
from swarmkeep.events.state import ApprovalNote, QueuedRun, Run, State, ToolCall, make_calls

# The calls of the active run, and whether it has been answered, as messages and results come.

Calls = tuple[ToolCall, ...]


def find_call(calls: Calls, call_id: object) -> ToolCall | None:
    for call in calls:
        if call.id == call_id:
            return call
    return None


def exchange_call(calls: Calls, changed: ToolCall) -> Calls:
    """The calls with one of them as it is now."""
    if len(calls) == 1:
        # As most turns have it.
        return (changed,)
    return tuple([changed if call.id == changed.id else call for call in calls])


def list_unsettled(pending: tuple[facts.PendingCall, ...], calls: Calls) -> tuple[facts.PendingCall, ...]:
    """List the calls that still wait, by how the calls are now."""
    settled = {call.id for call in calls if call.done or call.approval in ("approve", "deny")}
    return tuple(waited for waited in pending if waited.tool_call_id not in settled)


def put_calls(run: Run, calls: Calls) -> Run:
    """The run with its calls as they are now."""
    return replace(run, calls=calls, pending=run.pending and list_unsettled(run.pending, calls))


def change_call(run: Run, call_id: str | None, **changes: Any) -> Run:
    """The run with changes of a call."""
    call = find_call(run.calls, call_id)
    return put_calls(run, run.calls if call is None else exchange_call(run.calls, replace(call, **changes)))


def make_held_changes(context: Json, run: Run) -> tuple[Json, Run]:
    """The context with the changes that ended calls still hold, in the order of the calls, and the run without them."""
    for call in run.calls:
        if call.held is not None:
            context = apply_change(context, call.held)
            run = change_call(run, call.id, held=None)
    return context, run


def forget_sessions(state: State) -> State:
    """The state of a fork: what the calls of a run that may be tried again have asked was asked by another session's,
    so that what came of it is not known here."""
    if not len(state.finished) or state.finished[-1].status != "interrupted":
        return state
    run = state.finished[-1]
    for call in run.calls:
        if call.session_id is not None:
            run = change_call(run, call.id, session_id=None)
    return state if run is state.finished[-1] else replace(state, finished=state.finished.replace_at(-1, run))


def forget_approvals(state: State) -> State:
    """Return the state from which another session goes on: what was approved there was approved once, and there is no
    approval here. So an approval of a call is requested again, with the arguments that the model gave it."""
    if state.run is not None:
        return replace(state, run=_forget_approvals_of_run(state.run))
    if not len(state.finished) or state.finished[-1].status != "interrupted":
        return state
    # It may be tried again, with its calls.
    last = _forget_approvals_of_run(state.finished[-1])
    return state if last is state.finished[-1] else replace(state, finished=state.finished.replace_at(-1, last))


def _forget_approvals_of_run(run: Run) -> Run:
    is_left = [call.approval == "approve" and not call.done for call in run.calls]
    if not any(is_left):
        return run
    calls = [make_undecided(call) if left else call for call, left in zip(run.calls, is_left, strict=True)]
    return replace(run, calls=tuple(calls))


def make_undecided(call: ToolCall) -> ToolCall:
    """Return the call as its model asked for it, without any decision."""
    asked = call.arguments if call.original_arguments is None else call.original_arguments
    return replace(call, approval=None, approval_reason=None, expires_at=None, arguments=asked, original_arguments=None)


def add_message_to_run(run: Run, event: facts.RecordedEvent, fact: facts.MessageAdded, message_count: int) -> Run:
    """The run after a message that no model gave; it may be about the answer: take it, or send it back."""
    answered, corrections, calls, pending = run.answered, run.corrections, run.calls, run.pending
    tool_calls, tool_errors = run.tool_calls, run.tool_errors
    if fact.correction is not UNSET:
        answered, corrections = False, corrections + 1
    elif fact.guardrail is not UNSET or (fact.tool is not None and fact.tool.output is True):
        answered = True
    if fact.message.get("role") == "tool":
        calls = end_call(calls, fact)
        pending = pending and list_unsettled(pending, calls)
    if fact.tool is not None:
        tool_calls += 1
        tool_errors += fact.tool.status in _TOOL_ERRORS
    return replace(
        run,
        last_seq=event.seq,
        last_message=message_count,
        answered=answered,
        corrections=corrections,
        calls=calls,
        pending=pending,
        tool_calls=tool_calls,
        tool_errors=tool_errors,
    )


_TOOL_ERRORS = frozenset({"error", "timeout", "unknown_outcome"})


def add_reply_to_run(
    run: Run,
    event: facts.RecordedEvent,
    fact: facts.MessageAdded,
    completion: CompletionRecord,
    message_count: int,
    called: Usage,
) -> Run:
    calls = make_calls(fact.message)
    if calls and facts.is_redacted(event):
        calls = tuple(replace(call, redacted=True) for call in calls)
    run = replace(
        run,
        last_seq=event.seq,
        last_message=message_count,
        turns=run.turns + 1,
        recoveries=0,
        usage=sum_usage(run.usage, called),
        model=completion.named_model or run.model,
        first_token_ms=_find_first_token(run, completion),
        calls=calls,
        answered=not calls,
    )
    return put_calls(run, end_call(calls, fact)) if fact.message.get("role") == "tool" else run


def _find_first_token(run: Run, completion: CompletionRecord) -> float | None:
    took = completion.time_to_first_token_ms
    return run.first_token_ms if run.first_token_ms is not None or took is UNSET else took


def end_call(calls: Calls, fact: facts.MessageAdded) -> Calls:
    call, tool = find_call(calls, fact.message.get("tool_call_id")), fact.tool
    if call is None:
        return calls
    if tool is None:
        return exchange_call(calls, replace(call, done=True, handoff=None))
    handoff = None if tool.handoff is UNSET else tool.handoff
    held = call.held if tool.context is UNSET else tool.context
    return exchange_call(calls, replace(call, done=True, handoff=handoff, held=held))


def apply_tool_started(state: State, event: facts.RecordedEvent, fact: facts.ToolStarted) -> State:
    run = state.run
    if run is None:
        return state
    call = find_call(run.calls, fact.tool_call_id)
    if call is None:
        return replace(state, run=put_calls(run, run.calls))
    session_id = call.session_id if fact.session_id is UNSET else fact.session_id
    started = replace(call, attempts=fact.attempt, session_id=session_id)
    return replace(state, run=put_calls(run, exchange_call(run.calls, started)))


def update_call(state: State, call_id: str | None, **changes: Any) -> State:
    return state if state.run is None else replace(state, run=change_call(state.run, call_id, **changes))


def decide_call(state: State, event: facts.RecordedEvent, fact: facts.ApprovalDecided) -> State:
    """The state after a decision about a call; one that is approved may have other arguments from here on."""
    if state.run is None:
        return state
    changes: dict[str, Any] = {"approval": fact.decision, "approval_reason": fact.reason}
    if fact.arguments is not UNSET and fact.decision == "approve":
        call = find_call(state.run.calls, fact.tool_call_id)
        if call is not None:
            changes |= {"arguments": fact.arguments, "original_arguments": call.arguments}
            changes |= {"redacted": call.redacted or facts.is_redacted(event)}
    return replace(state, run=change_call(state.run, fact.tool_call_id, **changes))


def note_change_made(run: Run, call_id: str) -> Run:
    call = find_call(run.calls, call_id)
    return run if call is None or call.held is None else change_call(run, call_id, held=None)


# A run that waits for its turn or for an answer from outside, and one that goes on.


def make_waiting(run: Run, event: facts.RecordedEvent, fact: facts.RunWaiting) -> Run:
    return replace(
        run,
        status="waiting",
        pending=fact.pending,
        last_seq=event.seq,
        waits=run.waits + 1,
        waiting_since=run.waiting_since or event.at,
        last_wait=event.seq,
        has_gone_on=False,
    )


def make_going_on(run: Run, event: facts.RecordedEvent, fact: facts.RunResumed) -> Run:
    return replace(
        run,
        active_since=event.at,
        waited_ms=sum_waits(run, event.at),
        waiting_since="",
        status="running",
        pending=(),
        stop_reason=None,
        error=None,
        finished_at=None,
        last_seq=event.seq,
        recoveries=run.recoveries + 1 if fact.reason == "recovery" else 0,
        options=run.options if fact.options is UNSET else fact.options,
        turns_before=run.turns_before if fact.options is UNSET else run.turns,
        has_gone_on=True,
    )


def sum_waits(run: Run, at: str) -> float:
    """How long a run has waited so far, or stood still since it ended, if it goes on or ends at this time."""
    since = run.waiting_since or run.finished_at
    return run.waited_ms if since is None else run.waited_ms + count_milliseconds(since, at)


def make_queued_run(state: State, queued: QueuedRun) -> Run:
    """A run that has not begun, in the form of one."""
    return Run(
        id=queued.run_id,
        status="queued",
        options=queued.fact.options,
        first_seq=queued.seq,
        last_seq=queued.seq,
        created_at=queued.at,
        active_since=queued.at,
        agent=queued.fact.agent or state.agent,
        first_message=len(state.messages),
        last_message=len(state.messages),
        context_variables=state.context_variables,
        idempotency_key=queued.fact.idempotency_key,
        by=queued.fact.by,
    )


def note_approval(
    state: State, event: facts.RecordedEvent, fact: facts.ApprovalRequested | facts.ApprovalDecided
) -> State:
    note = ApprovalNote(seq=event.seq, run_id=event.run_id, call_id=fact.tool_call_id)
    if isinstance(fact, facts.ApprovalDecided):
        note = replace(note, approve=fact.decision == "approve", reason=fact.reason)
    return replace(state, approvals=state.approvals.append(note))
