"""What follows from facts by itself, without asking anyone outside."""

from __future__ import annotations

from collections.abc import Sequence

from swarmkeep.domain.commands import start_queued
from swarmkeep.domain.drafts import apply_drafts, drafted
from swarmkeep.domain.envelope import Draft
from swarmkeep.domain.events import (
    RunCompleted,
    RunWaiting,
)
from swarmkeep.domain.state import State
from swarmkeep.domain.steps import CallTool, Deny, Finish, StartQueued, Wait, next_step
from swarmkeep.domain.turns import denial, ended, record_result, tool_started


def settle(state: State, drafts: Sequence[Draft], *, queue: bool = True) -> list[Draft]:
    """The drafts, and whatever follows from them without asking anyone outside.

    So a reply and its tool's start, or the last message and the run's end, share one commit. Without `queue`, what is
    queued stays so, for somebody else to begin with.
    """
    drafts = list(drafts)
    state = apply_drafts(state, drafts)
    while state.run is not None and isinstance(step := next_step(state), Deny):
        denied = drafted(state.agent, record_result(state, state.run, step.call, denial(step.call)), state.run.id)
        state = apply_drafts(state, denied)
        drafts += denied
    while more := _follow(state, queue):
        state = apply_drafts(state, more)
        drafts += more
    return drafts


def _follow(state: State, queue: bool) -> list[Draft] | None:
    run = state.run
    match next_step(state):
        case CallTool(call=call) if run is not None and call.attempts == 0:
            return drafted(state.agent, [tool_started(call)], run.id)
        case Wait(pending=pending) if run is not None:
            return drafted(state.agent, [RunWaiting(pending=pending)], run.id)
        case Finish(stop_reason=stop_reason) if run is not None:
            return drafted(state.agent, ended(state, run, RunCompleted, stop_reason), run.id)
        case StartQueued() if queue:
            return start_queued(state)
        case _:
            return None
