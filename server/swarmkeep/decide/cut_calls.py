"""Calls that the end of a reply cut: none is ever started, its model is told so, and a run may end with them.

All of it follows from what is recorded (`find_cut_calls`), so a crash, a fork and a replay come to the same. The code
of today says one thing only: which functions have no parameters, and so need no arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from swarmkeep.decide.turns import ToolOutcome, record_result
from swarmkeep.events.facts import RunError, SessionEvent
from swarmkeep.events.messages import Entry, read_tool_calls
from swarmkeep.events.state import Run, State, ToolCall

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
