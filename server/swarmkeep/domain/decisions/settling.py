"""What follows from facts by itself, without asking anyone outside."""

from __future__ import annotations

from collections.abc import Sequence

from swarmkeep.domain.decisions.commands import start_queued
from swarmkeep.domain.decisions.drafts import apply_drafts, draft_events
from swarmkeep.domain.decisions.steps import CallTool, Deny, Finish, StartQueued, Wait, next_step
from swarmkeep.domain.decisions.turns import deny_call, end_run, record_result, start_tool
from swarmkeep.domain.envelope import EventDraft
from swarmkeep.domain.events import (
    RunCompleted,
    RunWaiting,
)
from swarmkeep.domain.state import State


def settle(state: State, drafts: Sequence[EventDraft], *, queue: bool = True) -> list[EventDraft]:
    """The drafts, and whatever follows from them without asking anyone outside.

    So a reply and its tool's start, or the last message and the run's end, share one commit. Without `queue`, what is
    queued stays so, for somebody else to begin with.
    """
    drafts = list(drafts)
    state = apply_drafts(state, drafts)
    while state.run is not None and isinstance(step := next_step(state), Deny):
        denied = draft_events(
            state.agent, record_result(state, state.run, step.call, deny_call(step.call)), state.run.id
        )
        state = apply_drafts(state, denied)
        drafts += denied
    while more := _draft_follow_up(state, queue):
        state = apply_drafts(state, more)
        drafts += more
    return drafts


def _draft_follow_up(state: State, queue: bool) -> list[EventDraft] | None:
    run = state.run
    match next_step(state):
        case CallTool(call=call) if run is not None and call.attempts == 0:
            return draft_events(state.agent, [start_tool(call)], run.id)
        case Wait(pending=pending) if run is not None:
            return draft_events(state.agent, [RunWaiting(pending=pending)], run.id)
        case Finish(stop_reason=stop_reason) if run is not None:
            return draft_events(state.agent, end_run(state, run, RunCompleted, stop_reason), run.id)
        case StartQueued() if queue:
            return start_queued(state)
        case _:
            return None
