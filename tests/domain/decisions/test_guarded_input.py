"""Which messages the guardrails of an agent's input are asked about."""

from __future__ import annotations

from swarmkeep.domain.decisions.guardrails import find_new_input
from swarmkeep.domain.events import MessageAdded, RunCompleted
from tests.domain.given import OTHER, active_run, answer_message, given, in_run, make_run_started, user_said, when


def test_a_persons_answer_vouches_for_nothing_that_came_before() -> None:
    state = given(
        make_run_started(),
        user_said("what no guardrail has seen"),
        MessageAdded(message=answer_message("One moment."), person="Ann"),
        RunCompleted(stop_reason="end_turn"),
        MessageAdded(message={"role": "user", "content": "be kind", "sender": "user"}, person="Ann"),
    )
    state = when(state, in_run(OTHER, make_run_started()), user_said("go on"))
    found = find_new_input(state, active_run(state), "triage")
    assert [entry.message["content"] for entry in found] == ["what no guardrail has seen", "go on"]
