"""A run that waits for its turn or for somebody outside, and one that goes on."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import ApprovalDecided, ApprovalRequested, RunResumed, RunWaiting
from swarmkeep.domain.state import ApprovalNote, QueuedRun, Run, State


def make_waiting(run: Run, event: RecordedEvent, fact: RunWaiting) -> Run:
    return replace(
        run,
        status="waiting",
        pending=fact.pending,
        last_seq=event.seq,
        waits=run.waits + 1,
        last_wait=event.seq,
        has_gone_on=False,
    )


def make_going_on(run: Run, event: RecordedEvent, fact: RunResumed) -> Run:
    return replace(
        run,
        active_since=event.at,
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


def note_approval(state: State, event: RecordedEvent, fact: ApprovalRequested | ApprovalDecided) -> State:
    note = ApprovalNote(seq=event.seq, run_id=event.run_id, call_id=fact.tool_call_id)
    if isinstance(fact, ApprovalDecided):
        note = replace(note, approve=fact.decision == "approve", reason=fact.reason)
    return replace(state, approvals=state.approvals.append(note))
