"""Going on after a wait: approvals, results from outside, and interrupted runs that are tried again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from swarmkeep.domain.decisions.drafts import apply_drafts, draft_events
from swarmkeep.domain.envelope import EventDraft
from swarmkeep.domain.errors import AlreadyDecided, InvalidRequest, OwnApproval, RunNotFound, RunNotWaiting
from swarmkeep.domain.events import (
    ApprovalDecided,
    Decision,
    MessageAdded,
    ResumeReason,
    RunResumed,
    SessionEvent,
    ToolRecord,
    ToolStatus,
)
from swarmkeep.domain.state import Run, State, ToolCall


class ToolAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A result from outside for a pending call."""

    tool_call_id: str
    content: str
    is_error: bool = False


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A decision on a call. `may_be_own`: whether it counts if it is `by` who started the run."""

    tool_call_id: str
    decision: Decision
    reason: str | None = None
    by: str | None = None
    may_be_own: bool = True


def resume_run(
    state: State,
    run_id: str,
    answers: Sequence[ToolAnswer] = (),
    approvals: Sequence[Approval] = (),
    *,
    now: datetime | None = None,
) -> list[EventDraft]:
    """Decide approvals and deliver results for a waiting run; it goes on once nothing that it needs is missing.

    The first decision of a call wins: a second one is AlreadyDecided, whatever it says, and so is one that comes after
    the request has expired at `now`. All of it is taken, or none. An interrupted run is tried again by a resume with
    neither.
    """
    run = state.run
    decisions: list[Approval | ToolAnswer] = [*approvals, *answers]
    if run is None or run.id != run_id:
        return _retry_interrupted(state, run_id, decisions)
    if run.status != "waiting" and not decisions:
        raise RunNotWaiting(run_id, run.status)
    drafts: list[EventDraft] = []
    current = state
    for decision in decisions:
        assert current.run is not None
        if isinstance(decision, Approval):
            fact: SessionEvent = _decide_approval(current, current.run, decision, now)
        else:
            fact = _deliver_result(current, current.run, decision)
        drafts += draft_events(state.agent, [fact], run_id)
        current = apply_drafts(current, drafts[-1:])
    if not drafts:
        raise InvalidRequest("give `approvals` or `tool_results`")
    return drafts + _resume_if_ready(current, "approval" if approvals else "tool_results")


def _resume_if_ready(state: State, reason: ResumeReason) -> list[EventDraft]:
    """Go on, once nothing is pending any more."""
    run = state.run
    return [] if run is None or run.pending else draft_events(state.agent, [RunResumed(reason=reason)], run.id)


def expire_approvals(state: State, now: datetime) -> list[EventDraft]:
    """Deny what nobody decided in time; the run goes on once nothing that it needs is missing."""
    run = state.run
    overdue = (
        [] if run is None or run.status != "waiting" else [call for call in run.open_calls if _is_expired(call, now)]
    )
    if run is None or not overdue:
        return []
    denials = [
        ApprovalDecided(tool_call_id=call.id, decision="deny", reason=f"nobody decided before {call.expires_at}")
        for call in overdue
    ]
    drafts = draft_events(state.agent, denials, run.id)
    return drafts + _resume_if_ready(apply_drafts(state, drafts), "approval")


def _is_expired(call: ToolCall, now: datetime | None) -> bool:
    end = call.decide_until
    return end is not None and now is not None and end <= now


def _decide_approval(state: State, run: Run, approval: Approval, now: datetime | None) -> ApprovalDecided:
    call = _find_open_call(state, run, approval.tool_call_id, "approvals")
    if call.approval in ("approve", "deny"):
        raise AlreadyDecided(call.id, call.approval)
    if run.status != "waiting":
        raise RunNotWaiting(run.id, run.status)
    if _is_expired(call, now):
        raise AlreadyDecided(call.id, "deny, because nobody decided in time")
    if not approval.may_be_own and approval.by is not None and approval.by == run.by:
        raise OwnApproval(run.id)
    if call.approval is None:
        raise InvalidRequest(f"call {call.id} does not need an approval", "/approvals")
    return ApprovalDecided(tool_call_id=call.id, decision=approval.decision, reason=approval.reason, by=approval.by)


def _deliver_result(state: State, run: Run, answer: ToolAnswer) -> MessageAdded:
    call = _find_open_call(state, run, answer.tool_call_id, "tool_results")
    if run.status != "waiting":
        raise RunNotWaiting(run.id, run.status)
    if not any(pending.tool_call_id == call.id and pending.reason == "tool_results" for pending in run.pending):
        raise InvalidRequest(f"call {call.id} does not expect a result from outside", "/tool_results")
    message = {
        "role": "tool",
        "tool_call_id": call.id,
        "tool_name": call.name,
        "content": answer.content,
        "sender": call.agent or state.agent,
    }
    status: ToolStatus = "error" if answer.is_error else "external"
    return MessageAdded(message=message, tool=ToolRecord(name=call.name, status=status))


def _find_open_call(state: State, run: Run, call_id: str, field: str) -> ToolCall:
    for call in run.calls:
        if call.id == call_id and not call.done:
            return call
    _refuse_answered(state, run, call_id)
    raise InvalidRequest(f"the run has no pending call {call_id!r}", f"/{field}")


def _refuse_answered(state: State, run: Run, call_id: str) -> None:
    for entry in state.messages[run.first_message : run.last_message]:
        if entry.message.get("tool_call_id") == call_id:
            raise AlreadyDecided(call_id, "its result is recorded")


def _retry_interrupted(state: State, run_id: str, decisions: Sequence[Approval | ToolAnswer]) -> list[EventDraft]:
    known = [run for run in state.finished if run.id == run_id]
    if not known:
        if any(queued.run_id == run_id for queued in state.queue):
            raise RunNotWaiting(run_id, "queued")
        raise RunNotFound(run_id)
    for decision in decisions:
        _refuse_answered(state, known[-1], decision.tool_call_id)
    latest = state.run is None and state.finished[-1].id == run_id
    if known[-1].status != "interrupted" or not latest or decisions:
        raise RunNotWaiting(run_id, known[-1].status)
    return draft_events(state.agent, [RunResumed(reason="recovery")], run_id)
