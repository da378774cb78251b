"""A request is put together from pieces that are kept: the same as anew, at the cost of what was added."""

from __future__ import annotations

import pytest
from hypothesis import given as for_any
from hypothesis import settings
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmkeep.decide.people import remove_message
from swarmkeep.events.chain import Chain
from swarmkeep.events.facts import MessageAdded
from swarmkeep.events.records import CompletionRecord
from swarmkeep.events.state import State
from swarmkeep.request.request import assemble_request, build_request
from tests.events.given import (
    answer_message,
    calling_message,
    given,
    make_run_started,
    model_reply,
    record_drafts,
    tool_call,
    tool_result,
    user_said,
    when,
)
from tests.request.profile import PROFILE, TOOLS
from tests.support.calls import count_calls
from tests.support.hypothesis_profiles import examples

SOME_MESSAGES = st.sampled_from(
    [
        user_said("hello"),
        user_said("ö"),
        model_reply(answer_message()),
        model_reply(calling_message(tool_call("c1"), tool_call("c2"))),
        model_reply(calling_message(tool_call("c1"))),
        tool_result("c1"),
        tool_result("c2"),
    ]
)


@settings(max_examples=examples(200))
@for_any(st.lists(SOME_MESSAGES, max_size=30), st.data())
def test_request_ignores_earlier_requests(facts: list[MessageAdded], data: st.DataObject) -> None:
    """What earlier requests were made of is kept, for states that grew from one another in any way."""
    states = [State()]
    for fact in facts:
        states.append(when(data.draw(st.sampled_from(states[-3:])), fact))
        asked = data.draw(st.sampled_from(states))
        anew = assemble_request(list(asked.messages), "Be kind.", None, {"model": "m"})
        for _ in range(2):
            request = assemble_request(asked.messages, "Be kind.", None, {"model": "m"})
            assert (request.body(), request.entries) == (anew.body(), anew.entries)


def test_long_history_is_not_traversed_again() -> None:
    state = given(*[fact for n in range(500) for fact in (user_said(str(n)), model_reply(answer_message()))])
    assemble_request(state.messages, "Be kind.", None, {})
    state = when(when(state, user_said("again")), model_reply(answer_message()))
    request = assemble_request(state.messages, "Be kind.", None, {})
    kept = [entry for entry in request.entries if "chat_json" in vars(entry)]
    assert len(request.entries) == 1002
    assert [entry.message["content"] for entry in kept] == [answer_message()["content"]]


@pytest.mark.parametrize("window", [None, 3])
def test_turn_cost_ignores_run_length(window: int | None) -> None:
    profile = replace(PROFILE, tools=TOOLS, tool_choice="required")
    costs = []
    for turns in (20, 200):
        state = given(make_run_started(), user_said())
        for number in range(turns):
            call = tool_call(f"c{number}")
            asked = CompletionRecord(request=build_request(state, profile, turns=window).record)
            reply = MessageAdded(message=calling_message(call), completion=asked)
            state = when(state, reply, tool_result(f"c{number}"))
        with count_calls() as counted:
            body = build_request(state, profile, turns=window).body()
        anew = replace(state, messages=Chain(state.messages))
        assert body == build_request(anew, profile, turns=window).body()
        costs.append(counted.total())
    assert costs[0] == pytest.approx(costs[1], abs=20)


@pytest.mark.parametrize("window", [None, 3])
def test_removed_beginning_costs_requests_nothing(window: int | None) -> None:
    costs = []
    for taken_out in (20, 200):
        state = given(*[user_said(str(number)) for number in range(taken_out + 5)])
        asked = CompletionRecord(request=build_request(state, PROFILE, turns=window).record)
        state = when(state, MessageAdded(message=answer_message(), completion=asked), user_said())
        for entry in list(state.messages[:taken_out]):
            state = record_drafts(state, remove_message(state, entry.seq))
            with count_calls() as counted:
                request = build_request(state, PROFILE, turns=window)
        anew = replace(state, messages=Chain(state.messages))
        assert request.body() == build_request(anew, PROFILE, turns=window).body()
        costs.append(counted.total())
    assert costs[0] == pytest.approx(costs[1], abs=20)


def test_long_histories_are_few_identical_pieces() -> None:
    state = given()
    for number in range(200):
        said = user_said(f"question {number}"), model_reply(answer_message("a" * (number % 7) + "!"))
        state = when(state, *said)
        history = build_request(when(state, user_said("And?")), PROFILE).history
        assert len(history.pieces) < 16
        assert history.size == len(history.json)
    anew = replace(state, messages=Chain(state.messages))
    assert build_request(state, PROFILE).body() == build_request(anew, PROFILE).body()
