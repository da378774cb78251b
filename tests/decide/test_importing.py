"""What comes out of a file runs nothing: what was under way has ended, and what waited asks anew."""

from __future__ import annotations

from swarmkeep.decide.importing import finish_import
from swarmkeep.events.facts import IMPORTED, MessageAdded, RunQueued, RunWaiting, ToolStarted
from swarmkeep.events.records import CallerFunction, CallerTool, ContextChange, RunOptions, ToolRecord, Usage
from swarmkeep.events.state import State
from tests.events.given import (
    OTHER,
    RUN,
    active_run,
    calling_message,
    given,
    in_run,
    list_types,
    make_run_started,
    model_reply,
    record_drafts,
    tool_call,
    user_said,
)

QUEUED = in_run(OTHER, RunQueued(options=RunOptions(), messages=()))
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def import_state(state: State) -> tuple[list[str], State]:
    drafts = finish_import(state, source="export", digest="d", by="Lee")
    return list_types(drafts), record_drafts(state, drafts)


def test_imported_running_run_ended_with_results() -> None:
    reply = model_reply(calling_message(tool_call("c1"), tool_call("c2")), USAGE)
    held = ToolRecord(name="look_up", status="ok", context=ContextChange(patch={"seen": 1}))
    result = {"role": "tool", "tool_call_id": "c2", "content": "done"}
    state = given(make_run_started(), user_said(), reply, MessageAdded(message=result, tool=held), QUEUED)
    types, after = import_state(state)
    assert types == ["session.imported", "run.interrupted", "context.updated", "run.interrupted"]
    assert after.context_variables == {"seen": 1}
    assert (after.run, after.queue) == (None, ())
    ended = [(run.id, run.status, run.usage, run.error and run.error.code) for run in after.finished]
    assert ended == [
        (OTHER, "interrupted", Usage(), IMPORTED),
        (RUN, "interrupted", Usage(3, 2, 5, 1), IMPORTED),
    ]
    # It may be tried again, and then nobody has decided anything.
    assert [(call.id, call.done, call.imported) for call in after.finished[-1].calls] == [
        ("c1", False, True),
        ("c2", True, False),
    ]


def test_imported_waits_are_asked_again() -> None:
    options = RunOptions(tools=(CallerTool(function=CallerFunction(name="outside")),))
    reply = model_reply(calling_message(tool_call("c1"), tool_call("c2", "outside")))
    started = make_run_started(tools=options.tools)
    begun = ToolStarted(tool_call_id="c1", name="look_up", arguments="{}", attempt=1)
    state = given(started, user_said(), reply, begun, RunWaiting(pending=()), QUEUED)
    types, after = import_state(state)
    assert types == ["session.imported", "run.interrupted", "approval.requested", "run.waiting"]
    run = active_run(after)
    assert (run.status, run.by, after.queue) == ("waiting", "Lee", ())
    pending = [(waited.tool_call_id, waited.reason, waited.expires_at) for waited in run.pending]
    assert pending == [("c1", "approval", None), ("c2", "tool_results", None)]
    assert [(call.id, call.approval, call.imported) for call in run.calls] == [
        ("c1", "requested", True),
        ("c2", None, True),
    ]


def test_run_waiting_for_no_call_ended() -> None:
    state = given(make_run_started(), user_said(), RunWaiting(pending=()))
    types, after = import_state(state)
    assert types == ["session.imported", "run.interrupted"]
    assert after.run is None
