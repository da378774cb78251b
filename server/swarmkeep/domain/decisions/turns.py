"""The facts that a turn leaves behind: a reply, a result, an end."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
from msgspec import UNSET

from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.partial import NOTHING_SAID, PartialReply
from swarmkeep.domain.events import (
    ApprovalRequested,
    CompletionRecord,
    ContextUpdated,
    HandoffIgnored,
    HandoffMade,
    MessageAdded,
    RunCancelled,
    RunCompleted,
    RunError,
    RunFailed,
    RunInterrupted,
    SessionEvent,
    StopReason,
    ToolRecord,
    ToolStarted,
    ToolStatus,
)
from swarmkeep.domain.patch import has_effect
from swarmkeep.domain.state import Run, State, ToolCall, add_usage, make_calls


class ToolOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a tool call ended. `patch` and `nulls` are its change of the context that it was given, as `diff` says it.

    Others may have changed the context meanwhile, so the whole of it would take their changes back.
    """

    status: ToolStatus | str
    content: str
    duration_ms: float = 0.0
    handoff: str | None = None
    patch: Json = {}
    nulls: tuple[str, ...] = ()


def record_reply(
    run: Run, message: Json, completion: CompletionRecord, *, needs_approval: Collection[str], expires_at: str | None
) -> list[SessionEvent]:
    """A model's reply, and a request for each of its calls to a tool named in `needs_approval`."""
    facts: list[SessionEvent] = [MessageAdded(message=message, completion=completion)]
    if run.options.execute_tools:
        facts += [request_approval(call, expires_at) for call in make_calls(message) if call.name in needs_approval]
    return facts


def request_approval(call: ToolCall, expires_at: str | None) -> ApprovalRequested:
    return ApprovalRequested(tool_call_id=call.id, name=call.name, arguments=call.arguments, expires_at=expires_at)


def request_approvals(run: Run, guarded: Collection[str], expires_at: str | None) -> list[SessionEvent]:
    """A request for each call that has not been started and needs an approval, if nobody was asked for it before.

    One that came by an import needs one whatever it is: no model has asked for it here.
    """
    return [
        request_approval(call, expires_at)
        for call in run.open_calls
        if call.attempts == 0 and call.approval is None and (call.imported or call.name in guarded)
    ]


def record_result(state: State, run: Run, call: ToolCall, outcome: ToolOutcome) -> list[SessionEvent]:
    """A call's result and its change of the context; with the last open call, the handoff that wins.

    Nothing for a call that is not open any more: an attempt to record it that failed may have been made after all.
    """
    if not any(open_call.id == call.id for open_call in run.open_calls):
        return []
    message = {
        "role": "tool",
        "tool_call_id": call.id,
        "tool_name": call.name,
        "content": outcome.content,
        "sender": call.agent or state.agent,
    }
    tool = ToolRecord(
        name=call.name,
        status=outcome.status,
        duration_ms=outcome.duration_ms,
        handoff=UNSET if outcome.handoff is None else outcome.handoff,
    )
    facts: list[SessionEvent] = [MessageAdded(message=message, tool=tool)]
    if has_effect(state.context_variables, outcome.patch, outcome.nulls):
        facts.append(ContextUpdated(patch=outcome.patch, tool_call_id=call.id, nulls=outcome.nulls or UNSET))
    if all(other.done or other.id == call.id for other in run.calls):
        proposed = _list_proposed_handoffs(run)
        if outcome.handoff is not None:
            proposed.append((call.id, outcome.handoff))
        facts += _choose_handoff(state.agent, proposed)
    return facts


def _list_proposed_handoffs(run: Run) -> list[tuple[str, str]]:
    """The handoffs that the answered calls of the current turn returned, by call."""
    return [(call.id, call.handoff) for call in run.calls if call.handoff is not None]


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
) -> list[SessionEvent]:
    """The end of an active run. What it produced stays, and so does what its model was saying (`partial`), marked,
    unless that is recorded by now.

    A handoff that was to be made with the last of its calls is made now; of one that was interrupted, and may go on, it
    is not.
    """
    if run.open_calls:
        proposed = [] if ending is RunInterrupted else _list_proposed_handoffs(run)
        return [*_choose_handoff(state.agent, proposed), ending(stop_reason=stop_reason, usage=run.usage, error=error)]
    if not partial.is_current(state, run):
        return [ending(stop_reason=stop_reason, usage=run.usage, error=error)]
    message = {"role": "assistant", "content": partial.text, "sender": partial.agent or state.agent}
    said = MessageAdded(message=message, completion=CompletionRecord(partial=True))
    return [said, ending(stop_reason=stop_reason, usage=add_usage(run.usage, None), error=error)]


def restart_tool(run: Run, call: ToolCall) -> list[SessionEvent]:
    """The start of a call that was started before, if that is still all that has become of it."""
    return [start_tool(call)] if call in run.open_calls else []


def start_tool(call: ToolCall) -> ToolStarted:
    """The start that must be recorded before a tool runs, whether for the first time or again."""
    return ToolStarted(tool_call_id=call.id, name=call.name, arguments=call.arguments, attempt=call.attempts + 1)


def deny_call(call: ToolCall) -> ToolOutcome:
    reason = f" Reason: {call.approval_reason}" if call.approval_reason else ""
    return ToolOutcome(status="denied", content=f"Denied: {call.name} was not approved and did not run.{reason}")
