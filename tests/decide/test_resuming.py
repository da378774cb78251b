"""Approvals, results from outside, interrupted and imported runs: how a run goes on."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.decide.commands import Approval, ToolAnswer, expire_approvals, resume_run
from swarmkeep.decide.settle import finish_import, settle
from swarmkeep.decide.steps import AskModel, CallTool, Deny, next_step
from swarmkeep.events import facts
from swarmkeep.events.codec import parse_timestamp
from swarmkeep.events.errors import AlreadyDecided, InvalidRequest, RunNotFound, RunNotWaiting
from swarmkeep.events.records import CallerFunction, CallerTool, ContextChange, RunOptions, ToolRecord, Usage
from swarmkeep.events.state import State
from tests.events.given import (
    COMPLETED,
    OTHER,
    RUN,
    active_run,
    calling,
    calling_message,
    commit_calls,
    commit_result,
    given,
    in_run,
    list_facts,
    list_types,
    make_run_started,
    model_answer,
    model_calls,
    model_reply,
    record_drafts,
    run_queued,
    running,
    tool_call,
    tool_result,
    user_said,
    when,
)
from tests.support.calls import count_calls


def approve(call_id: str, reason: str | None = None) -> Approval:
    return Approval(tool_call_id=call_id, decision="approve", reason=reason, by="me")


def deny(call_id: str, reason: str | None = None) -> Approval:
    return Approval(tool_call_id=call_id, decision="deny", reason=reason)


def tool_answer(call_id: str, content: str = "42") -> ToolAnswer:
    return ToolAnswer(tool_call_id=call_id, content=content)


def make_waiting_for_approval(*call_ids: str) -> State:
    return calling(*((call_id, "danger") for call_id in call_ids))


def make_waiting_for_results(*call_ids: str) -> State:
    return calling(*call_ids, execute_tools=False)


def list_pending(state: State) -> list[str]:
    return [waited.tool_call_id for waited in active_run(state).pending]


# Approvals.


def test_approval_recorded_and_run_continues() -> None:
    state = make_waiting_for_approval("c1")
    drafts = resume_run(state, RUN, approvals=[approve("c1", "fine")])
    assert list_facts(drafts) == [
        facts.ApprovalDecided(tool_call_id="c1", decision="approve", reason="fine", by="me"),
        facts.RunResumed(reason="approval"),
    ]
    assert {draft.run_id for draft in drafts} == {RUN}
    state = record_drafts(state, drafts)
    assert next_step(state) == CallTool(active_run(state).calls[0])


def test_denial_continues_with_model_answer() -> None:
    state = make_waiting_for_approval("c1")
    state = record_drafts(state, resume_run(state, RUN, approvals=[deny("c1")]))
    assert next_step(state) == Deny(active_run(state).calls[0])


def test_undecided_calls_keep_run_waiting() -> None:
    state = make_waiting_for_approval("c1", "c2", "c3")
    assert list_pending(state) == ["c1", "c2", "c3"]
    drafts = resume_run(state, RUN, approvals=[approve("c2")])
    assert list_types(drafts) == ["approval.decided"]
    state = record_drafts(state, drafts)
    assert (list_pending(state), active_run(state).status, next_step(state)) == (["c1", "c3"], "waiting", None)
    state = record_drafts(state, resume_run(state, RUN, approvals=[deny("c3")]))
    assert list_pending(state) == ["c1"]
    assert list_types(resume_run(state, RUN, approvals=[approve("c1")])) == ["approval.decided", "run.resumed"]


@pytest.mark.parametrize("first", ["approve", "deny"])
@pytest.mark.parametrize("second", ["approve", "deny"])
def test_first_decision_of_a_call_wins(first: facts.Decision, second: facts.Decision) -> None:
    again = Approval(tool_call_id="c1", decision=second)
    before = make_waiting_for_approval("c1", "c2")
    state = record_drafts(before, resume_run(before, RUN, approvals=[Approval(tool_call_id="c1", decision=first)]))
    with pytest.raises(AlreadyDecided, match=first):
        resume_run(state, RUN, approvals=[again])
    with pytest.raises(InvalidRequest, match="'c1' is given twice"):
        resume_run(before, RUN, approvals=[Approval(tool_call_id="c1", decision=first), again])


def test_late_decisions_do_not_rescan_run() -> None:
    over = running(COMPLETED)
    late = [approve(f"c{number}") for number in range(100)]
    with count_calls() as calls, pytest.raises(RunNotWaiting):
        resume_run(over, RUN, approvals=late)
    assert calls.total() < len(late)


def test_decision_is_final_after_continuing() -> None:
    state = make_waiting_for_approval("c1")
    running = record_drafts(state, resume_run(state, RUN, approvals=[approve("c1")]))
    answered = when(running, tool_result("c1"))
    over = when(answered, model_answer(), COMPLETED)
    for later in (running, answered, over):
        with pytest.raises(AlreadyDecided):
            resume_run(later, RUN, approvals=[deny("c1")])


def test_several_decisions_all_or_none() -> None:
    state = make_waiting_for_approval("c1", "c2")
    with pytest.raises(InvalidRequest) as refused:
        resume_run(state, RUN, approvals=[approve("c1"), approve("nobody's")])
    assert refused.value.extra()["errors"][0]["pointer"] == "/approvals"


def test_call_without_approval_request_not_approvable() -> None:
    state = calling(("c1", "danger"), "c2")
    with pytest.raises(InvalidRequest, match="does not need an approval"):
        resume_run(state, RUN, approvals=[approve("c2")])


def test_approved_call_runs_before_later_ones() -> None:
    state = calling(("c1", "danger"), "c2", ("c3", "danger"))
    state = record_drafts(state, resume_run(state, RUN, approvals=[approve("c3"), approve("c1")]))
    ran = []
    while isinstance(step := next_step(state), CallTool):
        ran.append(step.call.id)
        state = record_drafts(state, commit_result(state, step.call.id))
    assert ran == ["c1", "c2", "c3"]
    assert next_step(state) == AskModel()


def test_reused_call_id_can_be_decided() -> None:
    state = make_waiting_for_approval("c1")
    state = record_drafts(state, resume_run(state, RUN, approvals=[approve("c1")]))
    state = record_drafts(state, commit_result(state, "c1"))
    state = record_drafts(state, commit_calls(state, ("c1", "danger")))
    assert list_pending(state) == ["c1"]
    state = record_drafts(state, resume_run(state, RUN, approvals=[deny("c1")]))
    assert isinstance(next_step(state), Deny)


@pytest.mark.parametrize(
    ("given_arguments", "edited", "recorded"),
    [
        ('{"a": 1}', {"a": 2}, '{"a":2}'),
        ('{"a": 1}', {"a": 1}, UNSET),
        ('{"a":', {"a": 1}, '{"a":1}'),
        ('{"a": 1}', None, UNSET),
    ],
)
def test_changed_arguments_are_recorded(given_arguments: str, edited: Any, recorded: Any) -> None:
    state = calling(("c1", "danger", given_arguments))
    decision = Approval(tool_call_id="c1", decision="approve", arguments=edited)
    (fact, _, _) = list_facts(settle(state, resume_run(state, RUN, approvals=[decision])))
    assert isinstance(fact, facts.ApprovalDecided)
    assert fact.arguments == recorded


# Results from outside.


def test_outside_result_recorded_and_run_continues() -> None:
    state = make_waiting_for_results("c1")
    drafts = resume_run(state, RUN, [tool_answer("c1")])
    assert list_facts(drafts) == [
        facts.MessageAdded(
            message={"role": "tool", "tool_call_id": "c1", "tool_name": "look_up", "content": "42", "sender": "triage"},
            tool=ToolRecord(name="look_up", status="external"),
        ),
        facts.RunResumed(reason="tool_results"),
    ]
    assert next_step(record_drafts(state, drafts)) == AskModel()


def test_words_with_last_result_follow_it() -> None:
    state = make_waiting_for_results("c1", "c2")
    said = [{"role": "user", "content": "and be quick"}]
    options = RunOptions(max_turns=3)
    with pytest.raises(InvalidRequest, match=r"the run still waits for: look_up \(c2\)"):
        resume_run(state, RUN, [tool_answer("c1")], messages=said)
    drafts = resume_run(state, RUN, [tool_answer("c1"), tool_answer("c2")], messages=said, options=options)
    assert list_facts(drafts)[2:] == [
        facts.RunResumed(reason="tool_results", options=options),
        facts.MessageAdded(message={**said[0], "sender": "user"}),
    ]


def test_outside_error_is_an_answer() -> None:
    (fact, _) = list_facts(
        resume_run(make_waiting_for_results("c1"), RUN, [ToolAnswer(tool_call_id="c1", content="no", is_error=True)])
    )
    assert isinstance(fact, facts.MessageAdded)
    assert fact.tool == ToolRecord(name="look_up", status="error")


def test_missing_results_keep_run_waiting() -> None:
    state = make_waiting_for_results("c1", "c2", "c3")
    state = record_drafts(state, resume_run(state, RUN, [tool_answer("c3"), tool_answer("c1")]))
    assert (list_pending(state), next_step(state)) == (["c2"], None)
    assert list_types(resume_run(state, RUN, [tool_answer("c2")])) == ["message.added", "run.resumed"]


def test_second_result_of_call_refused() -> None:
    before = make_waiting_for_results("c1", "c2")
    state = record_drafts(before, resume_run(before, RUN, [tool_answer("c1")]))
    with pytest.raises(AlreadyDecided):
        resume_run(state, RUN, [tool_answer("c1")])
    with pytest.raises(InvalidRequest, match="'c1' is given twice"):
        resume_run(before, RUN, [tool_answer("c1"), tool_answer("c1")])


def test_approval_and_result_waits_are_exclusive() -> None:
    with pytest.raises(InvalidRequest) as refused:
        resume_run(make_waiting_for_approval("c1"), RUN, [tool_answer("c1")])
    assert refused.value.extra()["errors"][0]["pointer"] == "/tool_results"
    with pytest.raises(InvalidRequest, match="does not need an approval"):
        resume_run(make_waiting_for_results("c1"), RUN, approvals=[approve("c1")])


# Whether there is anything to resume.


def test_empty_resume_of_waiting_run_refused() -> None:
    for state in (make_waiting_for_approval("c1"), make_waiting_for_results("c1")):
        with pytest.raises(InvalidRequest, match="give `approvals`"):
            resume_run(state, RUN)


@pytest.mark.parametrize(
    ("state", "run_id", "status"),
    [
        (running(model_calls("c1")), RUN, "running"),
        (running(run_queued(OTHER)), OTHER, "queued"),
        (running(model_answer(), COMPLETED), RUN, "completed"),
    ],
)
def test_other_runs_have_nothing_to_resume(state: State, run_id: str, status: str) -> None:
    for arguments in ({}, {"answers": [tool_answer("c1")]}, {"approvals": [approve("c1")]}):
        with pytest.raises(RunNotWaiting, match=status):
            resume_run(state, run_id, **arguments)


def test_unknown_run_cannot_be_resumed() -> None:
    for state in (given(), running()):
        with pytest.raises(RunNotFound):
            resume_run(state, "nobody")


# Interrupted runs.

INTERRUPTED = facts.RunInterrupted(stop_reason="interrupted")


def test_interrupted_run_retried_at_its_place() -> None:
    before = running(model_calls("c1", "c2"), tool_result("c1"))
    state = when(before, INTERRUPTED)
    drafts = resume_run(state, RUN)
    assert [(draft.fact, draft.run_id) for draft in drafts] == [(facts.RunResumed(reason="recovery"), RUN)]
    state = record_drafts(state, drafts)
    assert next_step(state) == next_step(before)
    assert active_run(state).recoveries == 0


def test_interrupted_waiting_run_waits_again() -> None:
    state = make_waiting_for_approval("c1", "c2")
    state = record_drafts(state, resume_run(state, RUN, approvals=[approve("c1")]))
    state = when(state, INTERRUPTED)
    state = record_drafts(state, resume_run(state, RUN))
    assert [asked.approval for asked in active_run(state).calls] == ["approve", "requested"]
    assert next_step(state) == CallTool(active_run(state).calls[0])


def test_interrupted_run_decides_only_once_retried() -> None:
    state = when(make_waiting_for_approval("c1"), INTERRUPTED)
    with pytest.raises(RunNotWaiting):
        resume_run(state, RUN, approvals=[approve("c1")])


@pytest.mark.parametrize(
    ("asked", "begun", "imported", "given_up"),
    [
        (False, False, False, True),
        (False, True, False, True),
        # Whom it asked knows what it was asked; what a file says of that is not believed.
        (True, True, False, False),
        (True, False, False, True),
        (True, True, True, True),
    ],
)
def test_call_with_removed_arguments_given_up(asked: bool, begun: bool, imported: bool, given_up: bool) -> None:
    state = running(model_calls("c1"), INTERRUPTED)
    run = state.finished[-1]
    session_id = "s" if asked else None
    call = replace(
        run.calls[0], redacted=True, session_id=session_id, attempts=int(begun), imported=imported, approval="approve"
    )
    state = replace(state, finished=state.finished.replace_at(-1, replace(run, calls=(call,))))
    types = list_types(resume_run(state, RUN))
    assert types == ["run.resumed", *(["message.added"] if given_up else [])]
    denied = replace(run, calls=(replace(call, approval="deny"),))
    state = replace(state, finished=state.finished.replace_at(-1, denied))
    assert list_types(resume_run(state, RUN)) == ["run.resumed"]


def test_followed_interrupted_run_is_over() -> None:
    state = when(running(), INTERRUPTED, in_run(OTHER, make_run_started()))
    with pytest.raises(RunNotWaiting):
        resume_run(state, RUN)
    with pytest.raises(RunNotWaiting):
        resume_run(when(state, COMPLETED), RUN)


# Approvals that nobody decides in time.


FIRST, SECOND, THIRD, LATE = (f"{year}-01-02T00:00:00.000000Z" for year in (2026, 2027, 2028, 2030))


def when_is(text: str) -> datetime:
    at = parse_timestamp(text)
    assert at is not None
    return at


def make_expiring(**ends: str) -> State:
    state = running(model_reply(calling_message(*(tool_call(call_id, "danger") for call_id in ends))))
    asked = [
        facts.ApprovalRequested(tool_call_id=call_id, name="danger", arguments="{}", expires_at=end)
        for call_id, end in ends.items()
    ]
    return record_drafts(when(state, *asked), settle(when(state, *asked), []))


def test_expired_approvals_are_denied_and_run_continues() -> None:
    state = make_expiring(c1=SECOND)
    drafts = expire_approvals(state, when_is(SECOND))
    assert list_types(drafts) == ["approval.decided", "run.resumed"]
    state = record_drafts(state, settle(state, drafts))
    assert next_step(state) == AskModel()
    assert "not approved and did not run" in str(state.messages[-1].message["content"])
    assert SECOND in str(state.messages[-1].message["content"])


def test_before_that_nothing_expires() -> None:
    assert expire_approvals(make_expiring(c1=SECOND), when_is(FIRST)) == []
    assert expire_approvals(running(), when_is(LATE)) == []


def test_timely_decisions_wait_for_the_rest() -> None:
    state = make_expiring(c1=SECOND, c2=THIRD)
    assert state.due_at == when_is(SECOND).timestamp()
    state = record_drafts(state, expire_approvals(state, when_is(SECOND)))
    assert state.status == "waiting"
    assert state.due_at == when_is(THIRD).timestamp()
    drafts = resume_run(state, RUN, approvals=[approve("c2")], now=when_is(SECOND))
    assert list_types(drafts) == ["approval.decided", "run.resumed"]


def test_decision_after_end_refused() -> None:
    with pytest.raises(AlreadyDecided, match="in time"):
        resume_run(make_expiring(c1=SECOND), RUN, approvals=[approve("c1")], now=when_is(SECOND))


def test_session_with_unattended_work_is_due() -> None:
    assert running().due_at is None
    assert given().due_at is None
    assert given(facts.RunQueued(options=RunOptions(), messages=())).due_at == 0.0
    assert make_waiting_for_approval("c1").due_at is None


@pytest.mark.parametrize("end", ["2026-01-02", "2026-01-02T00:00:00Z", "2026-01-02T00:00:00.000000+02:00", "soon", ""])
def test_what_is_no_time_never_comes(end: str) -> None:
    state = make_expiring(c1=end, c2=THIRD)
    assert state.due_at == when_is(THIRD).timestamp()
    assert list_types(expire_approvals(state, when_is(SECOND))) == []
    assert make_expiring(c1=end).due_at is None


# What comes out of a file runs nothing: what was under way has ended, and what waited asks again.

QUEUED = run_queued(OTHER)
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def import_state(state: State) -> tuple[list[str], State]:
    drafts = finish_import(state, source="export", digest="d", by="Lee")
    return list_types(drafts), record_drafts(state, drafts)


def test_imported_running_run_ended_with_results() -> None:
    reply = model_reply(calling_message(tool_call("c1"), tool_call("c2")), USAGE)
    held = ToolRecord(name="look_up", status="ok", context=ContextChange(patch={"seen": 1}))
    result = {"role": "tool", "tool_call_id": "c2", "content": "done"}
    state = running(reply, facts.MessageAdded(message=result, tool=held), QUEUED)
    types, after = import_state(state)
    assert types == ["session.imported", "run.interrupted", "context.updated", "run.interrupted"]
    assert after.context_variables == {"seen": 1}
    assert (after.run, after.queue) == (None, ())
    ended = [(run.id, run.status, run.usage, run.error and run.error.code) for run in after.finished]
    assert ended == [
        (OTHER, "interrupted", Usage(), facts.IMPORTED),
        (RUN, "interrupted", Usage(3, 2, 5, 1), facts.IMPORTED),
    ]
    # It may be tried again, and then nobody has decided anything.
    assert [(call.id, call.done, call.imported) for call in after.finished[-1].calls] == [
        ("c1", False, True),
        ("c2", True, False),
    ]


def test_imported_waits_are_asked_again() -> None:
    options = RunOptions(tools=(CallerTool(function=CallerFunction(name="outside")),))
    reply = model_calls("c1", ("c2", "outside"))
    started = make_run_started(tools=options.tools)
    begun = facts.ToolStarted(tool_call_id="c1", name="look_up", arguments="{}", attempt=1)
    state = given(started, user_said(), reply, begun, facts.RunWaiting(pending=()), QUEUED)
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
    state = running(facts.RunWaiting(pending=()))
    types, after = import_state(state)
    assert types == ["session.imported", "run.interrupted"]
    assert after.run is None
