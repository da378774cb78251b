"""The next step, given what happened: also in runs that go round in circles, and where a call or a form is forced."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from swarmkeep.decide.steps import AskModel, CallTool, Deny, Finish, StartQueued, Wait, next_step
from swarmkeep.decide.turns import Verdict, record_verdict
from swarmkeep.events import facts
from swarmkeep.events.records import Usage
from swarmkeep.events.state import State
from swarmkeep.request.request import find_tool_choice
from tests.events.given import (
    COMPLETED,
    OTHER,
    active_run,
    answer_message,
    calling_message,
    given,
    in_run,
    make_run_started,
    model_answer,
    model_calls,
    model_reply,
    run_queued,
    running,
    tool_call,
    tool_result,
    user_said,
    when,
)


def approval_requested(call_id: str) -> facts.ApprovalRequested:
    return facts.ApprovalRequested(tool_call_id=call_id, name="danger", arguments="{}", expires_at="2026-01-02")


def approval_decided(call_id: str, decision: facts.Decision) -> facts.ApprovalDecided:
    return facts.ApprovalDecided(tool_call_id=call_id, decision=decision)


def tool_begun(call_id: str, attempt: int = 1) -> facts.ToolStarted:
    return facts.ToolStarted(tool_call_id=call_id, name="look_up", arguments="{}", attempt=attempt)


GUARDED = running(model_calls(("c1", "danger")), approval_requested("c1"))
WAITING = running(model_calls("c1"), facts.RunWaiting(pending=()), execute_tools=False)
STEPS: dict[str, tuple[State, Any]] = {
    "no session": (State(), None),
    "an idle session": (given(user_said()), None),
    "a run that is over": (running(model_answer(), COMPLETED), None),
    "a run that was asked": (running(), AskModel()),
    "a plain answer": (running(model_answer()), Finish("end_turn")),
    "no turns at all": (running(max_turns=0), Finish("max_turns")),
    "an answer in the last turn": (running(model_answer(), max_turns=1), Finish("end_turn")),
    "calls in the last turn": (running(model_calls("c1"), max_turns=1), "c1"),
    "several calls": (running(model_calls("c1", "c2")), "c1"),
    "after the first of them": (running(model_calls("c1", "c2"), tool_begun("c1"), tool_result("c1")), "c2"),
    "after all of them": (running(model_calls("c1", "c2"), tool_result("c1"), tool_result("c2")), AskModel()),
    "a call before a guarded one": (running(model_calls("c1", ("c2", "danger")), approval_requested("c2")), "c1"),
    "an approved call": (when(GUARDED, approval_decided("c1", "approve")), "c1"),
    "a denied call": (when(GUARDED, approval_decided("c1", "deny")), Deny(active_run(GUARDED).calls[0])),
    "a run that waits": (WAITING, None),
    "and has its result": (when(WAITING, tool_result("c1")), None),
    "and is resumed": (when(WAITING, tool_result("c1"), facts.RunResumed(reason="tool_results")), AskModel()),
    "a queue behind a run": (running(run_queued(OTHER)), AskModel()),
}


@pytest.mark.parametrize("name", STEPS)
def test_next_step_follows_from_what_happened(name: str) -> None:
    state, expected = STEPS[name]
    step = next_step(state)
    if isinstance(expected, str):
        assert isinstance(step, CallTool)
        assert step.call.id == expected
    elif isinstance(expected, Deny):
        assert isinstance(step, Deny)
        assert step.call.id == expected.call.id
    else:
        assert step == expected


def test_restarted_call_reports_its_attempts() -> None:
    step = next_step(running(model_calls("c1"), tool_begun("c1"), tool_begun("c1", 2)))
    assert isinstance(step, CallTool)
    assert step.call.attempts == 2


@pytest.mark.parametrize(("limit", "turns"), [(3, 1), (3, 2), (3, 3), (None, 50)])
def test_max_turns_counts_model_calls(limit: int | None, turns: int) -> None:
    state = running(max_turns=limit)
    for turn in range(turns):
        assert next_step(state) == AskModel()
        state = when(state, model_calls(f"c{turn}"), tool_result(f"c{turn}"))
    assert next_step(state) == (Finish("max_turns") if turns == limit else AskModel())


@pytest.mark.parametrize(
    ("state", "stop_reason", "pending"),
    [
        (GUARDED, "approval", [("c1", "approval", "2026-01-02")]),
        (
            running(
                model_calls("c0", ("c1", "danger"), "c2", ("c3", "danger")),
                *(approval_requested("c1"), approval_requested("c3"), tool_result("c0")),
            ),
            "approval",
            [("c1", "approval", "2026-01-02"), ("c3", "approval", "2026-01-02")],
        ),
        (
            running(model_calls("c1", "c2"), tool_result("c1"), execute_tools=False),
            "tool_calls",
            [("c2", "tool_results", None)],
        ),
    ],
)
def test_open_calls_are_awaited_together(state: State, stop_reason: str, pending: list[Any]) -> None:
    step = next_step(state)
    assert isinstance(step, Wait)
    assert step.stop_reason == stop_reason
    assert [(waited.tool_call_id, waited.reason, waited.expires_at) for waited in step.pending] == pending


def test_queued_run_starts_in_idle_session() -> None:
    state = running(run_queued(OTHER), run_queued("later"), COMPLETED)
    assert next_step(state) == StartQueued(state.queue[0])
    assert state.queue[0].run_id == OTHER


# Runs that go round in circles.


def add_turn(state: State, *calls: tuple[str, str]) -> State:
    """The state after a turn with these calls: names and arguments."""
    first = state.seq
    asked = [tool_call(f"c{first}_{index}", name, arguments) for index, (name, arguments) in enumerate(calls)]
    return when(state, model_reply(calling_message(*asked)), *(tool_result(made["id"]) for made in asked))


def with_limit(*turns: tuple[str, str], limit: int | None = 6) -> State:
    state = running(loop_turns=limit)
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
    state = running(loop_turns=6)
    for to, back in [("B", "triage"), ("triage", "B")] * 3:
        assert next_step(state) == AskModel()
        state = when(add_turn(state, (f"to_{to}", "{}")), facts.HandoffMade(from_agent=back, to_agent=to))
    assert next_step(state) == Finish("loop_detected")


def test_other_arguments_are_progress() -> None:
    assert next_step(with_limit(*((("look", f'{{"page":{page}}}')) for page in range(20)))) == AskModel()


def test_circle_detected_after_three_rounds() -> None:
    circle = [("a", "{}"), ("b", "{}"), ("c", "{}"), ("d", "{}")]
    assert next_step(with_limit(*circle, *circle, *circle[:2], limit=10)) == AskModel()
    assert next_step(with_limit(*circle[:3] * 4, limit=10)) == Finish("loop_detected")


def test_calls_of_one_turn_are_no_loop() -> None:
    state = add_turn(running(loop_turns=3), *[("look", "{}")] * 10)
    assert next_step(state) == AskModel()


def test_the_run_before_does_not_count() -> None:
    state = with_limit(*[("look", "{}")] * 5)
    state = when(
        state, facts.RunCancelled(stop_reason="cancelled"), in_run("again", make_run_started(loop_turns=6)), user_said()
    )
    assert next_step(add_turn(state, ("look", "{}"))) == AskModel()


def test_answer_after_equal_calls_is_answer() -> None:
    assert next_step(when(with_limit(*[("look", "{}")] * 5), model_answer())) == Finish("end_turn")


def test_unlimited_run_may_circle() -> None:
    assert next_step(with_limit(*[("look", "{}")] * 50, limit=None)) == AskModel()


# A choice that forces a call forces one.

NAMED = {"type": "function", "function": {"name": "look_up"}}
SOME = [{"type": "function", "function": {"name": "look_up"}}]


def make_allowed(mode: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": SOME}}


def choose(state: State, own: Any = None, asked: Any = UNSET, *, by_call: bool = False) -> Any:
    return find_tool_choice(state, "triage", own, asked, answers_by_call=by_call)


BEGUN = running()
CALLED = when(BEGUN, model_calls("c1"), tool_result("c1"))


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
    put = facts.MessageAdded(message=answer_message())
    assert choose(when(BEGUN, put), own="required") == "required"
    other = model_reply({"role": "assistant", "content": "hi", "sender": "refunds"})
    assert choose(when(BEGUN, other), own="required") == "required"
    earlier = given(model_answer(), make_run_started())
    assert choose(earlier, own="required") == "required"


# An answer that has to be of a certain form: what is recorded of it.

CALLS = running(model_calls("c1", "c2"))


def judge(state: State, *problems: str, retries: int = 1) -> list[facts.SessionEvent]:
    run = active_run(state)
    verdict = Verdict(problems=problems, retries=retries, calls=run.calls)
    return record_verdict(run, verdict, "triage", Usage(1, 2, 3, 1))


def list_statuses(found: list[facts.SessionEvent]) -> list[tuple[str, object, object]]:
    tools = [fact.tool for fact in found if isinstance(fact, facts.MessageAdded)]
    return [(tool.name, tool.status, tool.output) for tool in tools if tool is not None]


def test_first_answer_call_counts() -> None:
    taken, beside = judge(CALLS)
    assert [status for _, status, _ in list_statuses([taken, beside])] == ["ok", "error"]
    assert active_run(when(CALLS, taken)).answered
    assert not active_run(when(CALLS, beside)).answered


def test_wrong_answer_call_errors_and_counts() -> None:
    found = judge(CALLS, "it is empty")
    assert [status for _, status, _ in list_statuses(found)] == ["error", "error"]
    run = active_run(when(CALLS, *found))
    assert (run.corrections, run.answered, run.open_calls) == (1, False, ())


def test_wrong_text_returned_until_limit() -> None:
    state = running(model_answer())
    details = []
    for retries in (0, 1, 2):
        run = active_run(state)
        *_, last = judge(state, "no JSON", retries=retries)
        assert isinstance(last, facts.RunFailed)
        assert last.error is not None
        assert last.usage == Usage(1, 2, 3, 1)
        details.append(last.error.message.partition(" not of")[0])
        (sent,) = judge(state, "no JSON", retries=retries + 1)
        state = when(state, sent)
        assert (state.messages[-1].role, state.messages[-1].is_correction) == ("user", True)
        assert active_run(state).corrections == run.corrections + 1
    assert details == ["the answer is", "2 answers in this run were", "3 answers in this run were"]
