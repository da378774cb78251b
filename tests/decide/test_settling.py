"""Facts that share one commit."""

from __future__ import annotations

from typing import Any

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
    COMPLETED,
    OTHER,
    RUN,
    active_run,
    answer_message,
    calling,
    commit_calls,
    commit_reply,
    commit_result,
    given,
    in_run,
    list_contents,
    list_types,
    make_run_started,
    model_answer,
    model_calls,
    record_drafts,
    run_queued,
    running,
    tool_result,
    user_said,
)
from tests.support.logs import any_logs


def test_input_is_committed_before_model_call() -> None:
    command = StartRun(run_id=RUN, messages=({"role": "user", "content": "hello"},))
    state = given()
    drafts = settle(state, start_run(state, command))
    assert list_types(drafts) == ["run.started", "message.added"]
    assert next_step(record_drafts(state, drafts)) == AskModel()


def test_trial_follow_ups_leave_session_chains_alone() -> None:
    state = running()
    tried = apply_drafts(state, draft_events(state.agent, [user_said("more")], RUN))
    chains = [name for name in State.__struct_fields__ if isinstance(getattr(state, name), Chain)]
    assert {"messages", "finished"} <= {*chains}
    for name in chains:
        getattr(tried, name).append("an item").append("another")
        assert len(getattr(state, name).shared) == len(getattr(state, name))


@pytest.mark.parametrize(
    ("options", "reply", "types"),
    [
        ({}, model_answer(), ["message.added", "run.completed"]),
        ({}, model_calls("c1", "c2"), ["message.added", "tool.started"]),
        ({}, model_calls(("c1", "danger"), "c2"), ["message.added", "approval.requested", "run.waiting"]),
        ({"execute_tools": False}, model_calls("c1"), ["message.added", "run.waiting"]),
    ],
)
def test_reply_shares_commit_with_what_follows(options: Any, reply: MessageAdded, types: list[str]) -> None:
    assert list_types(commit_reply(running(**options), reply.message)) == types


def test_start_names_call_and_arguments() -> None:
    begun = commit_calls(running(), ("c1", "look_up", '{"a": 1}'))[-1].fact
    assert begun == ToolStarted(tool_call_id="c1", name="look_up", arguments='{"a": 1}', attempt=1)


@pytest.mark.parametrize(
    ("calls", "options", "outcome", "types"),
    [
        (("c1", "c2"), {}, {"patch": {"k": 1}}, ["message.added", "context.updated", "tool.started"]),
        (("c1",), {}, {"handoff": "refunds"}, ["message.added", "handoff.made"]),
        (("c1",), {"max_turns": 1}, {"handoff": "refunds"}, ["message.added", "handoff.made", "run.completed"]),
    ],
)
def test_result_shares_commit_with_what_follows(calls: Any, options: Any, outcome: Any, types: list[str]) -> None:
    drafts = commit_result(calling(*calls, **options), "c1", ToolOutcome(status="ok", content="done", **outcome))
    assert list_types(drafts) == types
    end = drafts[-1]
    if isinstance(end.fact, RunCompleted):
        assert (end.fact.stop_reason, end.agent) == ("max_turns", "refunds")
    else:
        assert {draft.agent for draft in drafts} == {"triage"}


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
    state = given(make_run_started(), run_queued(OTHER))
    ends = draft_events(state.agent, [COMPLETED], RUN)
    assert list_types(settle(state, ends)) == ["run.completed", "run.started"]
    assert list_types(settle(state, ends, may_start_queued=lambda state: False)) == ["run.completed"]
    assert settle(record_drafts(state, ends), [], may_start_queued=lambda state: False) == []


def make_waiting(*call_ids: str) -> State:
    return calling(*((call_id, "danger") for call_id in call_ids), "last")


def test_approval_and_tool_start_share_commit() -> None:
    state = make_waiting("c1")
    drafts = settle(state, resume_run(state, RUN, approvals=[Approval(tool_call_id="c1", decision="approve")]))
    assert list_types(drafts) == ["approval.decided", "run.resumed", "tool.started"]


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
    assert first.tool.status == "denied"
    assert first.message["content"] == "Denied: danger was not approved and did not run. Reason: too risky"


def test_denied_last_call_makes_earlier_handoff() -> None:
    state = calling("c1", ("c2", "danger"))
    outcome = ToolOutcome(status="ok", content="done", handoff="refunds")
    state = record_drafts(state, commit_result(state, "c1", outcome))
    drafts = settle(state, resume_run(state, RUN, approvals=[Approval(tool_call_id="c2", decision="deny")]))
    assert list_types(drafts) == ["approval.decided", "run.resumed", "message.added", "handoff.made"]
    assert list_contents(record_drafts(state, drafts))[-1] == "Denied: danger was not approved and did not run."


def test_partial_answer_is_committed_alone() -> None:
    state = calling("c1", "c2", execute_tools=False)
    drafts = settle(state, resume_run(state, RUN, [ToolAnswer(tool_call_id="c1", content="42")]))
    assert list_types(drafts) == ["message.added"]


def test_run_end_and_next_start_share_commit() -> None:
    queued = RunQueued(options=RunOptions(), messages=({"role": "user", "content": "next"},))
    state = running(in_run(OTHER, queued))
    drafts = commit_reply(state, answer_message())
    assert list_types(drafts) == ["message.added", "run.completed", "run.started", "message.added"]
    assert active_run(record_drafts(state, drafts)).id == OTHER


def test_what_needs_outsiders_has_no_follow_up() -> None:
    for state in (given(), running(), make_waiting("c1"), calling("c1")):
        assert settle(state, []) == []


def test_unsettled_history_is_settled_alone() -> None:
    last = running(model_calls("c1"), tool_result("c1"), max_turns=1)
    for state, follows in (
        (running(model_answer()), "run.completed"),
        (running(model_calls("c1")), "tool.started"),
        (last, "run.completed"),
    ):
        assert list_types(settle(state, [])) == [follows]
