"""The next step of a session: a pure question to its state."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from swarmkeep.decide.cut_calls import ends_with_cut, find_cut_error
from swarmkeep.decide.turns import list_undecided, make_pending_call
from swarmkeep.events.facts import PendingCall, RunError, StopReason
from swarmkeep.events.messages import Entry
from swarmkeep.events.state import QueuedRun, Run, State, ToolCall

# Runs that go round in circles: the same calls again and again, or the same handoffs.

# A circle counts once it was gone round this often: two equal turns may well be a second attempt.
_MIN_REPEATS = 3


def is_looping(state: State, run: Run) -> bool:
    """Tell if the last `options.loop_turns` turns of the run ask for the same calls, or for a short circle of them.

    Two turns are alike when the same agent asks for the same functions with the same arguments; what came of it does
    not matter. A circle of p turns is found when the turns repeat with period p, at least three times.
    """
    window = run.options.loop_turns
    if window is None or run.turns < window:
        return False
    latest = _list_last_turns(state, run, window)
    return any(_is_repeating(latest, period) for period in range(1, max(window // _MIN_REPEATS, 1) + 1))


def _is_repeating(turns: list[object], period: int) -> bool:
    return all(turn is not None and turn == later for turn, later in zip(turns, turns[period:], strict=False))


def _list_last_turns(state: State, run: Run, count: int) -> list[object]:
    turns: list[object] = []
    for entry in _iterate_backwards(state, run):
        if entry.completion is None:
            continue
        turns.append(_sign_turn(entry))
        if len(turns) == count:
            break
    return turns


def _iterate_backwards(state: State, run: Run) -> Iterator[Entry]:
    return (state.messages[index] for index in range(run.last_message - 1, run.first_message - 1, -1))


def _sign_turn(entry: Entry) -> object:
    calls = [
        (call["function"]["name"], call["function"]["arguments"]) for call in entry.chat_message.get("tool_calls", ())
    ]
    return (entry.message.get("sender"), calls) if calls else None


class AskModel(msgspec.Struct, frozen=True):
    """Send the history to the active agent's model."""


class Compact(msgspec.Struct, frozen=True):
    """Have the active agent's model sum up what comes next of a compaction that is under way."""


class CallTool(msgspec.Struct, frozen=True):
    """Run a tool. If `call.attempts` is above 0, it was started before and its outcome was never recorded."""

    call: ToolCall


class CallTools(msgspec.Struct, frozen=True):
    """Run calls at once whose starts are recorded; of any of them it may be as with `CallTool`."""

    calls: tuple[ToolCall, ...]


class Deny(msgspec.Struct, frozen=True):
    """Record that a call was denied."""

    call: ToolCall


class Wait(msgspec.Struct, frozen=True):
    """Stop until someone decides or delivers; `pending` says what."""

    pending: tuple[PendingCall, ...]
    stop_reason: StopReason


class Finish(msgspec.Struct, frozen=True):
    """End the run; with an `error` it has failed."""

    stop_reason: StopReason
    error: RunError | None = None


class StartQueued(msgspec.Struct, frozen=True):
    queued: QueuedRun


class TellNote(msgspec.Struct, frozen=True):
    """Record the note for the agent from the person who handed the session back."""


Step = AskModel | Compact | CallTool | CallTools | Deny | Wait | Finish | StartQueued | TellNote


def next_step(state: State) -> Step | None:
    """Return the one thing to do next, or None: idle, or waiting for something outside.

    Running, resuming after a crash and going on after an approval all ask this; there is no other order of things.
    """
    run = state.run
    if run is None:
        if state.handback_note is not None:
            return TellNote()
        return StartQueued(state.queue[0]) if state.queue else None
    if run.status == "waiting":
        return None
    if run.open_calls:
        step = _next_call_step(run)
        return step if state.taken_over is None or _has_begun(step) else _wait_for_person(step)
    return _next_turn_step(state, run)


def _next_turn_step(state: State, run: Run) -> TellNote | Finish | Wait | AskModel | Compact:
    """Return the step that follows once no call is open."""
    if state.handback_note is not None:
        # Not before: between calls and their results there is room for nothing else.
        return TellNote()
    if run.tripped:
        return Finish("guardrail")
    if run.answered:
        return Finish("end_turn")
    if state.taken_over is not None:
        return _wait_for_person()
    if ends_with_cut(state, run):
        return Finish("error", find_cut_error(state, run))
    if run.options.max_turns is not None and run.turns >= run.options.max_turns:
        return Finish("max_turns", find_cut_error(state, run))
    if is_looping(state, run):
        return Finish("loop_detected", find_cut_error(state, run))
    return AskModel() if state.compaction is None else Compact()


def list_needed_agents(state: State) -> list[str]:
    """The agents that going on is a matter of: the one that is asked next, and those that asked for open calls."""
    run = state.run
    if run is None:
        return [state.queue[0].fact.agent or state.agent] if state.queue else []
    return [state.agent, *(call.agent for call in run.own_open_calls if call.agent)]


def _next_call_step(run: Run) -> CallTool | CallTools | Deny | Wait:
    """The agents' own calls in their order; then, or when one of them waits for an approval, those from outside.

    Those that have begun come before all that has not.
    """
    begun = tuple(call for call in run.own_open_calls if call.attempts and call.approval not in ("requested", "deny"))
    if len(begun) > 1:
        return CallTools(begun)
    if begun:
        return CallTool(begun[0])
    outside = tuple(make_pending_call(call, "tool_calls") for call in run.outside_open_calls)
    for call in run.own_open_calls:
        if call.approval == "requested":
            return Wait((*list_undecided(run), *outside), "approval")
        return Deny(call) if call.approval == "deny" else CallTool(call)
    return Wait(outside, "tool_calls")


# No call: the person who has taken over answers, or hands back.
PERSON = PendingCall(tool_call_id="", name="", arguments="", reason="person")


def _has_begun(step: Step) -> bool:
    """Tell if a call is under way, which cannot be taken back: its outcome is recorded first."""
    return isinstance(step, CallTools) or (isinstance(step, CallTool) and step.call.attempts > 0)


def _wait_for_person(step: Step | None = None) -> Wait:
    """Wait in the place of a step that has not begun. What else the run waits for may be decided meanwhile."""
    return Wait((PERSON, *(step.pending if isinstance(step, Wait) else ())), "person")
