"""From a state to what a model is sent: the request around the messages, and on any log a valid one."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, settings
from hypothesis import given as for_any
from hypothesis import strategies as st

from swarmkeep.events.codec import Json, digest
from swarmkeep.events.facts import MessageAdded, RecordedEvent
from swarmkeep.events.fold import evolve, fold
from swarmkeep.events.state import State
from swarmkeep.request.request import Profile, assemble_request, build_request
from tests.events.given import calling_message, given, make_run_started, model_reply, tool_call, tool_result, user_said
from tests.request.profile import PROFILE, TOOLS, build_messages
from tests.support.hypothesis_profiles import examples
from tests.support.logs import (
    ARGUMENTS,
    PROFILES,
    TEXTS,
    SeededDice,
    any_logs,
    json_values,
    make_hostile_log,
    make_random_log,
    profiles,
)
from tests.support.rules import find_body_faults, find_faults, is_same, parse_strict_json

OUTPUT = '{"type":"function"}'


def test_the_instructions_come_first() -> None:
    assert build_request(given(), PROFILE).messages == [{"role": "system", "content": "You help."}]


def test_tool_parameters_need_tools() -> None:
    without = Profile(name="a", model="m", instructions="", tool_choice="auto", parallel_tool_calls=False)
    assert build_request(given(), without).params == {"model": "m"}
    tools = Profile(name="a", model="m", instructions="", tools=TOOLS, tool_choice="auto", parallel_tool_calls=False)
    assert build_request(given(), tools).params == {"model": "m", "tool_choice": "auto", "parallel_tool_calls": False}
    plain = Profile(name="a", model="m", instructions="", tools=TOOLS)
    assert build_request(given(), plain).params == {"model": "m", "parallel_tool_calls": True}


def test_a_run_may_name_another_model() -> None:
    assert build_request(given(make_run_started(model="better")), PROFILE).params == {"model": "better"}
    assert build_request(given(make_run_started()), PROFILE).params == {"model": "m"}


def test_a_streamed_request_asks_for_usage() -> None:
    params = build_request(given(), PROFILE, stream=True).params
    assert params == {"model": "m", "stream": True, "stream_options": {"include_usage": True}}


def test_record_and_log_rebuild_request_bytes() -> None:
    profile = Profile(name="a", model="m", instructions="You\ud800 help.", tools=TOOLS, tool_choice="auto")
    asked = build_request(given(user_said(), model_reply(calling_message(tool_call("c1")))), profile)
    record = asked.record
    assert asked.blobs == {record.instructions: profile.instructions, record.tools: TOOLS}
    assert record.instructions == digest(profile.instructions)
    again = assemble_request(
        given(user_said(), model_reply(calling_message(tool_call("c1")))).messages,
        profile.instructions,
        TOOLS,
        record.params,
    )
    assert again.body() == asked.body()


def test_toolless_request_has_one_blob() -> None:
    asked = build_request(given(), PROFILE)
    assert asked.record.tools is None
    assert list(asked.blobs.values()) == ["You help."]


def test_forced_choice_holds_once_with_run_format() -> None:
    profile = Profile(
        name="triage",
        model="m",
        instructions="",
        tools=TOOLS,
        tool_choice="required",
        output_tool=OUTPUT,
    )
    turn = (model_reply(calling_message(tool_call("c1"))), tool_result("c1"))
    asked = given(make_run_started(), user_said(), *turn)
    assert build_request(asked, profile).params["tool_choice"] == "required"
    asked = given(make_run_started(response_format={"type": "json_object"}), user_said(), *turn)
    assert build_request(asked, profile).params["tool_choice"] == "auto"


# On any log.


def check_request(state: State, profile: Profile, stream: bool = False) -> None:
    asked = build_request(state, profile, stream=stream)
    messages, body = asked.messages, asked.body()
    assert find_faults(messages) == []
    assert find_body_faults(body) == []
    whole = {"messages": messages, **({"tools": json.loads(asked.tools)} if asked.tools else {}), **asked.params}
    assert is_same(parse_strict_json(body.decode()), whole)


@for_any(events=any_logs(), profile=profiles(), stream=st.booleans())
@settings(max_examples=examples(80))
def test_any_log_prefix_gives_valid_request(events: list[RecordedEvent], profile: Profile, stream: bool) -> None:
    state = State()
    check_request(state, profile, stream)
    for event in events:
        state = evolve(state, event)
        check_request(state, profile, stream)


def test_seeded_log_ends_give_valid_requests() -> None:
    for seed in range(examples(250)):
        for events in (make_random_log(SeededDice(seed)), make_hostile_log(SeededDice(seed), moves=6)):
            check_request(fold(events), PROFILES[seed % len(PROFILES)], stream=seed % 2 == 0)


MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(("user", "assistant", "tool", "system"))},
    optional={key: json_values(6) for key in ("content", "tool_calls", "tool_call_id", "name", "refusal")},
)


@for_any(message=MESSAGES)
@example(message={"role": "assistant", "content": None, "tool_calls": [None, {"id": "c1", "function": {"name": 1}}]})
@settings(max_examples=examples(100))
def test_no_message_makes_a_request_invalid(message: Json) -> None:
    check_request(given(MessageAdded(message=message), user_said()), PROFILE)


@pytest.mark.parametrize("text", [*TEXTS, *ARGUMENTS], ids=range(len(TEXTS) + len(ARGUMENTS)))
def test_no_text_makes_a_request_invalid(text: str) -> None:
    state = given(
        user_said(text),
        model_reply({**calling_message(tool_call(text, text, text)), "content": text}),
        tool_result(text, text),
        user_said(text),
    )
    check_request(state, Profile(name=text, model="m", instructions=text))
    assert len(build_messages(state)) == 4
