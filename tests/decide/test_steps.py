"""The next step, given what happened."""

from __future__ import annotations

import pytest

from swarmkeep.decide.steps import AskModel, CallTool, Deny, Finish, StartQueued, Wait, next_step
from swarmkeep.events.facts import (
    ApprovalDecided,
    ApprovalRequested,
    Decision,
    RunCompleted,
    RunQueued,
    RunResumed,
    RunWaiting,
    ToolStarted,
)
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import State
from tests.events.given import (
    OTHER,
    active_run,
    answer_message,
    calling_message,
    given,
    in_run,
    make_run_started,
    model_reply,
    tool_call,
    tool_result,
    user_said,
    when,
)


def approval_requested(call_id: str) -> ApprovalRequested:
    return ApprovalRequested(tool_call_id=call_id, name="danger", arguments="{}", expires_at="2026-01-02")


def approval_decided(call_id: str, decision: Decision) -> ApprovalDecided:
    return ApprovalDecided(tool_call_id=call_id, decision=decision)


def tool_begun(call_id: str, attempt: int = 1) -> ToolStarted:
    return ToolStarted(tool_call_id=call_id, name="look_up", arguments="{}", attempt=attempt)


def test_an_idle_session_does_nothing() -> None:
    assert next_step(State()) is None
    assert next_step(given(user_said())) is None
    assert (
        next_step(
            given(make_run_started(), user_said(), model_reply(answer_message()), RunCompleted(stop_reason="end_turn"))
        )
        is None
    )


def test_a_run_asks_the_model_first() -> None:
    assert next_step(given(make_run_started(), user_said())) == AskModel()


def test_a_plain_answer_ends_the_run() -> None:
    assert next_step(given(make_run_started(), user_said(), model_reply(answer_message()))) == Finish("end_turn")


def test_calls_wait_for_the_previous_result() -> None:
    state = given(make_run_started(), user_said(), model_reply(calling_message(tool_call("c1"), tool_call("c2"))))
    assert next_step(state) == CallTool(active_run(state).calls[0])
    state = when(state, tool_begun("c1"), tool_result("c1"))
    assert next_step(state) == CallTool(active_run(state).calls[1])
    assert next_step(when(state, tool_begun("c2"), tool_result("c2"))) == AskModel()


def test_restarted_call_reports_its_attempts() -> None:
    state = given(
        make_run_started(),
        user_said(),
        model_reply(calling_message(tool_call("c1"))),
        tool_begun("c1"),
        tool_begun("c1", 2),
    )
    step = next_step(state)
    assert isinstance(step, CallTool)
    assert step.call.attempts == 2


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_max_turns_counts_model_calls(turns: int) -> None:
    state = given(make_run_started(max_turns=3), user_said())
    for turn in range(turns):
        assert next_step(state) == AskModel()
        state = when(state, model_reply(calling_message(tool_call(f"c{turn}"))))
        assert isinstance(next_step(state), CallTool)
        state = when(state, tool_result(f"c{turn}"))
    assert next_step(state) == (Finish("max_turns") if turns == 3 else AskModel())


def test_zero_turn_run_asks_no_model() -> None:
    assert next_step(given(make_run_started(max_turns=0), user_said())) == Finish("max_turns")


def test_last_turn_answer_counts() -> None:
    assert next_step(given(make_run_started(max_turns=1), user_said(), model_reply(answer_message()))) == Finish(
        "end_turn"
    )


def test_last_turn_tools_still_run() -> None:
    assert isinstance(
        next_step(given(make_run_started(max_turns=1), user_said(), model_reply(calling_message(tool_call("c1"))))),
        CallTool,
    )


def test_without_limit_a_run_goes_on() -> None:
    state = given(make_run_started(), user_said())
    for turn in range(50):
        state = when(state, model_reply(calling_message(tool_call(f"c{turn}"))), tool_result(f"c{turn}"))
    assert next_step(state) == AskModel()


def test_guarded_call_waits_for_approval() -> None:
    state = given(
        make_run_started(),
        user_said(),
        model_reply(calling_message(tool_call("c1", "danger"))),
        approval_requested("c1"),
    )
    step = next_step(state)
    assert isinstance(step, Wait)
    assert step.stop_reason == "approval"
    waited = step.pending[0]
    assert (waited.tool_call_id, waited.reason, waited.expires_at) == ("c1", "approval", "2026-01-02")


def test_calls_before_a_guarded_one_run() -> None:
    state = given(
        make_run_started(),
        user_said(),
        model_reply(calling_message(tool_call("c1"), tool_call("c2", "danger"), tool_call("c3"))),
        approval_requested("c2"),
    )
    assert next_step(state) == CallTool(active_run(state).calls[0])
    assert isinstance(next_step(when(state, tool_result("c1"))), Wait)


def test_undecided_calls_are_asked_together() -> None:
    calls = calling_message(tool_call("c1", "danger"), tool_call("c2"), tool_call("c3", "danger"))
    step = next_step(
        given(make_run_started(), user_said(), model_reply(calls), approval_requested("c1"), approval_requested("c3"))
    )
    assert isinstance(step, Wait)
    assert [waited.tool_call_id for waited in step.pending] == ["c1", "c3"]


def test_approved_calls_run_and_denied_are_answered() -> None:
    before = given(
        make_run_started(),
        user_said(),
        model_reply(calling_message(tool_call("c1", "danger"))),
        approval_requested("c1"),
    )
    assert isinstance(next_step(when(before, approval_decided("c1", "approve"))), CallTool)
    assert isinstance(next_step(when(before, approval_decided("c1", "deny"))), Deny)


def test_unexecuted_open_calls_are_awaited() -> None:
    state = given(
        make_run_started(execute_tools=False),
        user_said(),
        model_reply(calling_message(tool_call("c1"), tool_call("c2"))),
        tool_result("c1"),
    )
    step = next_step(state)
    assert isinstance(step, Wait)
    assert step.stop_reason == "tool_calls"
    assert [(waited.tool_call_id, waited.reason) for waited in step.pending] == [("c2", "tool_results")]


def test_waiting_run_idles_until_resumed() -> None:
    state = given(
        make_run_started(execute_tools=False),
        user_said(),
        model_reply(calling_message(tool_call("c1"))),
        RunWaiting(pending=()),
    )
    assert next_step(state) is None
    assert next_step(when(state, tool_result("c1"))) is None
    assert next_step(when(state, tool_result("c1"), RunResumed(reason="tool_results"))) == AskModel()


def test_queued_run_starts_in_idle_session() -> None:
    queued = RunQueued(options=RunOptions(), messages=())
    state = given(make_run_started(), user_said(), in_run(OTHER, queued), in_run("later", queued))
    assert next_step(state) == AskModel()
    state = when(state, RunCompleted(stop_reason="end_turn"))
    assert next_step(state) == StartQueued(state.queue[0])
    assert state.queue[0].run_id == OTHER
