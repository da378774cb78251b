"""The next step, given what happened: also in runs that go round in circles, and where a call or a form is forced."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from swarmkeep.decide.steps import AskModel, CallTool, Deny, Finish, StartQueued, Wait, next_step
from swarmkeep.decide.turns import Verdict, record_verdict
from swarmkeep.events.facts import (
    ApprovalDecided,
    ApprovalRequested,
    Decision,
    HandoffMade,
    MessageAdded,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunQueued,
    RunResumed,
    RunWaiting,
    SessionEvent,
    ToolStarted,
)
from swarmkeep.events.records import RunOptions, Usage
from swarmkeep.events.state import State
from swarmkeep.request.request import find_tool_choice
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


# Runs that go round in circles.


def add_turn(state: State, *calls: tuple[str, str]) -> State:
    """The state after a turn with these calls: names and arguments."""
    first = state.seq
    asked = [tool_call(f"c{first}_{index}", name, arguments) for index, (name, arguments) in enumerate(calls)]
    return when(state, model_reply(calling_message(*asked)), *(tool_result(made["id"]) for made in asked))


def with_limit(*turns: tuple[str, str], limit: int | None = 6) -> State:
    state = given(make_run_started(loop_turns=limit), user_said())
    for turn in turns:
        state = add_turn(state, turn)
    return state


@pytest.mark.parametrize("turns", range(1, 7))
def test_repeated_call_is_a_loop(turns: int) -> None:
    state = with_limit(*[("look", '{"a":1}')] * turns)
    assert next_step(state) == (Finish("loop_detected") if turns == 6 else AskModel())


def test_earlier_work_does_not_hide_circle() -> None:
    assert next_step(with_limit(("buy", "{}"), *[("look", "{}")] * 6)) == Finish("loop_detected")


def test_handoffs_going_round_are_a_loop() -> None:
    state = given(make_run_started(loop_turns=6), user_said())
    for to, back in [("B", "triage"), ("triage", "B")] * 3:
        assert next_step(state) == AskModel()
        state = when(add_turn(state, (f"to_{to}", "{}")), HandoffMade(from_agent=back, to_agent=to))
    assert next_step(state) == Finish("loop_detected")


def test_other_arguments_are_progress() -> None:
    assert next_step(with_limit(*((("look", f'{{"page":{page}}}')) for page in range(20)))) == AskModel()


def test_circle_detected_after_three_rounds() -> None:
    circle = [("a", "{}"), ("b", "{}"), ("c", "{}"), ("d", "{}")]
    assert next_step(with_limit(*circle, *circle, *circle[:2], limit=10)) == AskModel()
    assert next_step(with_limit(*circle[:3] * 4, limit=10)) == Finish("loop_detected")


def test_calls_of_one_turn_are_no_loop() -> None:
    state = add_turn(given(make_run_started(loop_turns=3), user_said()), *[("look", "{}")] * 10)
    assert next_step(state) == AskModel()


def test_the_run_before_does_not_count() -> None:
    state = with_limit(*[("look", "{}")] * 5)
    state = when(
        state, RunCancelled(stop_reason="cancelled"), in_run("again", make_run_started(loop_turns=6)), user_said()
    )
    assert next_step(add_turn(state, ("look", "{}"))) == AskModel()


def test_answer_after_equal_calls_is_answer() -> None:
    assert next_step(when(with_limit(*[("look", "{}")] * 5), model_reply(answer_message()))) == Finish("end_turn")


def test_unlimited_run_may_circle() -> None:
    assert next_step(with_limit(*[("look", "{}")] * 50, limit=None)) == AskModel()


# A choice that forces a call forces one.

NAMED = {"type": "function", "function": {"name": "look_up"}}
SOME = [{"type": "function", "function": {"name": "look_up"}}]


def make_allowed(mode: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": SOME}}


def choose(state: State, own: Any = None, asked: Any = UNSET, *, by_call: bool = False) -> Any:
    return find_tool_choice(state, "triage", own, asked, answers_by_call=by_call)


BEGUN = given(make_run_started(), user_said())
CALLED = when(BEGUN, model_reply(calling_message(tool_call("c1"))), tool_result("c1"))


@pytest.mark.parametrize(
    ("choice", "relaxed"),
    [
        ("required", "auto"),
        ("none", "none"),
        ("auto", "auto"),
        (None, None),
        (NAMED, "auto"),
        (make_allowed("required"), make_allowed("auto")),
        ({"type": "allowed_tools"}, {"type": "allowed_tools"}),
    ],
)
def test_forced_call_freed_after_first_reply(choice: Any, relaxed: Any) -> None:
    assert choose(BEGUN, own=choice) == choose(BEGUN, asked=choice) == choice
    assert choose(CALLED, own=choice) == choose(CALLED, asked=choice) == relaxed


def test_answer_call_may_be_required_each_reply() -> None:
    assert choose(CALLED, own="required", by_call=True) == "required"
    assert choose(CALLED, own=NAMED, by_call=True) == "auto"


def test_only_own_replies_this_run_count() -> None:
    # What a caller puts into its mouth is no reply, nor is what another agent said.
    put = MessageAdded(message=answer_message())
    assert choose(when(BEGUN, put), own="required") == "required"
    other = model_reply({"role": "assistant", "content": "hi", "sender": "refunds"})
    assert choose(when(BEGUN, other), own="required") == "required"
    earlier = given(model_reply(answer_message()), make_run_started())
    assert choose(earlier, own="required") == "required"


# An answer that has to be of a certain form: what is recorded of it.

CALLS = given(make_run_started(), user_said(), model_reply(calling_message(tool_call("c1"), tool_call("c2"))))


def judge(state: State, *problems: str, retries: int = 1) -> list[SessionEvent]:
    run = active_run(state)
    verdict = Verdict(problems=problems, retries=retries, calls=run.calls)
    return record_verdict(run, verdict, "triage", Usage(1, 2, 3, 1))


def list_statuses(facts: list[SessionEvent]) -> list[tuple[str, object, object]]:
    tools = [fact.tool for fact in facts if isinstance(fact, MessageAdded)]
    return [(tool.name, tool.status, tool.output) for tool in tools if tool is not None]


def test_first_answer_call_counts() -> None:
    taken, beside = judge(CALLS)
    assert [status for _, status, _ in list_statuses([taken, beside])] == ["ok", "error"]
    assert active_run(when(CALLS, taken)).answered
    assert not active_run(when(CALLS, beside)).answered


def test_wrong_answer_call_errors_and_counts() -> None:
    facts = judge(CALLS, "it is empty")
    assert [status for _, status, _ in list_statuses(facts)] == ["error", "error"]
    run = active_run(when(CALLS, *facts))
    assert (run.corrections, run.answered, run.open_calls) == (1, False, ())


def test_wrong_text_returned_until_limit() -> None:
    state = given(make_run_started(), user_said(), model_reply(answer_message()))
    details = []
    for retries in (0, 1, 2):
        run = active_run(state)
        *_, last = judge(state, "no JSON", retries=retries)
        assert isinstance(last, RunFailed)
        assert last.error is not None
        assert last.usage == Usage(1, 2, 3, 1)
        details.append(last.error.message.partition(" not of")[0])
        (sent,) = judge(state, "no JSON", retries=retries + 1)
        state = when(state, sent)
        assert (state.messages[-1].role, state.messages[-1].is_correction) == ("user", True)
        assert active_run(state).corrections == run.corrections + 1
    assert details == ["the answer is", "2 answers in this run were", "3 answers in this run were"]
