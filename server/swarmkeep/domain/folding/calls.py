"""The calls of the active run, and whether it has been answered, as messages and results come."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.domain.codec import Json
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import ApprovalDecided, MessageAdded, ToolStarted, Usage
from swarmkeep.domain.patch import apply_change
from swarmkeep.domain.state import Run, State, make_calls, sum_usage


def change_call(run: Run, call_id: str | None, changes: dict[str, Any], **of_run: Any) -> Run:
    """The run with changes of a call, and its own."""
    calls = tuple([replace(call, **changes) if call.id == call_id else call for call in run.calls])
    if not run.pending:
        return replace(run, calls=calls, **of_run)
    settled = {call.id for call in calls if call.done or call.approval in ("approve", "deny")}
    pending = tuple(waited for waited in run.pending if waited.tool_call_id not in settled)
    return replace(run, calls=calls, pending=pending, **of_run)


def make_held_changes(context: Json, run: Run) -> tuple[Json, Run]:
    """The context with the changes that ended calls still hold, in the order of the calls, and the run without them."""
    for call in run.calls:
        if call.held is not None:
            context = apply_change(context, call.held)
            run = change_call(run, call.id, {"held": None})
    return context, run


def forget_sessions(run: Run) -> Run:
    """The run of a fork: what its calls asked was asked by another session's."""
    for call in run.calls:
        if call.session_id is not None:
            run = change_call(run, call.id, {"session_id": None})
    return run


def judge_answer(run: Run, fact: MessageAdded) -> Run:
    """The run after a message that may be about its answer: taken, or sent back."""
    if fact.correction is not UNSET:
        return replace(run, answered=False, corrections=run.corrections + 1)
    gives_output = fact.tool is not None and fact.tool.output is True
    return replace(run, answered=True) if gives_output or fact.guardrail is not UNSET else run


def add_message_to_run(
    run: Run, event: RecordedEvent, fact: MessageAdded, message_count: int, called: Usage | None
) -> Run:
    if called is None:
        place = {"last_seq": event.seq, "last_message": message_count}
        judged = judge_answer(run, fact)
        return end_call(judged, fact, **place) if fact.message.get("role") == "tool" else replace(judged, **place)
    calls = make_calls(fact.message)
    run = replace(
        run,
        last_seq=event.seq,
        last_message=message_count,
        turns=run.turns + 1,
        recoveries=0,
        usage=sum_usage(run.usage, called),
        calls=calls,
        answered=not calls,
    )
    return end_call(run, fact) if fact.message.get("role") == "tool" else run


def apply_tool_started(state: State, fact: ToolStarted) -> State:
    if state.run is None:
        return state
    changes: dict[str, Any] = {"attempts": fact.attempt}
    if fact.session_id is not UNSET:
        changes["session_id"] = fact.session_id
    return replace(state, run=change_call(state.run, fact.tool_call_id, changes))


def update_call(state: State, call_id: str | None, **changes: Any) -> State:
    return state if state.run is None else replace(state, run=change_call(state.run, call_id, changes))


def decide_call(state: State, fact: ApprovalDecided) -> State:
    """The state after a decision about a call; one that is approved may have other arguments from here on."""
    if state.run is None:
        return state
    changes: dict[str, Any] = {"approval": fact.decision, "approval_reason": fact.reason}
    if fact.arguments is not UNSET and fact.decision == "approve":
        call = next((call for call in state.run.calls if call.id == fact.tool_call_id), None)
        changes |= {} if call is None else {"arguments": fact.arguments, "original_arguments": call.arguments}
    return replace(state, run=change_call(state.run, fact.tool_call_id, changes))


def note_change_made(state: State, call_id: str) -> State:
    if state.run is None or not any(call.held is not None and call.id == call_id for call in state.run.calls):
        return state
    return update_call(state, call_id, held=None)


def end_call(run: Run, fact: MessageAdded, **of_run: Any) -> Run:
    changes: dict[str, Any] = {"done": True, "handoff": None}
    if fact.tool is not None:
        changes["handoff"] = None if fact.tool.handoff is UNSET else fact.tool.handoff
        if fact.tool.context is not UNSET:
            changes["held"] = fact.tool.context
    return change_call(run, fact.message.get("tool_call_id"), changes, **of_run)
