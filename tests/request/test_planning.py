"""The part of a long history that a model is sent, and the pieces that a compaction covers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as for_any
from hypothesis import settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.decide.people import remove_message
from swarmkeep.decide.steps import AskModel, Compact, next_step
from swarmkeep.events.chain import Chain
from swarmkeep.events.errors import DomainError
from swarmkeep.events.facts import (
    CompactionFailed,
    CompactionStarted,
    CompactionSummarised,
    MessageAdded,
    RecordedEvent,
)
from swarmkeep.events.fold import fold
from swarmkeep.events.messages import SHORTENED_HEADING as HEADING
from swarmkeep.events.messages import shorten_text
from swarmkeep.events.records import CompletionRecord
from swarmkeep.events.state import State
from swarmkeep.request.compaction import halve_piece, next_piece, plan_compaction
from swarmkeep.request.request import Profile, assemble_request, build_request, count_turns, find_window_start
from tests.events.given import (
    COMPLETED,
    answer_message,
    given,
    in_run,
    make_run_started,
    model_answer,
    model_calls,
    tool_result,
    user_said,
    when,
)
from tests.support.calls import count_calls
from tests.support.hypothesis_profiles import examples
from tests.support.logs import any_logs
from tests.support.rules import find_body_faults, find_faults

PROFILE = Profile(name="triage", model="m", instructions="You help.")
PLAN = CompactionStarted(reason="asked", keep_turns=1, result_characters=100)


def make_talk(runs: int, words: str = "") -> State:
    state = given()
    for number in range(runs):
        state = when(
            state,
            in_run(f"r{number}", make_run_started()),
            user_said(f"ask {number}{words}"),
            model_calls(f"c{number}"),
            tool_result(f"c{number}", f"result {number}" + "x" * 200),
            model_answer(f"answer {number}"),
            COMPLETED,
        )
    return when(state, in_run("last", make_run_started()), user_said("and now?"))


def sum_up(state: State, plan: CompactionStarted = PLAN, characters: int = 2_000) -> State:
    """The state once the compaction has been made, each piece as its last seq."""
    started = plan_compaction(state, plan)
    if started is not None:
        state = when(state, started)
    while state.compaction is not None:
        piece = next_piece(state, characters)
        state = when(
            state,
            CompactionSummarised(
                first_seq=piece.first_seq,
                last_seq=piece.last_seq,
                summary=f"up to {piece.last_seq}",
                characters=characters,
            ),
        )
    return state


def list_sent(state: State) -> list[str]:
    messages = build_request(state, PROFILE).messages[1:]
    return [message.get("content") or message["tool_calls"][0]["id"] for message in messages]


def test_summary_replaces_all_but_last_turns() -> None:
    state = sum_up(make_talk(3), replace(PLAN, keep_turns=2))
    last = state.summary
    assert last is not None
    assert list_sent(state) == [f"{HEADING}\n\nup to {last.last_seq}", "ask 2", "answer 2", "and now?"]
    assert len(state.messages) == 13


def test_ongoing_compaction_continues_next_step() -> None:
    state = make_talk(3)
    started = plan_compaction(state, PLAN)
    assert started is not None
    state = when(state, started)
    assert isinstance(next_step(state), Compact)
    assert isinstance(next_step(when(state, CompactionFailed(code="x", message="y"))), AskModel)
    assert isinstance(next_step(sum_up(make_talk(3))), AskModel)


def test_summarised_messages_are_not_resummarised() -> None:
    state = sum_up(make_talk(3))
    assert plan_compaction(state, PLAN) is None


@pytest.mark.parametrize("reason", ["asked", "tokens", "too_long"])
def test_long_results_shortened_last_turn_last(reason: str) -> None:
    state = when(make_talk(1), model_calls("d"), tool_result("d", "y" * 200))
    plan = replace(PLAN, reason=reason, keep_turns=2)
    started = plan_compaction(state, plan)
    assert started is not None
    results = [entry.seq for entry in state.messages if entry.role == "tool"]
    assert list(started.shortened) == (results if reason == "too_long" else results[:1])
    shortened = when(state, started)
    sent = [message["content"] for message in build_request(shortened, PROFILE).messages if message["role"] == "tool"]
    assert "characters left out" in sent[0]
    assert len(sent[0]) < 150


def test_piece_bounded_for_any_message() -> None:
    state = make_talk(4, "z" * 50_000)
    started = plan_compaction(state, PLAN)
    assert started is not None
    state = when(state, started)
    piece = next_piece(state, 2_000)
    assert len(piece.text) < 2_100
    assert "characters left out" in piece.text


def test_pieces_halve_until_an_end() -> None:
    sizes = [100_000]
    while (size := halve_piece(sizes[-1])) is not None:
        sizes.append(size)
    assert sizes[-1] == 2_000
    assert sizes == sorted(set(sizes), reverse=True)


@for_any(st.text(), st.integers(1, 50))
def test_shortened_text_keeps_both_ends(text: str, most: int) -> None:
    short = shorten_text(text, most)
    if len(text) <= most:
        assert short == text
    else:
        head = most * 2 // 3
        assert short.startswith(text[:head])
        assert short.endswith(text[len(text) - (most - head) :])
        assert f"{len(text) - most} characters" in short


@settings(max_examples=examples(60))
@for_any(any_logs(), st.data())
def test_compacted_messages_valid_and_match_memory(log: list[RecordedEvent], data: st.DataObject) -> None:
    state = fold(log[: data.draw(st.integers(1, len(log)))])
    state = replace(state, compaction=None)
    for _ in range(data.draw(st.integers(1, 3))):
        build_request(state, PROFILE)
        plan = replace(PLAN, keep_turns=data.draw(st.integers(1, 3)), result_characters=data.draw(st.integers(1, 20)))
        state = sum_up(state, plan, data.draw(st.sampled_from((50, 2_000))))
        check_request(state)
        if state.messages and data.draw(st.booleans()):
            entry = state.messages[data.draw(st.integers(0, len(state.messages) - 1))]
            try:
                taken_out = remove_message(state, entry.seq)
            except DomainError:
                continue
            state = when(state, *taken_out)
            check_request(state)
            summary = state.summary
            assert not taken_out or summary is None or not summary.first_seq <= entry.seq <= summary.last_seq


def check_request(state: State) -> None:
    for turns in (None, 1):
        request = build_request(state, PROFILE, turns=turns)
        assert find_body_faults(request.body()) == []
        fresh = replace(state, messages=Chain(state.messages))
        assert request.body() == build_request(fresh, PROFILE, turns=turns).body()


# The part of a long history that a model is sent.


def build_messages(state: State, turns: int | None = None) -> list[object]:
    asked = build_request(state, PROFILE, turns=turns)
    assert find_faults(asked.messages) == []
    return [message.get("content") or message["tool_calls"][0]["id"] for message in asked.messages[1:]]


def make_session(runs: int, **options: Any) -> State:
    """A session of so many questions and answers, and one more question."""
    state = given(user_said("begin"))
    for run in range(runs):
        state = when(state, in_run(f"r{run}", make_run_started(**options)))
        state = when(state, user_said(f"ask {run}"), model_answer(f"answer {run}"), COMPLETED)
    state = when(state, in_run("last", make_run_started(**options)))
    return when(state, user_said("and now?"))


def test_unlimited_window_sends_everything() -> None:
    assert len(build_messages(make_session(30))) == 62


def test_the_last_turns_are_sent_whole() -> None:
    assert build_messages(make_session(5), turns=2) == ["ask 4", "answer 4", "and now?"]
    assert build_messages(make_session(5), turns=1) == ["and now?"]
    assert build_messages(make_session(1), turns=9) == ["begin", "ask 0", "answer 0", "and now?"]


@pytest.mark.parametrize("turns", [None, 3])
def test_request_cost_ignores_session_length(turns: int | None) -> None:
    costs = []
    for runs in (20, 200):
        state = make_session(runs)
        asked = CompletionRecord(request=build_request(state, PROFILE, turns=turns).record)
        reply = MessageAdded(message=answer_message("yes"), completion=asked)
        state = when(state, reply, COMPLETED)
        state = when(state, in_run("next", make_run_started()), in_run("next", user_said("and then?")))
        with count_calls() as counted:
            build_request(state, PROFILE, turns=turns)
        costs.append(counted.total())
    # To find a place in 400 messages takes a few looks more than in 40.
    assert costs[1] < costs[0] + 20


def test_a_runs_own_limit_holds() -> None:
    assert build_messages(make_session(5, history_turns=3)) == ["ask 3", "answer 3", "ask 4", "answer 4", "and now?"]


def test_messages_of_one_input_stay_together() -> None:
    state = when(make_session(2), user_said("I mean, tomorrow."))
    assert build_messages(state, turns=1) == ["and now?", "I mean, tomorrow."]


def test_mid_run_window_includes_its_question() -> None:
    state = make_session(3)
    for turn in range(3):
        state = when(state, model_calls(f"c{turn}"), tool_result(f"c{turn}", f"done {turn}"))
    assert build_messages(state, turns=2) == ["and now?", "c1", "done 1", "c2", "done 2"]


def test_calls_are_sent_with_their_results() -> None:
    state = when(make_session(1), model_calls("c1", "c2"), tool_result("c1"), tool_result("c2", "two"))
    assert build_messages(state, turns=1) == ["and now?", "c1", "done", "two"]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_conversation_wide_messages_are_always_sent(role: str) -> None:
    state = given(MessageAdded(message={"role": role, "content": "Be kind.", "sender": role}), user_said("old"))
    state = when(state, model_answer("older"), in_run("r", make_run_started()), user_said("new"))
    assert build_messages(state, turns=1) == ["Be kind.", "new"]


def answer_from(seq: int, model: str) -> MessageAdded:
    cut = build_request(make_session(0), Profile(name="triage", model=model, instructions="x")).record
    record = CompletionRecord(request=type(cut)(instructions="h", params={"model": model}, history_from=seq))
    return MessageAdded(message=answer_message("short"), completion=record)


def test_too_long_history_is_not_retried() -> None:
    state = make_session(4)
    cut = state.messages[5].seq
    state = when(state, answer_from(cut, "m"), COMPLETED, in_run("next", make_run_started()), user_said("x"))
    assert build_messages(state) == ["ask 2", "answer 2", "ask 3", "answer 3", "and now?", "short", "x"]


def test_other_models_may_receive_all() -> None:
    state = when(make_session(4), answer_from(9, "small"), COMPLETED, in_run("n", make_run_started()), user_said())
    assert len(build_messages(state)) == 12


def test_record_names_the_history_start() -> None:
    state = make_session(5)
    assert build_request(state, PROFILE).record.history_from is UNSET
    asked = build_request(state, PROFILE, turns=2)
    assert asked.record.history_from == asked.entries[0].seq
    rebuilt = assemble_request(state.messages, PROFILE.instructions, PROFILE.tools, asked.params, asked.history_from)
    assert rebuilt.body() == asked.body()


@for_any(events=any_logs(), turns=st.integers(1, 4))
@settings(max_examples=examples(60))
def test_any_history_slice_is_a_valid_request(events: list[RecordedEvent], turns: int) -> None:
    for upto in range(1, len(events) + 1):
        state = fold(events[:upto])
        asked = build_request(state, PROFILE, turns=turns)
        assert find_faults(asked.messages) == []
        assert find_body_faults(asked.body()) == []
        assert len(asked.entries) <= len(build_request(state, PROFILE).entries)


@for_any(events=any_logs())
@settings(max_examples=examples(60))
def test_turns_are_counted_as_cut(events: list[RecordedEvent]) -> None:
    messages = fold(events).messages
    turns = count_turns(messages)
    assert find_window_start(messages, turns) is None
    for fewer in range(1, turns):
        start = find_window_start(messages, fewer)
        assert start is not None
        assert count_turns([entry for entry in messages if entry.seq >= start]) == fewer
