"""Commands decide: a state and a wish in, facts out, or a refusal. Ids and times arrive with the wish."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.domain.errors import AlreadyDecided, InvalidRequest, RunNotFound, RunNotWaiting, SessionBusy
from swarmkeep.domain.events import (
    ApprovalDecided,
    ApprovalRequested,
    CompletionRecord,
    ContextUpdated,
    Decision,
    Draft,
    HandoffIgnored,
    HandoffMade,
    MessageAdded,
    Recorded,
    RunCancelled,
    RunCompleted,
    RunError,
    RunFailed,
    RunInterrupted,
    RunOptions,
    RunQueued,
    RunResumed,
    RunStarted,
    RunWaiting,
    SessionCreated,
    SessionEvent,
    SessionUpdated,
    StopReason,
    ToolRecord,
    ToolStarted,
    ToolStatus,
)
from swarmkeep.domain.patch import diff, merge
from swarmkeep.domain.state import Call, Run, State, add_usage, calls_of, evolve
from swarmkeep.domain.steps import CallTool, Deny, Finish, StartQueued, Wait, next_step

Json = dict[str, Any]
OnBusy = Literal["reject", "queue", "interrupt"]


class StartRun(msgspec.Struct, frozen=True, kw_only=True):
    """A wish to run. `messages` are the input, `context_variables` a merge patch applied first."""

    run_id: str
    messages: tuple[Json, ...]
    options: RunOptions = RunOptions()
    agent: str | None = None
    context_variables: Json = {}
    idempotency_key: str | None = None
    on_busy: OnBusy = "reject"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a tool call ended. `context_variables` is the whole context after it, or None when it left it alone."""

    status: ToolStatus
    content: str
    duration_ms: float = 0.0
    handoff: str | None = None
    context_variables: Json | None = None


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
    return message if "sender" in message else {**message, "sender": message["role"]}


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


def start_run(state: State, wish: StartRun) -> list[Draft]:
    """Start a run, or queue it behind the active one. Raises SessionBusy when it may do neither."""
    active = state.run
    if _is_known(state, wish.run_id):
        return []
    if wish.on_busy == "queue" and (active is not None or state.queue):
        return drafted(state.agent, [_queued(wish)], wish.run_id)
    if active is not None:
        raise SessionBusy(active.id, active.status)
    return drafted(state.agent, _started(wish), wish.run_id)


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


def record_reply(
    run: Run, message: Json, completion: CompletionRecord, *, needs_approval: Collection[str], expires_at: str | None
) -> list[SessionEvent]:
    """A model's reply, and a request for each of its calls to a tool named in `needs_approval`."""
    facts: list[SessionEvent] = [MessageAdded(message=message, completion=completion)]
    if run.options.execute_tools:
        facts += [
            ApprovalRequested(tool_call_id=call.id, name=call.name, arguments=call.arguments, expires_at=expires_at)
            for call in calls_of(message)
            if call.name in needs_approval
        ]
    return facts


def record_result(state: State, run: Run, call: Call, outcome: Outcome) -> list[SessionEvent]:
    """A call's result and its change of the context; with the last open call, the handoff that wins."""
    message = {
        "role": "tool",
        "tool_call_id": call.id,
        "tool_name": call.name,
        "content": outcome.content,
        "sender": state.agent,
    }
    tool = ToolRecord(
        name=call.name,
        status=outcome.status,
        duration_ms=outcome.duration_ms,
        handoff=UNSET if outcome.handoff is None else outcome.handoff,
    )
    facts: list[SessionEvent] = [MessageAdded(message=message, tool=tool)]
    if outcome.context_variables is not None:
        patch, nulls = diff(state.context_variables, outcome.context_variables)
        if patch or nulls:
            facts.append(ContextUpdated(patch=patch, tool_call_id=call.id, nulls=nulls or UNSET))
    if all(other.done or other.id == call.id for other in run.calls):
        proposed = [(other.id, other.handoff) for other in run.calls if other.handoff is not None]
        if outcome.handoff is not None:
            proposed.append((call.id, outcome.handoff))
        facts += _handoffs(state.agent, proposed)
    return facts


def _handoffs(agent: str, proposed: Sequence[tuple[str, str]]) -> list[SessionEvent]:
    facts: list[SessionEvent] = [
        HandoffIgnored(from_agent=agent, to_agent=to, tool_call_id=call_id) for call_id, to in proposed[:-1]
    ]
    facts += [HandoffMade(from_agent=agent, to_agent=to, tool_call_id=call_id) for call_id, to in proposed[-1:]]
    return facts


Ending = type[RunCompleted] | type[RunFailed] | type[RunCancelled] | type[RunInterrupted]


def ended(
    state: State, run: Run, ending: Ending, stop_reason: StopReason, error: RunError | None = None, *, partial: str = ""
) -> list[SessionEvent]:
    """The end of an active run. What it produced stays, and so does what its model was saying (`partial`), marked."""
    if not partial or run.open_calls:
        return [ending(stop_reason=stop_reason, usage=run.usage, error=error)]
    message = {"role": "assistant", "content": partial, "sender": state.agent}
    said = MessageAdded(message=message, completion=CompletionRecord(partial=True))
    return [said, ending(stop_reason=stop_reason, usage=add_usage(run.usage, None), error=error)]


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
    state: State, run_id: str, answers: Sequence[ToolAnswer] = (), approvals: Sequence[Approval] = ()
) -> list[Draft]:
    """Decide approvals and deliver results for a waiting run; it goes on once nothing that it needs is missing.

    The first decision of a call wins: a second one is AlreadyDecided, whatever it says. All of it is taken, or none.
    An interrupted run is tried again by a resume with neither.
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
        fact = (
            _decide(current, current.run, wish) if isinstance(wish, Approval) else _deliver(current, current.run, wish)
        )
        drafts += drafted(state.agent, [fact], run_id)
        current = apply_drafts(current, drafts[-1:])
    if not drafts:
        raise InvalidRequest("say what to resume with: `approvals` or `tool_results`")
    if current.run is not None and not current.run.pending:
        drafts += drafted(state.agent, [RunResumed(reason="approval" if approvals else "tool_results")], run_id)
    return drafts


def _decide(state: State, run: Run, approval: Approval) -> ApprovalDecided:
    call = _call(state, run, approval.tool_call_id, "approvals")
    if call.approval in ("approve", "deny"):
        raise AlreadyDecided(call.id, call.approval)
    if run.status != "waiting":
        raise RunNotWaiting(run.id, run.status)
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


def settle(state: State, drafts: Sequence[Draft]) -> list[Draft]:
    """The drafts, and whatever follows from them without asking anyone outside.

    So a reply and its tool's start, or the last message and the run's end, share one commit.
    """
    drafts = list(drafts)
    state = apply_drafts(state, drafts)
    while state.run is not None and isinstance(step := next_step(state), Deny):
        denied = drafted(state.agent, record_result(state, state.run, step.call, denial(step.call)), state.run.id)
        state = apply_drafts(state, denied)
        drafts += denied
    more = _follow(state)
    return drafts if more is None else [*drafts, *more]


def _follow(state: State) -> list[Draft] | None:
    run = state.run
    match next_step(state):
        case CallTool(call=call) if run is not None and call.attempts == 0:
            return drafted(state.agent, [tool_started(call)], run.id)
        case Wait(pending=pending) if run is not None:
            return drafted(state.agent, [RunWaiting(pending=pending)], run.id)
        case Finish(stop_reason=stop_reason) if run is not None:
            return drafted(state.agent, ended(state, run, RunCompleted, stop_reason), run.id)
        case StartQueued():
            return start_queued(state)
        case _:
            return None


def tool_started(call: Call) -> ToolStarted:
    """The start that must be recorded before a tool runs, whether for the first time or again."""
    return ToolStarted(tool_call_id=call.id, name=call.name, arguments=call.arguments, attempt=call.attempts + 1)


def denial(call: Call) -> Outcome:
    reason = f" Reason: {call.approval_reason}" if call.approval_reason else ""
    return Outcome(status="denied", content=f"Denied: {call.name} was not approved and did not run.{reason}")


def drafted(agent: str, facts: Iterable[SessionEvent], run_id: str | None) -> list[Draft]:
    """Facts with the agent that was active when each happened, beginning with `agent`."""
    drafts = []
    for fact in facts:
        if isinstance(fact, SessionUpdated) and fact.agent is not UNSET:
            agent = fact.agent
        drafts.append(Draft(fact, run_id, agent))
        if isinstance(fact, HandoffMade):
            agent = fact.to_agent
    return drafts


def apply_drafts(state: State, drafts: Iterable[Draft]) -> State:
    """The state as it will be once `drafts` are recorded, but for their times and hashes."""
    for draft in drafts:
        state = evolve(state, provisional(state, draft, state.updated_at))
    return state


def provisional(state: State, draft: Draft, at: str) -> Recorded:
    """The draft as the event that follows `state`, without a store: no payload, no hash."""
    return Recorded(
        session_id="",
        seq=state.seq + 1,
        type=draft.fact.type,
        version=draft.fact.version,
        run_id=draft.run_id,
        agent=draft.agent,
        at=at,
        hash="",
        payload="",
        fact=draft.fact,
    )
