"""Runs that go round in circles."""

from __future__ import annotations

import pytest

from swarmkeep.domain.events import HandoffMade, RunCancelled
from swarmkeep.domain.state import State
from swarmkeep.domain.steps import AskModel, Finish, next_step
from tests.domain.given import asks, by, call, given, reply, result, said, says, started, when


def turned(state: State, *calls: tuple[str, str]) -> State:
    """The state after a turn with these calls: names and arguments."""
    first = state.seq
    asked = [call(f"c{first}_{index}", name, arguments) for index, (name, arguments) in enumerate(calls)]
    return when(state, reply(asks(*asked)), *(result(made["id"]) for made in asked))


def after(*turns: tuple[str, str], limit: int | None = 6) -> State:
    state = given(started(loop_turns=limit), said())
    for turn in turns:
        state = turned(state, turn)
    return state


@pytest.mark.parametrize("turns", range(1, 7))
def test_the_same_call_again_and_again_is_a_loop(turns: int) -> None:
    state = after(*[("look", '{"a":1}')] * turns)
    assert next_step(state) == (Finish("loop_detected") if turns == 6 else AskModel())


def test_what_was_done_before_the_circle_does_not_hide_it() -> None:
    assert next_step(after(("buy", "{}"), *[("look", "{}")] * 6)) == Finish("loop_detected")


def test_handoffs_going_round_are_a_loop() -> None:
    state = given(started(loop_turns=6), said())
    for to, back in [("B", "triage"), ("triage", "B")] * 3:
        assert next_step(state) == AskModel()
        state = when(turned(state, (f"to_{to}", "{}")), HandoffMade(from_agent=back, to_agent=to))
    assert next_step(state) == Finish("loop_detected")


def test_other_arguments_are_progress() -> None:
    assert next_step(after(*((("look", f'{{"page":{page}}}')) for page in range(20)))) == AskModel()


def test_a_circle_has_to_be_gone_round_three_times() -> None:
    circle = [("a", "{}"), ("b", "{}"), ("c", "{}"), ("d", "{}")]
    assert next_step(after(*circle, *circle, *circle[:2], limit=10)) == AskModel()
    assert next_step(after(*circle[:3] * 4, limit=10)) == Finish("loop_detected")


def test_several_calls_of_one_turn_are_no_loop() -> None:
    state = turned(given(started(loop_turns=3), said()), *[("look", "{}")] * 10)
    assert next_step(state) == AskModel()


def test_the_run_before_does_not_count() -> None:
    state = after(*[("look", "{}")] * 5)
    state = when(state, RunCancelled(stop_reason="cancelled"), by("again", started(loop_turns=6)), said())
    assert next_step(turned(state, ("look", "{}"))) == AskModel()


def test_an_answer_after_many_equal_calls_is_an_answer() -> None:
    assert next_step(when(after(*[("look", "{}")] * 5), reply(says()))) == Finish("end_turn")


def test_without_limit_a_run_may_go_round() -> None:
    assert next_step(after(*[("look", "{}")] * 50, limit=None)) == AskModel()
