"""The checker of the model's rules, tried on what it must find."""

from __future__ import annotations

import json
from typing import Any

import pytest

from swarmkeep.events.codec import Json
from tests.support.rules import find_body_faults, find_faults, is_same

SYSTEM = {"role": "system", "content": "You help."}
USER = {"role": "user", "content": "hello"}


def tool_call(call_id: str, **function: object) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}", **function}}


def calling_message(*calls: object) -> Json:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def answer_message(call_id: object) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": "done"}


@pytest.mark.parametrize(
    "messages",
    [
        [SYSTEM],
        [SYSTEM, USER, {"role": "assistant", "content": ""}],
        [SYSTEM, USER, calling_message(tool_call("1"), tool_call("2")), answer_message("1"), answer_message("2"), USER],
        [calling_message(tool_call("1")), answer_message("1"), calling_message(tool_call("1")), answer_message("1")],
        [{"role": "user", "content": [{"type": "text", "text": "hello"}], "name": "John"}],
    ],
)
def test_accepted_request_has_no_faults(messages: list[Json]) -> None:
    assert find_faults(messages) == []
    assert find_body_faults(json.dumps({"model": "m", "messages": messages}).encode()) == []


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        [None],
        [{}],
        [{"role": "function", "content": ""}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": [{}]}],
        [{"role": "user", "content": 7}],
        [{**USER, "sender": "user"}],
        [{**USER, "name": "John Smith"}],
        [{**USER, "content": "\ud800"}],
        [{"role": "assistant", "content": None}],
        [{"role": "assistant"}],
        [{"role": "assistant", "content": "", "refusal": 7}],
        [{"role": "assistant", "content": "", "tool_calls": []}],
        [calling_message(tool_call("1"))],
        [calling_message(tool_call("1")), USER],
        [answer_message("1")],
        [calling_message(tool_call("1")), answer_message("2")],
        [calling_message(tool_call("1")), answer_message("1"), answer_message("1")],
        [calling_message(tool_call("1"), tool_call("2")), answer_message("2"), answer_message("1")],
        [calling_message(tool_call("1"), tool_call("1")), answer_message("1")],
        [calling_message(tool_call("1"), tool_call("2")), answer_message("1"), USER, answer_message("2")],
        [calling_message(tool_call("1")), USER, answer_message("1")],
        [calling_message(tool_call("1", name="a b")), answer_message("1")],
        [calling_message(tool_call("1", name="")), answer_message("1")],
        [calling_message(tool_call("1", arguments="")), answer_message("1")],
        [calling_message(tool_call("1", arguments="[]")), answer_message("1")],
        [calling_message(tool_call("1", arguments='{"a": NaN}')), answer_message("1")],
        [calling_message(tool_call("1", arguments={})), answer_message("1")],
        [calling_message(tool_call("1", arguments='{"a": 1e400}')), answer_message("1")],
        [calling_message({"id": "1"}), answer_message("1")],
        [calling_message({**tool_call("1"), "index": 0}), answer_message("1")],
        [calling_message(tool_call("1", extra=1)), answer_message("1")],
        [calling_message({**tool_call("1"), "id": 1}), answer_message(1)],
    ],
)
def test_refused_request_is_a_fault(messages: Any) -> None:
    assert find_faults(messages)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"model": "m", "messages": [{"role": "user", "content": "\xff"}]}',
        b"{",
        b'{"model": "m", "model": "m", "messages": [{"role": "user", "content": ""}]}',
        b'{"messages": [{"role": "user", "content": ""}]}',
        b'{"model": "m"}',
        b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "m", "messages": [{"role": "user", "content": ""}], "tools": []}',
        b'{"model": "m", "messages": [{"role": "user", "content": ""}], "tool_choice": "auto"}',
        b'{"model": "m", "messages": [{"role": "user", "content": ""}], "stream_options": {}}',
        b'{"model": "m", "messages": [{"role": "user", "content": ""}], "sender": "me"}',
    ],
)
def test_refused_body_is_a_fault(body: bytes) -> None:
    assert find_body_faults(body)


def test_same_tells_types_and_signs_apart() -> None:
    assert is_same({"a": [1, None, "x"], "b": 1.0}, {"b": 1.0, "a": [1, None, "x"]})
    for left, right in ((1, 1.0), (1, True), (0.0, -0.0), ([1], [1, 1]), ({"a": 1}, {"a": 1, "b": 1}), ([1], [1.0])):
        assert not is_same(left, right)
