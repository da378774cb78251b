"""The next step of a session, a pure question to its state; and calls that the end of a reply cut."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import msgspec

from swarmkeep.decide.turns import ToolOutcome, list_undecided, make_pending_call, record_result
from swarmkeep.events.facts import PendingCall, RunError, SessionEvent, StopReason
from swarmkeep.events.messages import Entry, read_tool_calls
from swarmkeep.events.state import QueuedRun, Run, State, ToolCall

REPLY_CUT = "reply_cut"
# So many replies in a row of which nothing could be run end a run, regardless of its other limits: each was paid for.
MAX_CUT_REPLIES = 3


def list_cut_calls(state: State, run: Run, find_bare: Callable[[State], Collection[str]]) -> list[ToolCall]:
    """Return the calls that were cut and have neither a start nor a result.

    `find_bare` names functions without parameters. A call that a person approved with other arguments has whole ones.
    """
    waiting = [call for call in run.open_calls if not call.attempts and call.original_arguments is None]
    reply = find_last_reply(state, run) if waiting else None
    if reply is None or not reply.cut_calls:
        return []
    cut = [call for call in waiting if is_cut(run, reply, call)]
    if not any(reply.cut_calls[call.id] for call in cut):
        return cut
    bare = find_bare(state)
    return [call for call in cut if is_cut(run, reply, call, bare)]


def is_cut(run: Run, reply: Entry, call: ToolCall, bare: Collection[str] = ()) -> bool:
    """Return whether the end of the reply cut this call of it."""
    return _was_cut(run, reply, call.id, call.name, bare)


def _was_cut(run: Run, reply: Entry, call_id: str, name: str, bare: Collection[str] = ()) -> bool:
    lacks_arguments = reply.cut_calls.get(call_id)
    if lacks_arguments is None:
        return False
    return not (lacks_arguments and (name in bare or name in run.options.bare_tool_names))


def find_last_reply(state: State, run: Run) -> Entry | None:
    """Return the last reply of a run."""
    for place in range(run.last_message - 1, run.first_message - 1, -1):
        if state.messages[place].completion is not None:
            return state.messages[place]
    return None


def refuse_cut_call(state: State, run: Run, call: ToolCall) -> list[SessionEvent]:
    """Return the result of a call that was cut: it tells the model how to make the call again."""
    reply = find_last_reply(state, run)
    text = f"Error: {call.name} was not run: {_describe_end(reply)} before this call was complete."
    advice = "Make the call again if it is still needed, with shorter arguments."
    return record_result(state, run, call, ToolOutcome(status="error", content=f"{text} {advice}"))


def _describe_end(reply: Entry | None) -> str:
    completion = None if reply is None else reply.completion
    if completion is not None and completion.ending == "length":
        return "the reply was cut off at its token limit"
    if completion is None or not completion.finish_reason:
        return "the reply ended without saying that it was whole"
    return f"the reply was cut off (its finish_reason is {completion.finish_reason[:60]!r})"


def find_cut_error(state: State, run: Run) -> RunError | None:
    """Return why a run did not get what it asked for, if nothing that its last reply asks for was whole."""
    if not run.calls or _count_cut_replies(state, run, 1) == 0:
        return None
    names = ", ".join(dict.fromkeys(call.name for call in run.calls))
    message = (
        f"{_describe_end(find_last_reply(state, run))} before the call of {names[:200]} was complete, so nothing was "
        "run; raise the limit of tokens (max_tokens or max_completion_tokens), or ask for less at once"
    )
    return RunError(code=REPLY_CUT, message=message, retryable=True)


def ends_with_cut(state: State, run: Run) -> bool:
    """Return whether a run ends because its last reply was cut.

    The agent's own model is told, and may call again, so many times. A call that its caller was to carry out ends the
    run at once: the caller, who set its limits, is told.
    """
    if not run.calls or _count_cut_replies(state, run, 1) == 0:
        return False
    callers = run.options.caller_tool_names
    if not run.options.execute_tools or any(call.name in callers for call in run.calls):
        return True
    return _count_cut_replies(state, run, MAX_CUT_REPLIES) == MAX_CUT_REPLIES


def _count_cut_replies(state: State, run: Run, limit: int) -> int:
    """Count the last replies of the run, up to `limit`, of which each call was cut and refused."""
    if any(call.attempts for call in run.calls):
        return 0
    count = 0
    was_refused = True
    for place in range(run.last_message - 1, run.first_message - 1, -1):
        entry = state.messages[place]
        if entry.role == "tool":
            was_refused = was_refused and entry.tool is not None and entry.tool.status == "error"
        elif entry.completion is not None:
            calls = read_tool_calls(entry.message) if was_refused and entry.cut_calls else ()
            if not calls or not all(_was_cut(run, entry, call_id, name) for call_id, name, _ in calls):
                break
            count += 1
            if count == limit:
                break
    return count


# The next step of a session: a pure question to its state.

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
