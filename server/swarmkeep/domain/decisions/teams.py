"""Calls of an agent to another one: a run that waits for what is asked to be decided elsewhere, and goes on."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from swarmkeep.domain.decisions.drafts import draft_events
from swarmkeep.domain.envelope import EventDraft
from swarmkeep.domain.events import AwaitedApproval, PendingCall, RunResumed
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.domain.state import State, ToolCall


def await_session(call: ToolCall, session_id: str | None, approvals: tuple[AwaitedApproval, ...] = ()) -> PendingCall:
    """The call, whose own session waits for somebody. `approvals`: what has to be decided there."""
    return PendingCall(
        tool_call_id=call.id,
        name=call.name,
        arguments=call.arguments,
        reason="session",
        session_id=session_id or UNSET,
        approvals=approvals or UNSET,
    )


def list_awaited(pending: Sequence[PendingCall], session_id: str, run_id: str, agent: str) -> list[AwaitedApproval]:
    """What has to be decided before a run with these pending calls goes on, in its session and in those below it."""
    found: list[AwaitedApproval] = []
    for call in pending:
        if call.approvals is not UNSET:
            found += call.approvals
        elif call.reason == "approval":
            found.append(
                AwaitedApproval(
                    session_id=session_id,
                    run_id=run_id,
                    tool_call_id=call.tool_call_id,
                    agent=agent,
                    name=call.name,
                    arguments=call.arguments,
                )
            )
    return found


def go_on_with_session(
    state: State, run_id: str, call_id: str, options: RunOptions | UnsetType = UNSET
) -> list[EventDraft] | None:
    """Go on with a run that waits for this call's session, alone or among others; nothing if it does not."""
    run = state.run
    if run is None or run.id != run_id or run.status != "waiting" or call_id not in run.awaited_calls:
        return None
    return draft_events(state.agent, [RunResumed(reason="session", options=options)], run_id)
