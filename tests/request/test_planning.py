"""What a compaction covers, piece by piece, and what models are sent then."""

from __future__ import annotations

import pytest
from hypothesis import given as for_any
from hypothesis import settings
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmkeep.decide.people import remove_message
from swarmkeep.decide.steps import AskModel, Compact, next_step
from swarmkeep.events.chain import Chain
from swarmkeep.events.errors import DomainError
from swarmkeep.events.facts import CompactionFailed, CompactionSummarised, RecordedEvent, RunCompleted
from swarmkeep.events.fold import fold
from swarmkeep.events.messages import SHORTENED_HEADING as HEADING
from swarmkeep.events.messages import shorten_text
from swarmkeep.events.state import State
from swarmkeep.request.compaction import CompactionPlan, halve_piece, next_piece, plan_compaction
from swarmkeep.request.request import Profile, build_request
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
from tests.support.hypothesis_profiles import examples
from tests.support.logs import any_logs
from tests.support.rules import find_body_faults

PROFILE = Profile(name="triage", model="m", instructions="You help.")
PLAN = CompactionPlan(reason="asked", keep_turns=1, result_characters=100)


def make_talk(runs: int, words: str = "") -> State:
    state = given()
    for number in range(runs):
        state = when(
            state,
            in_run(f"r{number}", make_run_started()),
            user_said(f"ask {number}{words}"),
            model_reply(calling_message(tool_call(f"c{number}"))),
            tool_result(f"c{number}", f"result {number}" + "x" * 200),
            model_reply(answer_message(f"answer {number}")),
            RunCompleted(stop_reason="end_turn"),
        )
    return when(state, in_run("last", make_run_started()), user_said("and now?"))


def sum_up(state: State, plan: CompactionPlan = PLAN, characters: int = 2_000) -> State:
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
    state = when(make_talk(1), model_reply(calling_message(tool_call("d"))), tool_result("d", "y" * 200))
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
