"""Messages, calls and results in a request: in the form that every server takes, paired, in order, and complete."""

from __future__ import annotations

import pytest
from hypothesis import given as for_any
from hypothesis import strategies as st

from swarmkeep.events.codec import Json, encode
from swarmkeep.events.facts import HandoffIgnored, MessageAdded, RunCancelled, RunFailed, SessionForked
from swarmkeep.events.messages import INTERRUPTED, Entry, find_stray_result, pair_results, to_chat_message
from swarmkeep.events.state import State
from tests.events.given import (
    OTHER,
    calling_message,
    given,
    in_run,
    make_run_started,
    model_answer,
    model_calls,
    model_reply,
    running,
    tool_call,
    tool_result,
    user_said,
    when,
)
from tests.request.profile import build_messages, message_by, tool_message
from tests.support.logs import DrawnDice, make_messy_history


def test_a_result_follows_its_call() -> None:
    assert build_messages(given(user_said(), model_calls("c1"), tool_result("c1"))) == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [tool_call("c1")]},
        tool_message("c1", "done"),
    ]


AGAIN = (in_run(OTHER, make_run_started()), user_said("again"))
BOTH = (model_calls("c1", "c2"), tool_result("c2", "two"))
# What happened, and the texts that are sent: None for a message that only calls.
PAIRED: dict[str, tuple[State, list[str | None]]] = {
    "results in the order of calls": (given(*BOTH, tool_result("c1", "one")), [None, "one", "two"]),
    "no result at the end": (given(*BOTH), [None, INTERRUPTED, "two"]),
    "no result before the next": (given(*BOTH, user_said()), [None, INTERRUPTED, "two", "hello"]),
    "a late result": (given(model_calls("c1"), user_said(), tool_result("c1")), [None, INTERRUPTED, "hello"]),
    "results of no call": (given(tool_result("c0"), user_said(), tool_result("c1")), ["hello"]),
    "two results": (given(model_calls("c1"), tool_result("c1", "1st"), tool_result("c1", "2nd")), [None, "1st"]),
    "an id used again": (
        given(model_calls("c1"), tool_result("c1", "one"), model_calls("c1"), tool_result("c1", "two")),
        [None, "one", None, "two"],
    ),
    "and not answered": (
        given(model_calls("c1"), tool_result("c1", "one"), model_calls("c1")),
        [None, "one", None, INTERRUPTED],
    ),
    "a run that was cancelled": (
        when(running(model_calls("c1", "c2"), tool_result("c1")), RunCancelled(stop_reason="cancelled"), *AGAIN),
        ["hello", None, "done", INTERRUPTED, "again"],
    ),
    "a run that failed": (
        when(running(model_calls("c1", "c2"), tool_result("c1")), RunFailed(stop_reason="error"), *AGAIN),
        ["hello", None, "done", INTERRUPTED, "again"],
    ),
}


@pytest.mark.parametrize("name", PAIRED)
def test_each_call_is_sent_with_one_result(name: str) -> None:
    state, texts = PAIRED[name]
    messages = build_messages(state)
    assert [message["content"] for message in messages] == texts
    asked = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == asked


def test_duplicate_id_in_reply_is_sent_once() -> None:
    state = given(model_calls(("c1", "first"), ("c1", "second")), tool_result("c1"))
    assert [asked["function"]["name"] for asked in build_messages(state)[0]["tool_calls"]] == ["first"]


def test_surrogate_ids_stay_answered() -> None:
    state = given(model_calls("\ud800", "\ud801"), tool_result("\ud800", "one"), tool_result("\ud801", "two"))
    assert build_messages(state)[1:] == [tool_message("\ufffd", "one")]


def test_mid_call_fork_has_valid_history() -> None:
    state = running(model_calls("c1"))
    state = when(state, SessionForked(from_session_id="s", from_seq=state.seq, from_hash=""), tool_result("c1", "late"))
    assert build_messages(state)[-1] == tool_message("c1", "late")


def test_ignored_handoff_is_told_to_model() -> None:
    ignored = HandoffIgnored(from_agent="triage", to_agent="sales", tool_call_id="c1")
    state = given(make_run_started(), model_calls("c1"), tool_result("c1", "Transferred."), ignored)
    assert "Not handed over to sales" in build_messages(state)[-1]["content"]


# Tool messages that answer no open call: exactly those that a model would never be sent.


@st.composite
def messy_histories(draw: st.DrawFn) -> list[Json]:
    return make_messy_history(DrawnDice(draw))


def as_entries(messages: list[Json]) -> list[Entry]:
    return [Entry(seq=place, at="", run_id=None, message=message) for place, message in enumerate(messages)]


@for_any(messy_histories(), messy_histories())
def test_first_stray_result_is_first_unsent(history: list[Json], messages: list[Json]) -> None:
    entries = as_entries(history + messages)
    sent = {id(entry) for entry in pair_results(entries)}
    left_out = [
        place for place, entry in enumerate(entries[len(history) :]) if entry.role == "tool" and id(entry) not in sent
    ]
    assert find_stray_result(messages, entries[: len(history)]) == (left_out[0] if left_out else None)


# What of each message is sent: keys, names, arguments and content that every server takes.


@pytest.mark.parametrize("nothing", [{"content": ""}, {"content": None}, {}, {"content": []}, {"tool_calls": []}])
def test_empty_reply_is_left_out(nothing: Json) -> None:
    # Several servers refuse such a message, and with it every request of the session from then on.
    state = given(user_said(), model_reply({"role": "assistant", **nothing}), user_said("are you there?"))
    assert [message["content"] for message in build_messages(state)] == ["hello", "are you there?"]


def test_a_refusal_says_something() -> None:
    state = given(user_said(), model_reply({"role": "assistant", "content": None, "refusal": "I will not."}))
    assert build_messages(state)[-1] == {"role": "assistant", "content": "", "refusal": "I will not."}


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


def test_user_names_are_sanitised() -> None:
    state = given(
        message_by("user", name="John"), message_by("user", name="John <Smith>"), message_by("user", name=None)
    )
    assert [message.get("name") for message in build_messages(state)] == ["John", "John__Smith_", None]


def test_invented_tool_names_are_sanitised() -> None:
    state = given(model_calls(("c1", "functions.look up"), ("c2", ""), ("c3", "x" * 100)))
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
def test_non_object_arguments_become_empty_objects(arguments: str, as_sent: str) -> None:
    state = given(model_reply(calling_message(tool_call("c1", arguments=arguments))))
    assert build_messages(state)[0]["tool_calls"][0]["function"]["arguments"] == as_sent


@pytest.mark.parametrize("arguments", [None, {"a": 1}, 7])
def test_non_text_arguments_become_empty_objects(arguments: object) -> None:
    state = given(
        model_reply(
            calling_message({"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}})
        )
    )
    assert build_messages(state)[0]["tool_calls"] == [tool_call("c1", "f")]


@pytest.mark.parametrize("content", [None, [], {}, 7, False, [None, "text", {}, {"type": 1}]])
@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_unacceptable_content_becomes_empty_text(role: str, content: object) -> None:
    assert to_chat_message({"role": role, "content": content})["content"] == ""


def test_parts_are_sent_as_they_are() -> None:
    parts = [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    assert build_messages(given(message_by("user", content=parts))) == [{"role": "user", "content": parts}]


def test_unknown_roles_are_left_out() -> None:
    strange = [MessageAdded(message=message) for message in ({}, {"role": None}, {"role": ["user"]}, {"role": "alien"})]
    assert build_messages(given(*strange, user_said())) == [{"role": "user", "content": "hello"}]


def test_invalid_utf_8_is_replaced_when_sent() -> None:
    state = given(user_said("a \ud800 b"))
    assert build_messages(state) == [{"role": "user", "content": "a \ufffd b"}]
    assert state.messages[0].message["content"] == "a \ud800 b"


def test_public_message_keys_cannot_be_displaced() -> None:
    state = given(message_by("user", seq=99, at="never", run_id="none of yours", sender="somebody"), message_by("user"))
    first, second = (entry.view() for entry in state.messages)
    assert (first["seq"], first["run_id"], first["sender"]) == (2, None, "somebody")
    assert first["at"] == state.messages[0].at
    assert list(second) == ["seq", "at", "run_id", "sender", "role", "content"]
    assert second["sender"] is None


def test_message_is_encoded_as_sent() -> None:
    for entry in given(user_said(), model_calls("c1"), tool_result("c1"), model_answer()).messages:
        assert entry.chat_json == encode(entry.chat_message)
