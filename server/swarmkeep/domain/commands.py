"""Commands decide: a state and a wish in, facts out, or a refusal. Ids and times arrive with the wish."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.domain.drafts import apply_drafts, drafted
from swarmkeep.domain.envelope import Draft
from swarmkeep.domain.errors import AlreadyDecided, InvalidRequest, RunNotFound, RunNotWaiting, SessionBusy
from swarmkeep.domain.events import (
    ApprovalDecided,
    ContextUpdated,
    Decision,
    MessageAdded,
    ResumeReason,
    RunCancelled,
    RunOptions,
    RunQueued,
    RunResumed,
    RunStarted,
    SessionCreated,
    SessionEvent,
    SessionUpdated,
    ToolRecord,
    ToolStatus,
)
from swarmkeep.domain.patch import diff, merge
from swarmkeep.domain.state import Call, Run, State
from swarmkeep.domain.turns import ended

Json = dict[str, Any]


OnBusy = Literal["reject", "queue", "interrupt"]


class StartRun(msgspec.Struct, frozen=True, kw_only=True):
    """A wish to run. `messages` are the input, `context_variables` a merge patch applied first.

    `on_busy`, where another run is active or queued: `reject` refuses this one, `queue` puts it at the end of the
    queue, `interrupt` cancels the active run and begins this one in its place, before whatever is queued.
    """

    run_id: str
    messages: tuple[Json, ...]
    options: RunOptions = RunOptions()
    agent: str | None = None
    context_variables: Json = {}
    idempotency_key: str | None = None
    on_busy: OnBusy = "reject"


class ToolAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A result from outside for a pending call."""

    tool_call_id: str
    content: str
    is_error: bool = False


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    tool_call_id: str
    decision: Decision
    reason: str | None = None
    by: str | None = None


def create_session(agent: str, context_variables: Json, metadata: Json, messages: Sequence[Json]) -> list[SessionEvent]:
    """The first facts of a session; `messages` is a history to begin with."""
    created = SessionCreated(agent=agent, context_variables=context_variables, metadata=metadata)
    return [created, *(MessageAdded(message=sent_by_user(message)) for message in messages)]


def sent_by_user(message: Json) -> Json:
    """A message from outside, with a sender: its own if it names one."""
    return message if "sender" in message else {**message, "sender": message.get("role", "")}


def update_session(
    state: State, *, agent: str | None = None, context_variables: Json | None = None, metadata: Json | None = None
) -> list[SessionEvent]:
    """Merge patches of context and metadata, and another active agent; no events for what already holds."""
    facts: list[SessionEvent] = []
    new_metadata = metadata if metadata and _changes(state.metadata, metadata) else UNSET
    new_agent: str | UnsetType = UNSET if agent is None or agent == state.agent else agent
    if new_metadata is not UNSET or new_agent is not UNSET:
        facts.append(SessionUpdated(metadata=new_metadata, agent=new_agent))
    if context_variables and _changes(state.context_variables, context_variables):
        facts.append(ContextUpdated(patch=context_variables))
    return facts


def _changes(target: Json, patch: Json) -> bool:
    return any(diff(target, merge(target, patch)))


def start_run(state: State, wish: StartRun, partial: str = "") -> list[Draft]:
    """Start a run, queue it, or have it take the active one's place, of which `partial` is kept. No events for a run
    that is there already.

    Raises SessionBusy when it may do none of these.
    """
    active = state.run
    if _is_known(state, wish.run_id):
        return []
    if wish.on_busy == "queue" and (active is not None or state.queue):
        return drafted(state.agent, [_queued(wish)], wish.run_id)
    if wish.on_busy == "interrupt":
        stopped = [] if active is None else cancel_run(state, active.id, partial)
        agent = apply_drafts(state, stopped).agent
        return [*stopped, *drafted(agent, _started(wish), wish.run_id)]
    refuse_if_busy(state)
    return drafted(state.agent, _started(wish), wish.run_id)


def refuse_if_busy(state: State) -> None:
    """Raise SessionBusy if a run is active, or about to begin."""
    if state.run is not None:
        raise SessionBusy(state.run.id, state.run.status)
    if state.queue:
        raise SessionBusy(state.queue[0].run_id, "queued")


def _is_known(state: State, run_id: str) -> bool:
    if state.run is not None and state.run.id == run_id:
        return True
    return any(queued.run_id == run_id for queued in state.queue) or any(run.id == run_id for run in state.finished)


def _queued(wish: StartRun) -> RunQueued:
    return RunQueued(
        options=wish.options,
        messages=wish.messages,
        agent=wish.agent,
        context_variables=wish.context_variables,
        idempotency_key=wish.idempotency_key,
    )


def _started(wish: StartRun) -> list[SessionEvent]:
    facts: list[SessionEvent] = [RunStarted(options=wish.options, idempotency_key=wish.idempotency_key)]
    if wish.agent is not None:
        facts.append(SessionUpdated(agent=wish.agent))
    if wish.context_variables:
        facts.append(ContextUpdated(patch=wish.context_variables))
    return facts + [MessageAdded(message=sent_by_user(message)) for message in wish.messages]


def start_queued(state: State) -> list[Draft]:
    """Start the first run of the queue."""
    queued = state.queue[0]
    fact = queued.fact
    wish = StartRun(
        run_id=queued.run_id,
        messages=fact.messages,
        options=fact.options,
        agent=fact.agent,
        context_variables=fact.context_variables,
        idempotency_key=fact.idempotency_key,
    )
    return drafted(state.agent, _started(wish), queued.run_id)


def cancel_run(state: State, run_id: str, partial: str = "") -> list[Draft]:
    """End a run that is queued, running or waiting, keeping what its model was just saying; nothing if it has ended."""
    run = state.run
    if run is not None and run.id == run_id:
        return drafted(state.agent, ended(state, run, RunCancelled, "cancelled", partial=partial), run_id)
    if any(queued.run_id == run_id for queued in state.queue):
        return drafted(state.agent, [RunCancelled(stop_reason="cancelled")], run_id)
    if any(run.id == run_id for run in state.finished):
        return []
    raise RunNotFound(run_id)


def resume_run(
    state: State,
    run_id: str,
    answers: Sequence[ToolAnswer] = (),
    approvals: Sequence[Approval] = (),
    *,
    now: str = "",
) -> list[Draft]:
    """Decide approvals and deliver results for a waiting run; it goes on once nothing that it needs is missing.

    The first decision of a call wins: a second one is AlreadyDecided, whatever it says, and so is one that comes after
    the request has expired at `now`. All of it is taken, or none. An interrupted run is tried again by a resume with
    neither.
    """
    run = state.run
    wishes: list[Approval | ToolAnswer] = [*approvals, *answers]
    if run is None or run.id != run_id:
        return _retry(state, run_id, wishes)
    if run.status != "waiting" and not wishes:
        raise RunNotWaiting(run_id, run.status)
    drafts: list[Draft] = []
    current = state
    for wish in wishes:
        assert current.run is not None
        if isinstance(wish, Approval):
            fact: SessionEvent = _decide(current, current.run, wish, now)
        else:
            fact = _deliver(current, current.run, wish)
        drafts += drafted(state.agent, [fact], run_id)
        current = apply_drafts(current, drafts[-1:])
    if not drafts:
        raise InvalidRequest("say what to resume with: `approvals` or `tool_results`")
    return drafts + _resumed(current, "approval" if approvals else "tool_results")


def _resumed(state: State, reason: ResumeReason) -> list[Draft]:
    """Go on, once nothing is pending any more."""
    run = state.run
    return [] if run is None or run.pending else drafted(state.agent, [RunResumed(reason=reason)], run.id)


def expire_approvals(state: State, now: str) -> list[Draft]:
    """Deny what nobody decided in time; the run goes on once nothing that it needs is missing."""
    run = state.run
    overdue = [] if run is None or run.status != "waiting" else [call for call in run.open_calls if _expired(call, now)]
    if run is None or not overdue:
        return []
    denials = [
        ApprovalDecided(tool_call_id=call.id, decision="deny", reason=f"nobody decided before {call.expires_at}")
        for call in overdue
    ]
    drafts = drafted(state.agent, denials, run.id)
    return drafts + _resumed(apply_drafts(state, drafts), "approval")


def _expired(call: Call, now: str) -> bool:
    # Times are written in one form, so their texts compare as they do.
    return call.approval == "requested" and call.expires_at is not None and call.expires_at <= now


def _decide(state: State, run: Run, approval: Approval, now: str) -> ApprovalDecided:
    call = _call(state, run, approval.tool_call_id, "approvals")
    if call.approval in ("approve", "deny"):
        raise AlreadyDecided(call.id, call.approval)
    if run.status != "waiting":
        raise RunNotWaiting(run.id, run.status)
    if _expired(call, now):
        raise AlreadyDecided(call.id, "deny, because nobody decided in time")
    if call.approval is None:
        raise InvalidRequest(f"call {call.id} asked for no approval", "/approvals")
    return ApprovalDecided(tool_call_id=call.id, decision=approval.decision, reason=approval.reason, by=approval.by)


def _deliver(state: State, run: Run, answer: ToolAnswer) -> MessageAdded:
    call = _call(state, run, answer.tool_call_id, "tool_results")
    if run.status != "waiting":
        raise RunNotWaiting(run.id, run.status)
    if not any(pending.tool_call_id == call.id and pending.reason == "tool_results" for pending in run.pending):
        raise InvalidRequest(f"call {call.id} waits for no result from outside", "/tool_results")
    message = {
        "role": "tool",
        "tool_call_id": call.id,
        "tool_name": call.name,
        "content": answer.content,
        "sender": state.agent,
    }
    status: ToolStatus = "error" if answer.is_error else "external"
    return MessageAdded(message=message, tool=ToolRecord(name=call.name, status=status))


def _call(state: State, run: Run, call_id: str, field: str) -> Call:
    for call in run.calls:
        if call.id == call_id and not call.done:
            return call
    _refuse_answered(state, run, call_id)
    raise InvalidRequest(f"the run has no pending call {call_id!r}", f"/{field}")


def _refuse_answered(state: State, run: Run, call_id: str) -> None:
    for entry in state.messages[run.first_message : run.last_message]:
        if entry.message.get("tool_call_id") == call_id:
            raise AlreadyDecided(call_id, "its result is recorded")


def _retry(state: State, run_id: str, wishes: Sequence[Approval | ToolAnswer]) -> list[Draft]:
    known = [run for run in state.finished if run.id == run_id]
    if not known:
        if any(queued.run_id == run_id for queued in state.queue):
            raise RunNotWaiting(run_id, "queued")
        raise RunNotFound(run_id)
    for wish in wishes:
        _refuse_answered(state, known[-1], wish.tool_call_id)
    latest = state.run is None and state.finished[-1].id == run_id
    if known[-1].status != "interrupted" or not latest or wishes:
        raise RunNotWaiting(run_id, known[-1].status)
    return drafted(state.agent, [RunResumed(reason="recovery")], run_id)
