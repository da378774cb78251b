"""From a state to what a model is sent."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, settings
from hypothesis import given as for_any
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmkeep.domain.chain import Chain
from swarmkeep.domain.codec import Json, encode
from swarmkeep.domain.decisions.removing import remove_message
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import (
    CompletionRecord,
    HandoffIgnored,
    MessageAdded,
    RunCancelled,
    RunFailed,
    SessionForked,
)
from swarmkeep.domain.fold import evolve, fold
from swarmkeep.domain.messages import INTERRUPTED, to_chat_message
from swarmkeep.domain.request import Profile, assemble_request, build_request, digest
from swarmkeep.domain.state import State
from tests.domain.given import (
    OTHER,
    answer_message,
    calling_message,
    given,
    in_run,
    make_run_started,
    model_reply,
    record_drafts,
    tool_call,
    tool_result,
    user_said,
    when,
)
from tests.support.calls import count_calls
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

PROFILE = Profile(name="triage", model="m", instructions="You help.")
OUTPUT = '{"type":"function"}'
TOOLS = '[{"type":"function","function":{"name":"look_up","parameters":{}}}]'


def build_messages(state: State) -> list[Json]:
    """The messages of the request after the instructions."""
    asked = build_request(state, PROFILE)
    assert find_faults(asked.messages) == []
    assert find_body_faults(asked.body()) == []
    return asked.messages[1:]


def message_by(role: str, **keys: object) -> MessageAdded:
    return MessageAdded(message={"role": role, "content": "text", **keys})


def tool_message(call_id: str, content: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


# Pairing calls and results.


def test_a_result_follows_its_call() -> None:
    assert build_messages(given(user_said(), model_reply(calling_message(tool_call("c1"))), tool_result("c1"))) == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [tool_call("c1")]},
        tool_message("c1", "done"),
    ]


def test_results_are_put_in_the_order_of_the_calls() -> None:
    state = given(
        model_reply(calling_message(tool_call("c1"), tool_call("c2"))),
        tool_result("c2", "two"),
        tool_result("c1", "one"),
    )
    assert build_messages(state)[1:] == [tool_message("c1", "one"), tool_message("c2", "two")]


def test_a_call_without_a_result_gets_one_that_says_so() -> None:
    state = given(model_reply(calling_message(tool_call("c1"), tool_call("c2"))), tool_result("c2"))
    assert build_messages(state)[1:] == [tool_message("c1", INTERRUPTED), tool_message("c2", "done")]
    assert build_messages(when(state, user_said()))[1:] == [
        tool_message("c1", INTERRUPTED),
        tool_message("c2", "done"),
        {"role": "user", "content": "hello"},
    ]


def test_a_result_that_comes_too_late_is_left_out() -> None:
    state = given(model_reply(calling_message(tool_call("c1"))), user_said(), tool_result("c1", "late"))
    assert [message["content"] for message in build_messages(state)] == [None, INTERRUPTED, "hello"]


def test_a_result_that_answers_no_call_is_left_out() -> None:
    assert build_messages(given(tool_result("c0"), user_said(), tool_result("c1"))) == [
        {"role": "user", "content": "hello"}
    ]


def test_the_first_of_two_results_counts() -> None:
    state = given(
        model_reply(calling_message(tool_call("c1"))), tool_result("c1", "first"), tool_result("c1", "second")
    )
    assert build_messages(state)[1:] == [tool_message("c1", "first")]


def test_an_id_that_a_later_reply_uses_again_is_another_call() -> None:
    state = given(
        model_reply(calling_message(tool_call("c1"))),
        tool_result("c1", "one"),
        model_reply(calling_message(tool_call("c1"))),
        tool_result("c1", "two"),
    )
    assert [message["content"] for message in build_messages(state)] == [None, "one", None, "two"]
    assert build_messages(
        given(
            model_reply(calling_message(tool_call("c1"))),
            tool_result("c1", "one"),
            model_reply(calling_message(tool_call("c1"))),
        )
    )[-1] == tool_message("c1", INTERRUPTED)


def test_an_id_that_one_reply_uses_twice_is_sent_once() -> None:
    state = given(model_reply(calling_message(tool_call("c1", "first"), tool_call("c1", "second"))), tool_result("c1"))
    assert [asked["function"]["name"] for asked in build_messages(state)[0]["tool_calls"]] == ["first"]


def test_calls_whose_ids_differ_only_in_what_utf_8_cannot_hold_stay_answered() -> None:
    state = given(
        model_reply(calling_message(tool_call("\ud800"), tool_call("\ud801"))),
        tool_result("\ud800", "one"),
        tool_result("\ud801", "two"),
    )
    assert build_messages(state)[1:] == [tool_message("\ufffd", "one")]


def test_a_run_that_ended_amid_its_calls_leaves_a_valid_history() -> None:
    for ending in (RunCancelled(stop_reason="cancelled"), RunFailed(stop_reason="error")):
        state = given(
            make_run_started(),
            user_said(),
            model_reply(calling_message(tool_call("c1"), tool_call("c2"))),
            tool_result("c1"),
            ending,
        )
        state = when(state, in_run(OTHER, make_run_started()), user_said("again"))
        assert [message["content"] for message in build_messages(state)] == [
            "hello",
            None,
            "done",
            INTERRUPTED,
            "again",
        ]


@pytest.mark.parametrize("nothing", [{"content": ""}, {"content": None}, {}, {"content": []}, {"tool_calls": []}])
def test_a_reply_that_says_nothing_is_left_out(nothing: Json) -> None:
    # Several servers refuse such a message, and with it every request of the session from then on.
    state = given(user_said(), model_reply({"role": "assistant", **nothing}), user_said("are you there?"))
    assert [message["content"] for message in build_messages(state)] == ["hello", "are you there?"]


def test_a_refusal_says_something() -> None:
    state = given(user_said(), model_reply({"role": "assistant", "content": None, "refusal": "I will not."}))
    assert build_messages(state)[-1] == {"role": "assistant", "content": "", "refusal": "I will not."}


def test_a_fork_amid_calls_has_a_valid_history() -> None:
    state = given(make_run_started(), user_said(), model_reply(calling_message(tool_call("c1"))))
    state = when(state, SessionForked(from_session_id="s", from_seq=state.seq, from_hash=""), tool_result("c1", "late"))
    assert build_messages(state)[-1] == tool_message("c1", "late")


def test_a_handoff_that_was_ignored_is_told_to_the_model() -> None:
    ignored = HandoffIgnored(from_agent="triage", to_agent="sales", tool_call_id="c1")
    state = given(
        make_run_started(), model_reply(calling_message(tool_call("c1"))), tool_result("c1", "Transferred."), ignored
    )
    assert "Not handed over to sales" in build_messages(state)[-1]["content"]


# What of a message is sent.


def test_only_chat_completions_keys_are_sent() -> None:
    extras = {"sender": "x", "tool_name": "f", "annotations": [], "audio": None, "reasoning_content": "hm", "seq": 1}
    state = given(
        message_by("system", **extras), message_by("developer", **extras), message_by("user", **extras),
        MessageAdded(message={**calling_message({**tool_call("c1"), "index": 0}), **extras}),
        MessageAdded(message={**tool_message("c1", "done"), "name": "f", **extras}),
    )  # fmt: skip
    assert [list(message) for message in build_messages(state)] == [
        ["role", "content"], ["role", "content"], ["role", "content"],
        ["role", "tool_calls", "content"], ["role", "tool_call_id", "content"],
    ]  # fmt: skip


def test_a_user_s_name_is_sent_as_a_server_takes_it() -> None:
    state = given(
        message_by("user", name="John"), message_by("user", name="John <Smith>"), message_by("user", name=None)
    )
    assert [message.get("name") for message in build_messages(state)] == ["John", "John__Smith_", None]


def test_a_tool_s_name_that_a_model_made_up_is_sent_as_a_server_takes_it() -> None:
    state = given(
        model_reply(
            calling_message(tool_call("c1", "functions.look up"), tool_call("c2", ""), tool_call("c3", "x" * 100))
        )
    )
    names = [asked["function"]["name"] for asked in build_messages(state)[0]["tool_calls"]]
    assert names == ["functions_look_up", "_", "x" * 64]


@pytest.mark.parametrize(
    ("arguments", "as_sent"),
    [
        ("{}", "{}"),
        (' {"a": 1} ', ' {"a": 1} '),
        ('{"a": "\\u0000"}', '{"a": "\\u0000"}'),
        ('{"a": "\ud800"}', '{"a": "\ufffd"}'),
        *((text, "{}") for text in ("", "null", "[]", "7", '"x"', "{", "{}{}", "no json", '{"a":NaN}', '{"a":1e400}')),
        ('{"a": %s}' % ("9" * 5000), "{}"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "{}"),
        ('{"a":' * 501 + "1" + "}" * 501, "{}"),
        ('{"a":' * 500 + "1" + "}" * 500, '{"a":' * 500 + "1" + "}" * 500),
    ],
    ids=range(18),
)
def test_arguments_that_are_no_json_object_are_sent_as_an_empty_one(arguments: str, as_sent: str) -> None:
    state = given(model_reply(calling_message(tool_call("c1", arguments=arguments))))
    assert build_messages(state)[0]["tool_calls"][0]["function"]["arguments"] == as_sent


@pytest.mark.parametrize("arguments", [None, {"a": 1}, 7])
def test_arguments_that_are_no_text_are_sent_as_an_empty_object(arguments: object) -> None:
    state = given(
        model_reply(
            calling_message({"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}})
        )
    )
    assert build_messages(state)[0]["tool_calls"] == [tool_call("c1", "f")]


@pytest.mark.parametrize("content", [None, [], {}, 7, False, [None, "text", {}, {"type": 1}]])
@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_content_that_no_server_takes_is_sent_as_empty_text(role: str, content: object) -> None:
    assert to_chat_message({"role": role, "content": content})["content"] == ""


def test_parts_are_sent_as_they_are() -> None:
    parts = [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    assert build_messages(given(message_by("user", content=parts))) == [{"role": "user", "content": parts}]


def test_a_message_of_an_unknown_role_is_left_out() -> None:
    strange = [MessageAdded(message=message) for message in ({}, {"role": None}, {"role": ["user"]}, {"role": "alien"})]
    assert build_messages(given(*strange, user_said())) == [{"role": "user", "content": "hello"}]


def test_text_that_utf_8_cannot_hold_is_kept_and_sent_with_a_replacement() -> None:
    state = given(user_said("a \ud800 b"))
    assert build_messages(state) == [{"role": "user", "content": "a \ufffd b"}]
    assert state.messages[0].message["content"] == "a \ud800 b"


def test_the_public_form_of_a_message_has_its_place_whatever_keys_the_message_brings() -> None:
    state = given(message_by("user", seq=99, at="never", run_id="none of yours", sender="somebody"), message_by("user"))
    first, second = (entry.view() for entry in state.messages)
    assert (first["seq"], first["run_id"], first["sender"]) == (2, None, "somebody")
    assert first["at"] == state.messages[0].at
    assert list(second) == ["seq", "at", "run_id", "sender", "role", "content"]
    assert second["sender"] is None


# The request around the messages.


def test_the_instructions_come_first() -> None:
    assert build_request(given(), PROFILE).messages == [{"role": "system", "content": "You help."}]


def test_parameters_about_tools_are_sent_with_tools_only() -> None:
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


def test_the_record_and_the_log_rebuild_the_request_to_the_byte() -> None:
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


def test_a_request_without_tools_has_one_blob() -> None:
    asked = build_request(given(), PROFILE)
    assert asked.record.tools is None
    assert list(asked.blobs.values()) == ["You help."]


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
def test_any_prefix_of_any_log_gives_a_valid_request(
    events: list[RecordedEvent], profile: Profile, stream: bool
) -> None:
    state = State()
    check_request(state, profile, stream)
    for event in events:
        state = evolve(state, event)
        check_request(state, profile, stream)


def test_the_end_of_every_seeded_log_gives_a_valid_request() -> None:
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


def test_a_message_is_encoded_as_it_is_sent() -> None:
    for entry in given(
        user_said(), model_reply(calling_message(tool_call("c1"))), tool_result("c1"), model_reply(answer_message())
    ).messages:
        assert entry.chat_json == encode(entry.chat_message)


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
def test_a_request_is_the_same_whatever_was_asked_before(facts: list[MessageAdded], data: st.DataObject) -> None:
    """What earlier requests were made of is kept, for states that grew from one another in any way."""
    states = [State()]
    for fact in facts:
        states.append(when(data.draw(st.sampled_from(states[-3:])), fact))
        asked = data.draw(st.sampled_from(states))
        anew = assemble_request(list(asked.messages), "Be kind.", None, {"model": "m"})
        for _ in range(2):
            request = assemble_request(asked.messages, "Be kind.", None, {"model": "m"})
            assert (request.body(), request.entries) == (anew.body(), anew.entries)


def test_a_long_history_is_not_gone_through_again() -> None:
    state = given(*[fact for n in range(500) for fact in (user_said(str(n)), model_reply(answer_message()))])
    assemble_request(state.messages, "Be kind.", None, {})
    state = when(when(state, user_said("again")), model_reply(answer_message()))
    request = assemble_request(state.messages, "Be kind.", None, {})
    kept = [entry for entry in request.entries if "chat_json" in vars(entry)]
    assert len(request.entries) == 1002
    assert [entry.message["content"] for entry in kept] == [answer_message()["content"]]


@pytest.mark.parametrize("window", [None, 3])
def test_the_next_turn_of_a_run_costs_as_much_however_long_the_run_is(window: int | None) -> None:
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
def test_what_was_taken_out_from_the_beginning_on_costs_the_next_request_nothing(window: int | None) -> None:
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


def test_a_forced_choice_holds_once_where_the_run_has_a_format_of_its_own() -> None:
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


def test_a_long_history_is_in_few_pieces_and_the_same_however_it_was_put_together() -> None:
    state = given()
    for number in range(200):
        said = user_said(f"question {number}"), model_reply(answer_message("a" * (number % 7) + "!"))
        state = when(state, *said)
        history = build_request(when(state, user_said("And?")), PROFILE).history
        assert len(history.pieces) < 16
        assert history.size == len(history.json)
    anew = replace(state, messages=Chain(state.messages))
    assert build_request(state, PROFILE).body() == build_request(anew, PROFILE).body()
