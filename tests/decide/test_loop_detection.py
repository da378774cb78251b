"""Runs that go round in circles."""

from __future__ import annotations

import pytest

from swarmkeep.decide.steps import AskModel, Finish, next_step
from swarmkeep.events.facts import HandoffMade, RunCancelled
from swarmkeep.events.state import State
from tests.events.given import (
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
