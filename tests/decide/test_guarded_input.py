"""Which messages the guardrails of an agent's input are asked about."""

from __future__ import annotations

from hypothesis import given as given_any
from hypothesis import settings
from msgspec.structs import replace

from swarmkeep.decide.turns import Trip, find_new_input, refuse_input
from swarmkeep.events.chain import Chain
from swarmkeep.events.facts import MessageAdded, MessageRemoved, RecordedEvent, RunCompleted
from swarmkeep.events.fold import fold
from swarmkeep.events.state import State
from tests.events.given import (
    OTHER,
    RUN,
    active_run,
    answer_message,
    given,
    in_run,
    make_run_started,
    model_reply,
    user_said,
    when,
)
from tests.support.calls import count_calls
from tests.support.hypothesis_profiles import examples
from tests.support.logs import any_logs


def test_human_answer_vouches_for_nothing_earlier() -> None:
    state = given(
        make_run_started(),
        user_said("what no guardrail has seen"),
        MessageAdded(message=answer_message("One moment."), person="Ann"),
        RunCompleted(stop_reason="end_turn"),
        MessageAdded(message={"role": "user", "content": "be kind", "sender": "user"}, person="Ann"),
    )
    state = when(state, in_run(OTHER, make_run_started()), user_said("go on"))
    found = find_new_input(state, active_run(state), "triage")
    assert [entry.message["content"] for entry in found.entries] == ["what no guardrail has seen", "go on"]


def test_human_and_caller_input_is_checked() -> None:
    def said(role: str, content: str) -> MessageAdded:
        return MessageAdded(message={"role": role, "content": content, "sender": role})

    state = given(user_said("answered"), said("assistant", "an answer"), said("system", "rules"), user_said("gone"))
    state = when(state, MessageRemoved(message_seq=state.seq, seqs=(state.seq,)), said("tool", "a result"))
    state = when(state, user_said("before"), make_run_started(), said("developer", "more rules"), user_said("gone"))
    state = when(state, MessageRemoved(message_seq=state.seq, seqs=(state.seq,)), said("tool", "a result"))
    state = when(state, in_run(RUN, said("assistant", "put in its mouth")), in_run(RUN, user_said("asked")))
    found = find_new_input(state, active_run(state), "triage")
    assert [entry.message["content"] for entry in found.entries] == [
        "rules", "a result", "before", "more rules", "a result", "put in its mouth", "asked",
    ]  # fmt: skip
    assert [entry.message["content"] for entry in found.history] == ["answered", "an answer"]
    state = when(state, model_reply(answer_message()), user_said("more"))
    assert [entry.message["content"] for entry in find_new_input(state, active_run(state), "triage").entries] == [
        "more"
    ]
    # Another agent has seen none of it.
    assert len(find_new_input(state, active_run(state), "refunds").entries) == 8


def test_refused_input_sequence_checked_once() -> None:
    state, counts = given(), []
    for number in range(40):
        run_id = f"run-{number}"
        state = when(state, in_run(run_id, make_run_started()), in_run(run_id, user_said("give me everything")))
        with count_calls() as counted:
            entries = find_new_input(state, active_run(state), "triage").entries
        counts.append(sum(count for code, count in counted.items() if code.co_name == "is_unsent"))
        assert [entry.message["content"] for entry in entries] == ["give me everything"]
        facts = refuse_input("triage", Trip(name="polite", message="No."), entries)
        ended = RunCompleted(stop_reason="guardrail")
        state = when(state, *(in_run(run_id, fact) for fact in (*facts, ended)))
    assert counts[2:] == counts[2:3] * 38


@given_any(any_logs())
@settings(max_examples=examples(200))
def test_new_input_independent_of_kept_history(log: list[RecordedEvent]) -> None:
    state = State()
    for event in log:
        state = fold([event], state)
        if state.run is not None:
            anew = replace(state, messages=Chain(state.messages))
            for agent in ("triage", state.agent):
                assert find_new_input(state, state.run, agent) == find_new_input(anew, state.run, agent)
