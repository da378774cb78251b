"""Facts that share one commit."""

from __future__ import annotations

import pytest
from hypothesis import given as for_any

from swarmkeep.decide.commands import Approval, StartRun, ToolAnswer, resume_run, start_run
from swarmkeep.decide.drafts import apply_drafts, draft_events
from swarmkeep.decide.settle import draft_follow_up, find_outside_step, settle
from swarmkeep.decide.steps import AskModel, next_step
from swarmkeep.decide.turns import ToolOutcome
from swarmkeep.events.chain import Chain
from swarmkeep.events.facts import MessageAdded, RecordedEvent, RunCompleted, RunQueued, ToolStarted
from swarmkeep.events.fold import evolve
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import State
from tests.events.given import (
    OTHER,
    RUN,
    active_run,
    answer_message,
    calling_message,
    commit_reply,
    commit_result,
    given,
    in_run,
    list_contents,
    list_types,
    make_run_started,
    model_reply,
    record_drafts,
    tool_call,
    tool_result,
    user_said,
    when,
)
from tests.support.logs import any_logs


def test_input_is_committed_before_model_call() -> None:
    command = StartRun(run_id=RUN, messages=({"role": "user", "content": "hello"},))
    state = given()
    drafts = settle(state, start_run(state, command))
    assert list_types(drafts) == ["run.started", "message.added"]
    assert next_step(record_drafts(state, drafts)) == AskModel()


def test_trial_follow_ups_leave_session_chains_alone() -> None:
    state = given(make_run_started(), user_said())
    tried = apply_drafts(state, draft_events(state.agent, [user_said("more")], RUN))
    chains = [name for name in State.__struct_fields__ if isinstance(getattr(state, name), Chain)]
    assert {"messages", "finished"} <= {*chains}
    for name in chains:
        getattr(tried, name).append("an item").append("another")
        assert len(getattr(state, name).shared) == len(getattr(state, name))


def test_reply_and_run_end_share_commit() -> None:
    assert list_types(commit_reply(given(make_run_started(), user_said()), answer_message())) == [
        "message.added",
        "run.completed",
    ]


def test_reply_and_first_tool_share_commit() -> None:
    drafts = commit_reply(
        given(make_run_started(), user_said()), calling_message(tool_call("c1", arguments='{"a": 1}'), tool_call("c2"))
    )
    assert list_types(drafts) == ["message.added", "tool.started"]
    begun = drafts[-1].fact
    assert begun == ToolStarted(tool_call_id="c1", name="look_up", arguments='{"a": 1}', attempt=1)


def test_result_and_next_tool_share_commit() -> None:
    state = given(make_run_started(), user_said())
    state = record_drafts(state, commit_reply(state, calling_message(tool_call("c1"), tool_call("c2"))))
    outcome = ToolOutcome(status="ok", content="done", patch={"k": 1})
    assert list_types(commit_result(state, "c1", outcome)) == ["message.added", "context.updated", "tool.started"]


@for_any(any_logs())
def test_steps_follow_up_or_need_outsiders(events: list[RecordedEvent]) -> None:
    state = State()
    for event in events:
        state = evolve(state, event)
        follow_up, outside = draft_follow_up(state), find_outside_step(state)
        assert (follow_up is not None) + (outside is not None) == (next_step(state) is not None)
        settled = record_drafts(state, settle(state, []))
        assert draft_follow_up(settled) is None


def test_queue_may_be_left_to_others() -> None:
    state = given(make_run_started(), in_run(OTHER, RunQueued(options=RunOptions(), messages=())))
    ends = draft_events(state.agent, [RunCompleted(stop_reason="end_turn")], RUN)
    assert list_types(settle(state, ends)) == ["run.completed", "run.started"]
    assert list_types(settle(state, ends, may_start_queued=lambda state: False)) == ["run.completed"]
    assert settle(record_drafts(state, ends), [], may_start_queued=lambda state: False) == []


def test_last_result_and_handoff_share_commit() -> None:
    state = given(make_run_started(), user_said())
    state = record_drafts(state, commit_reply(state, calling_message(tool_call("c1"))))
    drafts = commit_result(state, "c1", ToolOutcome(status="ok", content="done", handoff="refunds"))
    assert list_types(drafts) == ["message.added", "handoff.made"]
    assert [draft.agent for draft in drafts] == ["triage", "triage"]


def test_last_result_and_end_share_commit() -> None:
    state = given(make_run_started(max_turns=1), user_said())
    state = record_drafts(state, commit_reply(state, calling_message(tool_call("c1"))))
    drafts = commit_result(state, "c1", ToolOutcome(status="ok", content="done", handoff="refunds"))
    assert list_types(drafts) == ["message.added", "handoff.made", "run.completed"]
    end = drafts[-1]
    assert isinstance(end.fact, RunCompleted)
    assert (end.fact.stop_reason, end.agent) == ("max_turns", "refunds")


def test_reply_and_approval_wait_share_commit() -> None:
    drafts = commit_reply(
        given(make_run_started(), user_said()),
        calling_message(tool_call("c1", "danger"), tool_call("c2")),
        needs_approval={"danger"},
    )
    assert list_types(drafts) == ["message.added", "approval.requested", "run.waiting"]


def test_reply_and_result_wait_share_commit() -> None:
    drafts = commit_reply(given(make_run_started(execute_tools=False), user_said()), calling_message(tool_call("c1")))
    assert list_types(drafts) == ["message.added", "run.waiting"]


def test_approval_and_tool_start_share_commit() -> None:
    state = make_waiting("c1")
    drafts = settle(state, resume_run(state, RUN, approvals=[Approval(tool_call_id="c1", decision="approve")]))
    assert list_types(drafts) == ["approval.decided", "run.resumed", "tool.started"]


def make_waiting(*call_ids: str) -> State:
    state = given(make_run_started(), user_said())
    calls = calling_message(*(tool_call(call_id, "danger") for call_id in call_ids), tool_call("last"))
    return record_drafts(state, commit_reply(state, calls, needs_approval={"danger"}))


@pytest.mark.parametrize("count", [1, 2, 300])
def test_denials_and_follow_ups_share_commit(count: int) -> None:
    call_ids = [f"c{number}" for number in range(count)]
    state = make_waiting(*call_ids)
    denials = [Approval(tool_call_id=call_id, decision="deny", reason="too risky") for call_id in call_ids]
    drafts = settle(state, resume_run(state, RUN, approvals=denials))
    expected = ["approval.decided"] * count + ["run.resumed"] + ["message.added"] * count + ["tool.started"]
    assert list_types(drafts) == expected
    first = drafts[count + 1].fact
    assert isinstance(first, MessageAdded)
    assert first.tool is not None
    assert first.tool.status == "denied"
    assert first.message["content"] == "Denied: danger was not approved and did not run. Reason: too risky"


def test_denied_last_call_makes_earlier_handoff() -> None:
    state = given(make_run_started(), user_said())
    state = record_drafts(
        state,
        commit_reply(state, calling_message(tool_call("c1"), tool_call("c2", "danger")), needs_approval={"danger"}),
    )
    state = record_drafts(
        state, commit_result(state, "c1", ToolOutcome(status="ok", content="done", handoff="refunds"))
    )
    drafts = settle(state, resume_run(state, RUN, approvals=[Approval(tool_call_id="c2", decision="deny")]))
    assert list_types(drafts) == ["approval.decided", "run.resumed", "message.added", "handoff.made"]
    assert list_contents(record_drafts(state, drafts))[-1] == "Denied: danger was not approved and did not run."


def test_partial_answer_is_committed_alone() -> None:
    state = given(make_run_started(execute_tools=False), user_said())
    state = record_drafts(state, commit_reply(state, calling_message(tool_call("c1"), tool_call("c2"))))
    drafts = settle(state, resume_run(state, RUN, [ToolAnswer(tool_call_id="c1", content="42")]))
    assert list_types(drafts) == ["message.added"]


def test_run_end_and_next_start_share_commit() -> None:
    queued = RunQueued(options=RunOptions(), messages=({"role": "user", "content": "next"},))
    state = given(make_run_started(), user_said(), in_run(OTHER, queued))
    drafts = commit_reply(state, answer_message())
    assert list_types(drafts) == ["message.added", "run.completed", "run.started", "message.added"]
    assert active_run(record_drafts(state, drafts)).id == OTHER


def test_started_tool_is_not_started_again() -> None:
    state = given(make_run_started(), user_said())
    state = record_drafts(state, commit_reply(state, calling_message(tool_call("c1"))))
    assert settle(state, []) == []


def test_pending_outside_answers_have_no_follow_up() -> None:
    for state in (given(), given(make_run_started(), user_said()), make_waiting("c1")):
        assert settle(state, []) == []


def test_unsettled_history_is_settled_alone() -> None:
    assert list_types(settle(given(make_run_started(), user_said(), model_reply(answer_message())), [])) == [
        "run.completed"
    ]
    assert list_types(
        settle(given(make_run_started(), user_said(), model_reply(calling_message(tool_call("c1")))), [])
    ) == ["tool.started"]
    state = when(
        given(make_run_started(max_turns=1), user_said(), model_reply(calling_message(tool_call("c1")))),
        tool_result("c1"),
    )
    assert list_types(settle(state, [])) == ["run.completed"]
