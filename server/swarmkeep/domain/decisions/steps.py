"""The next step of a session: a pure question to its state."""

from __future__ import annotations

import msgspec

from swarmkeep.domain.decisions.loop_detection import is_looping
from swarmkeep.domain.events import PendingCall, StopReason
from swarmkeep.domain.state import QueuedRun, Run, State, ToolCall


class AskModel(msgspec.Struct, frozen=True):
    """Send the history to the active agent's model."""


class CallTool(msgspec.Struct, frozen=True):
    """Run a tool. If `call.attempts` is above 0, it was started before and its outcome was never recorded."""

    call: ToolCall


class Deny(msgspec.Struct, frozen=True):
    """Record that a call was denied."""

    call: ToolCall


class Wait(msgspec.Struct, frozen=True):
    """Stop until someone decides or delivers; `pending` says what."""

    pending: tuple[PendingCall, ...]
    stop_reason: StopReason


class Finish(msgspec.Struct, frozen=True):
    stop_reason: StopReason


class StartQueued(msgspec.Struct, frozen=True):
    queued: QueuedRun


Step = AskModel | CallTool | Deny | Wait | Finish | StartQueued


def next_step(state: State) -> Step | None:
    """The one thing to do next, or None: idle, or waiting for somebody outside.

    Running, resuming after a crash and going on after an approval all ask this; there is no other order of things.
    """
    run = state.run
    if run is None:
        return StartQueued(state.queue[0]) if state.queue else None
    if run.status == "waiting":
        return None
    for call in run.calls:
        if not call.done:
            return _next_call_step(run, call)
    if run.answered:
        return Finish("end_turn")
    if run.options.max_turns is not None and run.turns >= run.options.max_turns:
        return Finish("max_turns")
    if is_looping(state, run):
        return Finish("loop_detected")
    return AskModel()


def list_needed_agents(state: State) -> list[str]:
    """The agents that going on is a matter of: the one that is asked next, and those that asked for open calls."""
    run = state.run
    if run is None:
        return [state.queue[0].fact.agent or state.agent] if state.queue else []
    calls = run.open_calls if run.options.execute_tools else ()
    return [state.agent, *(call.agent for call in calls if call.agent)]


def _next_call_step(run: Run, call: ToolCall) -> CallTool | Deny | Wait:
    if not run.options.execute_tools:
        return Wait(tuple(make_pending_call(open_call, "tool_calls") for open_call in run.open_calls), "tool_calls")
    if call.approval == "requested":
        undecided = [open_call for open_call in run.open_calls if open_call.approval == "requested"]
        return Wait(tuple(make_pending_call(open_call, "approval") for open_call in undecided), "approval")
    return Deny(call) if call.approval == "deny" else CallTool(call)


def make_pending_call(call: ToolCall, stop_reason: StopReason) -> PendingCall:
    return PendingCall(
        tool_call_id=call.id,
        name=call.name,
        arguments=call.arguments,
        reason="approval" if stop_reason == "approval" else "tool_results",
        expires_at=call.expires_at,
    )
