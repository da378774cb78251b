"""The facts that a turn leaves behind: a reply, a result, an end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec import UNSET

from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.concurrent_calls import hold_change, make_changes
from swarmkeep.domain.decisions.guardrails import Trip, refuse_call
from swarmkeep.domain.decisions.partial import NOTHING_SAID, PartialReply
from swarmkeep.domain.decisions.teams import await_session
from swarmkeep.domain.events import (
    ApprovalRequested,
    AwaitedApproval,
    CompletionRecord,
    ContextChange,
    HandoffIgnored,
    HandoffMade,
    MessageAdded,
    PendingCall,
    RunCancelled,
    RunCompleted,
    RunError,
    RunFailed,
    RunInterrupted,
    RunWaiting,
    SessionEvent,
    StopReason,
    ToolRecord,
    ToolStarted,
    ToolStatus,
    Usage,
)
from swarmkeep.domain.facts.records import read_usage, sum_usage
from swarmkeep.domain.messages import find_cut_calls
from swarmkeep.domain.state import Run, State, ToolCall, make_calls

EDITED = (
    "[A person changed the arguments of this call before approving it. It was made with: {arguments} What follows "
    "is what came of that.]\n\n"
)


class ToolOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a tool call ended. `patch` and `nulls` are its change of the context that it was given, as `diff` says it.

    Others may have changed the context meanwhile, so the whole of it would take their changes back. `values` are new
    values of whole keys: so a call that runs beside others says what takes the place of theirs.
    `trip`: the guardrail that refused it, so that it did not run. `session_id` and `usage`: see ToolRecord; where the
    session `waits` for somebody, the call has not ended, and `approvals` are what has to be decided there.
    `files`: content parts that refer to what it gave beside its text, and `file_content` what they refer to, by hash.
    """

    status: ToolStatus | str
    content: str
    duration_ms: float = 0.0
    handoff: str | None = None
    patch: Json = {}
    nulls: tuple[str, ...] = ()
    values: Json = {}
    trip: Trip | None = None
    session_id: str | None = None
    usage: Usage | None = None
    waits: bool = False
    approvals: tuple[AwaitedApproval, ...] = ()
    files: tuple[Json, ...] = ()
    file_content: Mapping[str, bytes] = {}

    @property
    def change(self) -> ContextChange | None:
        if not (self.patch or self.nulls or self.values):
            return None
        return ContextChange(patch=self.patch, nulls=self.nulls or UNSET, values=self.values or UNSET)

    def fail(self, content: str) -> ToolOutcome:
        """The call as one that says this and nothing else: of what it gave and changed nothing is kept."""
        return msgspec.structs.replace(
            self,
            status="error",
            content=content,
            handoff=None,
            patch={},
            nulls=(),
            values={},
            trip=None,
            files=(),
            file_content={},
        )

    def leave_out_files(self, reason: str) -> ToolOutcome:
        """The same without its files, and with the reason for that."""
        content = f"{self.content}\nNone of these files was kept: {reason}"
        return msgspec.structs.replace(self, content=content, files=(), file_content={})


def record_reply(
    run: Run,
    message: Json,
    completion: CompletionRecord,
    *,
    needs_approval: Collection[str],
    expires_at: str | None,
    bare: Collection[str] = (),
) -> list[SessionEvent]:
    """A model's reply, and a request for each of its whole calls to a tool named in `needs_approval`. Those to `bare`
    functions, which have no parameters, need no arguments to be whole."""
    facts: list[SessionEvent] = [MessageAdded(message=message, completion=completion)]
    if run.options.execute_tools:
        guarded = set(needs_approval) - run.options.caller_tool_names
        cut = find_cut_calls(message, completion) if guarded else {}
        facts += [
            request_approval(call, expires_at)
            for call in make_calls(message)
            if call.name in guarded and (call.id not in cut or (cut[call.id] and call.name in bare))
        ]
    return facts


def request_approval(call: ToolCall, expires_at: str | None) -> ApprovalRequested:
    return ApprovalRequested(tool_call_id=call.id, name=call.name, arguments=call.arguments, expires_at=expires_at)


def request_approvals(run: Run, guarded: Collection[str], expires_at: str | None) -> list[SessionEvent]:
    """A request for each call that has not been started and needs an approval, if nobody was asked for it before.

    One that came by an import needs one whatever it is: no model has asked for it here.
    """
    return [
        request_approval(call, expires_at)
        for call in run.own_open_calls
        if call.attempts == 0 and call.approval is None and (call.imported or call.name in guarded)
    ]


def record_result(state: State, run: Run, call: ToolCall, outcome: ToolOutcome) -> list[SessionEvent]:
    """A call's result, its change of the context and those that waited for it; with the last open call, the handoff
    that wins.

    Nothing for a call that is not open any more: an attempt to record it that failed may have been made after all.
    """
    if not any(open_call.id == call.id for open_call in run.open_calls):
        return []
    if outcome.waits:
        return record_waits(run, [(call, outcome)])
    message = make_result_message(call, _add_edit_note(call, outcome), state.agent)
    tool = ToolRecord(
        name=call.name,
        status=outcome.status,
        duration_ms=outcome.duration_ms,
        handoff=UNSET if outcome.handoff is None else outcome.handoff,
        context=hold_change(run, call, outcome.change),
        session_id=outcome.session_id or UNSET,
        usage=UNSET if outcome.usage is None else outcome.usage,
        files=outcome.files or UNSET,
    )
    facts: list[SessionEvent] = [] if outcome.trip is None else refuse_call(outcome.trip, call.id)
    facts.append(MessageAdded(message=message, tool=tool))
    facts += make_changes(state, run, call, outcome.change)
    return facts + finish_calls(state, run, call, outcome.handoff)


def make_result_message(call: ToolCall, content: str, agent: str) -> Json:
    """A call's result as the model of the agent that asked for it reads it; `agent` is the active one."""
    return {
        "role": "tool",
        "tool_call_id": call.id,
        "tool_name": call.name,
        "content": content,
        "sender": call.agent or agent,
    }


def record_waits(run: Run, waiting: Sequence[tuple[ToolCall, ToolOutcome]]) -> list[SessionEvent]:
    """The run waits for the sessions of these calls, as far as they are open still, and for the approvals that are
    requested for others: what can be decided is pending, in whatever order it was asked for."""
    open_ids = {call.id for call in run.open_calls}
    sessions = [
        await_session(call, outcome.session_id, outcome.approvals) for call, outcome in waiting if call.id in open_ids
    ]
    return [RunWaiting(pending=(*sessions, *list_undecided(run)))] if sessions else []


def list_undecided(run: Run) -> tuple[PendingCall, ...]:
    """The calls of a run that wait for an approval of their own."""
    return tuple(make_pending_call(call, "approval") for call in run.own_open_calls if call.approval == "requested")


def make_pending_call(call: ToolCall, stop_reason: StopReason) -> PendingCall:
    return PendingCall(
        tool_call_id=call.id,
        name=call.name,
        arguments=call.arguments,
        reason="approval" if stop_reason == "approval" else "tool_results",
        expires_at=call.expires_at,
    )


def _add_edit_note(call: ToolCall, outcome: ToolOutcome) -> str:
    """What the model is told of a call that was carried out with other arguments than its own, which it sees."""
    if call.original_arguments is None or outcome.status in ("denied", "refused"):
        return outcome.content
    return EDITED.format(arguments=call.arguments) + outcome.content


def finish_calls(state: State, run: Run, call: ToolCall, handoff: str | None = None) -> list[SessionEvent]:
    """With the result of the last open call, the handoff that wins of all that the turn's calls returned."""
    if not all(other.done or other.id == call.id for other in run.calls):
        return []
    return _choose_handoff(state.agent, _list_proposed_handoffs(run, call.id, handoff))


def _list_proposed_handoffs(run: Run, call_id: str = "", handoff: str | None = None) -> list[tuple[str, str]]:
    """The handoffs that the answered calls of the current turn returned, in the order of the calls, with the one that
    is being answered."""
    found = ((call.id, handoff if call.id == call_id else call.handoff) for call in run.calls)
    return [(proposing, to) for proposing, to in found if to is not None]


def _choose_handoff(agent: str, proposed: Sequence[tuple[str, str]]) -> list[SessionEvent]:
    facts: list[SessionEvent] = [
        HandoffIgnored(from_agent=agent, to_agent=to, tool_call_id=call_id) for call_id, to in proposed[:-1]
    ]
    facts += [HandoffMade(from_agent=agent, to_agent=to, tool_call_id=call_id) for call_id, to in proposed[-1:]]
    return facts


Ending = type[RunCompleted] | type[RunFailed] | type[RunCancelled] | type[RunInterrupted]


def end_run(
    state: State,
    run: Run,
    ending: Ending,
    stop_reason: StopReason,
    error: RunError | None = None,
    *,
    partial: PartialReply = NOTHING_SAID,
    reported: Json | None = None,
) -> list[SessionEvent]:
    """The end of an active run. What it produced stays, and so does what its model was saying (`partial`), marked,
    unless that is recorded by now, with the tokens that were `reported` for it.

    A handoff that was to be made with the last of its calls is made now; of one that was interrupted, and may go on, it
    is not. What answered calls change of the context is changed, whether those before them have ended or not.
    """
    if run.open_calls:
        changes = make_changes(state, run)
        proposed = [] if ending is RunInterrupted else _list_proposed_handoffs(run)
        handoffs = _choose_handoff(state.agent, proposed)
        return [*changes, *handoffs, ending(stop_reason=stop_reason, usage=run.usage, error=error)]
    if not partial.is_current(state, run):
        return [ending(stop_reason=stop_reason, usage=run.usage, error=error)]
    message = {"role": "assistant", "content": partial.text, "sender": partial.agent or state.agent}
    completion = CompletionRecord(partial=True, usage=reported, finish_reason=partial.finish_reason)
    said = MessageAdded(message=message, completion=completion)
    return [said, ending(stop_reason=stop_reason, usage=sum_usage(run.usage, read_usage(reported)), error=error)]


def restart_tool(run: Run, call: ToolCall) -> list[SessionEvent]:
    """The start of a call that was started before, if that is still all that has become of it."""
    return [start_tool(call)] if call in run.open_calls else []


def start_tool(call: ToolCall, session_id: str | None = None) -> ToolStarted:
    """The start that must be recorded before a tool runs, whether for the first time or again."""
    return ToolStarted(
        tool_call_id=call.id,
        name=call.name,
        arguments=call.arguments,
        attempt=call.attempts + 1,
        session_id=session_id or UNSET,
    )


def deny_call(call: ToolCall) -> ToolOutcome:
    reason = f" Reason: {call.approval_reason}" if call.approval_reason else ""
    return ToolOutcome(status="denied", content=f"Denied: {call.name} was not approved and did not run.{reason}")
