"""What of each message is sent: keys, names, arguments and content that every server takes."""

from __future__ import annotations

import pytest

from swarmkeep.events.codec import Json, encode
from swarmkeep.events.facts import MessageAdded
from swarmkeep.events.messages import to_chat_message
from tests.events.given import answer_message, calling_message, given, model_reply, tool_call, tool_result, user_said
from tests.request.profile import build_messages, message_by, tool_message


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
    for entry in given(
        user_said(), model_reply(calling_message(tool_call("c1"))), tool_result("c1"), model_reply(answer_message())
    ).messages:
        assert entry.chat_json == encode(entry.chat_message)
