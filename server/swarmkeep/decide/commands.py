"""Commands decide: a state and a command in, facts out, or a refusal. Ids and times come with the command."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.decide.checks import refuse_stray_results
from swarmkeep.decide.drafts import apply_drafts, draft_events
from swarmkeep.decide.turns import ToolOutcome, end_run, finish_calls, make_changes, make_result_message, record_result
from swarmkeep.events import errors
from swarmkeep.events.codec import Json, MalformedJson, decode, digest, encode_text
from swarmkeep.events.facts import (
    ApprovalDecided,
    ContextUpdated,
    Decision,
    EventDraft,
    MessageAdded,
    Parent,
    PendingCall,
    ResumeReason,
    RunCancelled,
    RunQueued,
    RunResumed,
    RunStarted,
    SessionCreated,
    SessionEvent,
    SessionUpdated,
    ToolStatus,
)
from swarmkeep.events.patch import has_effect
from swarmkeep.events.records import RunOptions, ToolRecord
from swarmkeep.events.state import NOTHING_SAID, PartialReply, Run, State, ToolCall, find_finished_runs
from swarmkeep.events.views import find_run

OnBusy = Literal["reject", "queue", "interrupt"]


class StartRun(msgspec.Struct, frozen=True, kw_only=True):
    """A command to run. `messages` are the input, `context_variables` a merge patch applied first.

    `on_busy`, if another run is active or queued: `reject` refuses this one, `queue` puts it at the end of the queue,
    `interrupt` cancels the active run and begins this one in its place, before all queued ones. One that is not to be
    `behind_waiting` is refused if it would queue behind a run that waits for an answer, and so is one that is to follow
    `after_run` if that is not the last run any more. `by`: who asks; `traceparent`: in which trace.
    """

    run_id: str
    messages: tuple[Json, ...]
    options: RunOptions = RunOptions()
    agent: str | None = None
    context_variables: Json = {}
    idempotency_key: str | None = None
    on_busy: OnBusy = "reject"
    behind_waiting: bool = True
    after_run: str | None = None
    by: str | UnsetType = UNSET
    traceparent: str | UnsetType = UNSET


def create_session(
    agent: str,
    context_variables: Json,
    metadata: Json,
    messages: Sequence[Json],
    parent: Parent | UnsetType = UNSET,
) -> list[SessionEvent]:
    """The first facts of a session; `messages` is a history to begin with, `parent` the call that it is made for."""
    created = SessionCreated(agent=agent, context_variables=context_variables, metadata=metadata, parent=parent)
    return [created, *(MessageAdded(message=add_sender(message)) for message in messages)]


def add_sender(message: Json) -> Json:
    """A message from outside, with a sender: its own if it names one."""
    return message if "sender" in message else {**message, "sender": message.get("role", "")}


def add_messages(state: State, messages: Sequence[Json]) -> list[SessionEvent]:
    """Messages outside of any run. Raises SessionBusy, and InvalidRequest for a result that answers no call."""
    refuse_if_busy(state)
    refuse_stray_results(messages, "/messages", state.messages)
    return [MessageAdded(message=add_sender(message)) for message in messages]


def update_session(
    state: State, *, agent: str | None = None, context_variables: Json | None = None, metadata: Json | None = None
) -> list[SessionEvent]:
    """Merge patches of context and metadata, and another active agent; no events for what already holds."""
    facts: list[SessionEvent] = []
    new_metadata = metadata if metadata and has_effect(state.metadata, metadata) else UNSET
    new_agent: str | UnsetType = UNSET if agent is None or agent == state.agent else agent
    if new_metadata is not UNSET or new_agent is not UNSET:
        facts.append(SessionUpdated(metadata=new_metadata, agent=new_agent))
    if context_variables and has_effect(state.context_variables, context_variables):
        facts.append(ContextUpdated(patch=context_variables))
    return facts


def start_run(state: State, command: StartRun, partial: PartialReply = NOTHING_SAID) -> list[EventDraft]:
    """Start a run, queue it, or have it take the active one's place, of which `partial` is kept. No events for a run
    that is there already.

    Raises SessionBusy when it may do none of these, and InvalidRequest for a tool message that answers no open call.
    """
    active = state.run
    if _is_known_run(state, command.run_id):
        return []
    if active is not None and active.status == "waiting" and not command.behind_waiting:
        raise errors.SessionBusy(active.id, active.status)
    if command.after_run is not None:
        _refuse_unless_last(state, command.after_run)
    if command.on_busy == "queue" and (active is not None or state.queue):
        # It is not known yet what will come before it.
        refuse_stray_results(command.messages, "/input")
        return draft_events(state.agent, [_queue_run(command)], command.run_id)
    if command.on_busy == "interrupt":
        stopped = [] if active is None else cancel_run(state, active.id, partial)
        state = apply_drafts(state, stopped)
        refuse_stray_results(command.messages, "/input", state.messages)
        return [*stopped, *draft_events(state.agent, _begin_run(state, command), command.run_id)]
    refuse_if_busy(state)
    refuse_stray_results(command.messages, "/input", state.messages)
    return draft_events(state.agent, _begin_run(state, command), command.run_id)


def choose_agent(state: State, named: str) -> str | None:
    """The agent that the run of a request begins with, which names one each time; None is the session's own.

    An agent that was handed over to stays while requests name the same one as before.
    """
    last = state.run or (state.finished[-1] if state.finished else None)
    before = None if last is None or last.options.request is UNSET else last.options.request.get("model")
    return None if named in (before, state.agent) else named


def _refuse_unless_last(state: State, run_id: str) -> None:
    """Raise SessionBusy if anything has begun, or is about to, after that run."""
    refuse_if_busy(state)
    if not len(state.finished) or state.finished[-1].id != run_id:
        raise errors.SessionBusy(state.finished[-1].id if len(state.finished) else run_id, "the last")


def refuse_if_busy(state: State, session_id: str | None = None) -> None:
    """Raise SessionBusy if a run is active, or about to begin. It names the session where an id is given."""
    if state.run is not None:
        raise errors.SessionBusy(state.run.id, state.run.status, session_id)
    if state.queue:
        raise errors.SessionBusy(state.queue[0].run_id, "queued", session_id)


def refuse_if_held(session_id: str, state: State) -> None:
    """Raise OnHold if the session is on hold."""
    if state.hold is not None:
        raise errors.OnHold(session_id, state.hold.reason, state.hold.at)


def _is_known_run(state: State, run_id: str) -> bool:
    if state.run is not None and state.run.id == run_id:
        return True
    return any(queued.run_id == run_id for queued in state.queue) or run_id in find_finished_runs(state.finished)


def _queue_run(command: StartRun) -> RunQueued:
    return RunQueued(
        options=command.options,
        messages=command.messages,
        agent=command.agent,
        context_variables=command.context_variables,
        idempotency_key=command.idempotency_key,
        by=command.by,
        traceparent=command.traceparent,
    )


def _begin_run(state: State, command: StartRun | RunQueued) -> list[SessionEvent]:
    started = RunStarted(
        options=command.options,
        idempotency_key=command.idempotency_key,
        by=command.by,
        traceparent=command.traceparent,
    )
    facts: list[SessionEvent] = [started]
    if command.agent is not None and command.agent != state.agent:
        facts.append(SessionUpdated(agent=command.agent))
    if command.context_variables and has_effect(state.context_variables, command.context_variables):
        facts.append(ContextUpdated(patch=command.context_variables))
    return facts + [MessageAdded(message=add_sender(message)) for message in command.messages]


def start_queued(state: State) -> list[EventDraft]:
    """Start the first run of the queue."""
    queued = state.queue[0]
    return draft_events(state.agent, _begin_run(state, queued.fact), queued.run_id)


def cancel_run(state: State, run_id: str, partial: PartialReply = NOTHING_SAID) -> list[EventDraft]:
    """End a run that is queued, running or waiting, keeping what its model was just saying; nothing if it has ended."""
    run = state.run
    if run is not None and run.id == run_id:
        return draft_events(state.agent, end_run(state, run, RunCancelled, "cancelled", partial=partial), run_id)
    if any(queued.run_id == run_id for queued in state.queue):
        return draft_events(state.agent, [RunCancelled(stop_reason="cancelled")], run_id)
    if run_id in find_finished_runs(state.finished):
        return []
    raise errors.RunNotFound(run_id)


# Going on after a wait: approvals, results from outside, and interrupted runs that are tried again.


class ToolAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A result from outside for a pending call."""

    tool_call_id: str
    content: str
    is_error: bool = False


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A decision on a call. `may_be_own`: whether it counts if it is `by` who started the run. `arguments`: what an
    approved call is carried out with, in the place of what the model gave. `arguments_digest`: of what the model gave,
    as it was shown to the approver; for anything else the decision does not count."""

    tool_call_id: str
    decision: Decision
    reason: str | None = None
    by: str | None = None
    may_be_own: bool = True
    arguments: Json | None = None
    arguments_digest: str | None = None


def resume_run(
    state: State,
    run_id: str,
    answers: Sequence[ToolAnswer] = (),
    approvals: Sequence[Approval] = (),
    *,
    messages: Sequence[Json] = (),
    options: RunOptions | UnsetType = UNSET,
    now: datetime | None = None,
) -> list[EventDraft]:
    """Decide approvals and deliver results for a waiting run; it goes on once nothing that it needs is missing.

    It goes on with `messages` after the results, and by `options`, for a caller who gives all that it waits for.

    The first decision of a call wins: a second one is AlreadyDecided, even if it is the same, and so is one that comes
    after the request has expired at `now`. All of it is taken, or none. An interrupted run is tried again by a resume
    with neither.
    """
    run = state.run
    decisions: list[Approval | ToolAnswer] = [*approvals, *answers]
    if run is None or run.id != run_id:
        return _retry_interrupted(state, run_id, decisions)
    if run.status != "waiting" and not decisions:
        raise errors.RunNotWaiting(run_id, run.status)
    _refuse_repeated("approvals", approvals)
    _refuse_repeated("tool_results", answers)
    drafts: list[EventDraft] = []
    current = state
    for decision in decisions:
        assert current.run is not None
        if isinstance(decision, Approval):
            facts: list[SessionEvent] = [_decide_approval(current, current.run, decision, now)]
        else:
            facts = _deliver_result(current, current.run, decision)
        added = draft_events(state.agent, facts, run_id)
        drafts += added
        current = apply_drafts(current, added)
    if not drafts:
        raise errors.InvalidRequest("give `approvals` or `tool_results`")
    if messages or options is not UNSET:
        _refuse_pending(current)
    return drafts + _resume_if_ready(current, "approval" if approvals else "tool_results", messages, options)


def _refuse_repeated(field: str, decisions: Sequence[Approval | ToolAnswer]) -> None:
    """Raise InvalidRequest for a call that has two: it is unclear which one counts, and neither is taken."""
    seen: set[str] = set()
    for place, decision in enumerate(decisions):
        if decision.tool_call_id in seen:
            raise errors.InvalidRequest(
                f"call {errors.quote(decision.tool_call_id)} is given twice", f"/{field}/{place}/tool_call_id"
            )
        seen.add(decision.tool_call_id)


def keep_limits(state: State, options: RunOptions | UnsetType) -> RunOptions | UnsetType:
    """The options that a waiting run is to go on by, with what only its beginning says."""
    if options is UNSET or state.run is None:
        return options
    before = state.run.options
    return msgspec.structs.replace(
        options,
        execute_tools=before.execute_tools,
        max_turns=before.max_turns,
        model=options.model or before.model,
    )


def _refuse_pending(state: State) -> None:
    pending = () if state.run is None else state.run.pending
    if pending:
        names = ", ".join(describe_pending(call) for call in pending)
        raise errors.InvalidRequest(f"the run still waits for: {names}", "/tool_results")


def describe_pending(call: PendingCall) -> str:
    """Describe the call that a run waits for, in a sentence."""
    return "the person who has taken over" if call.reason == "person" else f"{call.name} ({call.tool_call_id})"


def _resume_if_ready(
    state: State, reason: ResumeReason, messages: Sequence[Json] = (), options: RunOptions | UnsetType = UNSET
) -> list[EventDraft]:
    """Go on, once nothing is pending any more."""
    run = state.run
    if run is None or run.pending:
        return []
    said = [MessageAdded(message=add_sender(message)) for message in messages]
    return draft_events(state.agent, [RunResumed(reason=reason, options=options), *said], run.id)


def expire_approvals(state: State, now: datetime) -> list[EventDraft]:
    """Deny approvals that were not decided in time; the run goes on once nothing that it needs is missing."""
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
        raise errors.AlreadyDecided(call.id, call.approval)
    if run.status != "waiting":
        raise errors.RunNotWaiting(run.id, run.status)
    if _is_expired(call, now):
        raise errors.AlreadyDecided(call.id, "deny, because nobody decided in time")
    if not approval.may_be_own and approval.by is not None and approval.by == run.by:
        raise errors.OwnApproval(run.id)
    if call.approval is None:
        raise errors.InvalidRequest(f"call {call.id} does not need an approval", "/approvals")
    if approval.arguments_digest not in (None, digest(call.arguments)):
        raise errors.ArgumentsChanged(call.id)
    return ApprovalDecided(
        tool_call_id=call.id,
        decision=approval.decision,
        reason=approval.reason,
        by=approval.by,
        arguments=_find_edit(call, approval),
    )


def _find_edit(call: ToolCall, approval: Approval) -> str | UnsetType:
    """The arguments as they are from here on, if they are others than the model's."""
    if approval.arguments is None:
        return UNSET
    if approval.decision != "approve":
        raise errors.InvalidRequest("a denied call does not run; give `arguments` only with an approval", "/approvals")
    edited = encode_text(approval.arguments)
    try:
        return UNSET if encode_text(decode(call.arguments)) == edited else edited
    except MalformedJson:
        return edited


def _deliver_result(state: State, run: Run, answer: ToolAnswer) -> list[SessionEvent]:
    call = _find_open_call(state, run, answer.tool_call_id, "tool_results")
    if run.status != "waiting":
        raise errors.RunNotWaiting(run.id, run.status)
    if not any(pending.tool_call_id == call.id and pending.reason == "tool_results" for pending in run.pending):
        raise errors.InvalidRequest(f"call {call.id} does not expect a result from outside", "/tool_results")
    message = make_result_message(call, answer.content, state.agent)
    status: ToolStatus = "error" if answer.is_error else "external"
    delivered = MessageAdded(message=message, tool=ToolRecord(name=call.name, status=status))
    return [delivered, *make_changes(state, run, call), *finish_calls(state, run, call)]


def _find_open_call(state: State, run: Run, call_id: str, field: str) -> ToolCall:
    for call in run.calls:
        if call.id == call_id and not call.done:
            return call
    _refuse_answered(state, run, call_id)
    raise errors.InvalidRequest(f"the run has no pending call {errors.quote(call_id)}", f"/{field}")


def _refuse_answered(state: State, run: Run, *call_ids: str) -> None:
    """Raise AlreadyDecided for the first of these calls that has a result."""
    messages = state.messages[run.first_message : run.last_message] if call_ids else ()
    found = [entry.message.get("tool_call_id") for entry in messages]
    answered = {call_id for call_id in found if isinstance(call_id, str)}
    for call_id in call_ids:
        if call_id in answered:
            raise errors.AlreadyDecided(call_id, "its result is recorded")


def _retry_interrupted(state: State, run_id: str, decisions: Sequence[Approval | ToolAnswer]) -> list[EventDraft]:
    run = find_run(state, run_id)
    if run is None:
        raise errors.RunNotFound(run_id)
    _refuse_answered(state, run, *[decision.tool_call_id for decision in decisions])
    latest = state.run is None and len(state.finished) and state.finished[-1].id == run_id
    if run.status != "interrupted" or not latest or decisions:
        raise errors.RunNotWaiting(run_id, run.status)
    resumed = draft_events(state.agent, [RunResumed(reason="recovery")], run_id)
    return resumed + _give_up_redacted(apply_drafts(state, resumed))


def _give_up_redacted(state: State) -> list[EventDraft]:
    """Return results for calls whose arguments were removed before they ran: the model asked for no others."""
    drafts: list[EventDraft] = []
    for call in () if state.run is None else state.run.own_open_calls:
        # A denied one does not run anyway. An agent that was asked knows by itself what it was asked.
        is_asked = call.session_id is not None and call.attempts > 0 and not call.imported
        if call.redacted and call.approval != "deny" and not is_asked:
            assert state.run is not None
            added = draft_events(state.agent, record_result(state, state.run, call, _make_lost(call)), state.run.id)
            drafts += added
            state = apply_drafts(state, added)
    return drafts


def _make_lost(call: ToolCall) -> ToolOutcome:
    if call.attempts:
        text = f"Interrupted: {call.name} was started before the process stopped. It may or may not have taken effect."
        return ToolOutcome(status="unknown_outcome", content=f"{text} Its arguments were redacted since.")
    return ToolOutcome(status="error", content=f"Error: {call.name} did not run: its arguments were redacted.")
