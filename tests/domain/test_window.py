"""What of a long history a model is sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as for_any
from hypothesis import settings
from hypothesis import strategies as st
from msgspec import UNSET

from swarmkeep.domain.envelope import Recorded
from swarmkeep.domain.events import CompletionRecord, MessageAdded, RunCompleted
from swarmkeep.domain.fold import fold
from swarmkeep.domain.request import Profile, build, request
from swarmkeep.domain.state import State
from swarmkeep.domain.window import count_turns, start_of
from tests.domain.given import asks, by, call, given, reply, result, said, says, started, when
from tests.support.logs import any_logs
from tests.support.rules import body_faults, faults

Json = dict[str, Any]
PROFILE = Profile(name="triage", model="m", instructions="You help.")


def sent(state: State, turns: int | None = None) -> list[object]:
    asked = request(state, PROFILE, turns=turns)
    assert faults(asked.messages) == []
    return [message.get("content") or message["tool_calls"][0]["id"] for message in asked.messages[1:]]


def talked(runs: int, **options: Any) -> State:
    """A session of so many questions and answers, and one more question."""
    state = given(said("begin"))
    for run in range(runs):
        state = when(state, by(f"r{run}", started(**options)))
        state = when(state, said(f"ask {run}"), reply(says(f"answer {run}")), RunCompleted(stop_reason="end_turn"))
    state = when(state, by("last", started(**options)))
    return when(state, said("and now?"))


def test_without_a_limit_all_of_it_is_sent() -> None:
    assert len(sent(talked(30))) == 62


def test_the_last_turns_are_sent_whole() -> None:
    assert sent(talked(5), turns=2) == ["ask 4", "answer 4", "and now?"]
    assert sent(talked(5), turns=1) == ["and now?"]
    assert sent(talked(1), turns=9) == ["begin", "ask 0", "answer 0", "and now?"]


def test_a_runs_own_limit_holds() -> None:
    assert sent(talked(5, history_turns=3)) == ["ask 3", "answer 3", "ask 4", "answer 4", "and now?"]


def test_messages_of_one_input_stay_together() -> None:
    state = when(talked(2), said("I mean, tomorrow."))
    assert sent(state, turns=1) == ["and now?", "I mean, tomorrow."]


def test_in_the_middle_of_a_run_its_question_goes_with_the_last_turns() -> None:
    state = talked(3)
    for turn in range(3):
        state = when(state, reply(asks(call(f"c{turn}"))), result(f"c{turn}", f"done {turn}"))
    assert sent(state, turns=2) == ["and now?", "c1", "done 1", "c2", "done 2"]


def test_a_call_is_never_sent_without_its_result() -> None:
    state = when(talked(1), reply(asks(call("c1"), call("c2"))), result("c1"), result("c2", "two"))
    assert sent(state, turns=1) == ["and now?", "c1", "done", "two"]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_what_stands_for_the_whole_conversation_is_always_sent(role: str) -> None:
    state = given(MessageAdded(message={"role": role, "content": "Be kind.", "sender": role}), said("old"))
    state = when(state, reply(says("older")), by("r", started()), said("new"))
    assert sent(state, turns=1) == ["Be kind.", "new"]


def answered_from(seq: int, model: str) -> MessageAdded:
    cut = request(talked(0), Profile(name="triage", model=model, instructions="x")).record
    record = CompletionRecord(request=type(cut)(instructions="h", params={"model": model}, history_from=seq))
    return MessageAdded(message=says("short"), completion=record)


def test_what_was_too_long_once_is_not_tried_again() -> None:
    state = talked(4)
    cut = state.messages[5].seq
    state = when(state, answered_from(cut, "m"), RunCompleted(stop_reason="end_turn"), by("next", started()), said("x"))
    assert sent(state) == ["ask 2", "answer 2", "ask 3", "answer 3", "and now?", "short", "x"]


def test_another_model_may_be_sent_all_of_it() -> None:
    state = when(talked(4), answered_from(9, "small"), RunCompleted(stop_reason="end_turn"), by("n", started()), said())
    assert len(sent(state)) == 12


def test_the_record_says_where_the_history_began() -> None:
    state = talked(5)
    assert request(state, PROFILE).record.history_from is UNSET
    asked = request(state, PROFILE, turns=2)
    assert asked.record.history_from == asked.entries[0].seq
    rebuilt = build(state.messages, PROFILE.instructions, PROFILE.tools, asked.params, asked.history_from)
    assert rebuilt.body() == asked.body()


@for_any(events=any_logs(), turns=st.integers(1, 4))
@settings(max_examples=60)
def test_any_part_of_any_history_is_a_request_that_models_accept(events: list[Recorded], turns: int) -> None:
    for upto in range(1, len(events) + 1):
        state = fold(events[:upto])
        asked = request(state, PROFILE, turns=turns)
        assert faults(asked.messages) == []
        assert body_faults(asked.body()) == []
        assert len(asked.entries) <= len(request(state, PROFILE).entries)


@for_any(events=any_logs())
@settings(max_examples=60)
def test_turns_are_counted_as_they_are_cut(events: list[Recorded]) -> None:
    messages = fold(events).messages
    turns = count_turns(messages)
    assert start_of(messages, turns) is None
    for fewer in range(1, turns):
        start = start_of(messages, fewer)
        assert start is not None
        assert count_turns([entry for entry in messages if entry.seq >= start]) == fewer
