"""Requests that no server would take, and the words with which the offline model refuses them."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI

from swarmkeep.events.codec import Json
from swarmkeep.models.offline.server import OfflineTransport, find_message_problems, find_request_problems
from tests.runs.models.offline.tools import allow, make_tool


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/chat/completions", 405), ("POST", "/v1/models", 405), ("POST", "/v1/embeddings", 404)],
)
def test_other_requests_are_refused(method: str, path: str, status: int) -> None:
    with httpx2.Client(transport=OfflineTransport(), base_url="http://x") as http:
        response = http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"[" * 20_000, b'{"model": "m"}', b'{"messages": "\\ud800"}'])
def test_senseless_body_is_a_bad_request(body: bytes) -> None:
    with httpx2.Client(transport=OfflineTransport(), base_url="http://x") as http:
        assert http.post("/v1/chat/completions", content=body).status_code == 400


def test_invalid_conversation_is_a_bad_request(client: OpenAI) -> None:
    wrong: Any = [{"role": "user", "content": "hi", "sender": "Bob"}]
    with pytest.raises(openai.BadRequestError, match="unknown key 'sender'") as refused:
        client.chat.completions.create(model="m", messages=wrong)
    assert refused.value.param == "messages"


def make_call(id: object = "call_1", name: object = "look", arguments: object = "{}") -> Json:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def make_asking(*calls: object, **more: object) -> Json:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def make_result(id: object = "call_1", content: object = "seen") -> Json:
    return {"role": "tool", "tool_call_id": id, "content": content}


KEYS = [*make_asking(), *make_result(), *make_call(), *make_call()["function"], "refusal", "text", "description"]
USER: Json = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [{"role": "system", "content": "Be kind."}, {"role": "developer", "content": "Be brief."}, USER],
        [{"role": "user", "name": "Ann", "content": [{"type": "text", "text": "hi"}]}],
        [USER, {"role": "assistant", "content": ""}],
        [USER, {"role": "assistant", "content": None, "refusal": "No."}],
        [USER, make_asking(make_call()), make_result(), USER],
        [
            USER,
            make_asking(make_call("a"), make_call("b")),
            make_result("b"),
            make_result("a"),
            make_asking(make_call("a")),
            make_result("a", ""),
        ],
        [USER, {"role": "assistant", "tool_calls": [make_call(arguments="{broken")]}, make_result()],
        [USER, make_asking(make_call()), make_result(content=[{"type": "text", "text": "seen"}])],
    ],
)
def test_valid_messages_have_no_problems(messages: list[Json]) -> None:
    assert find_message_problems(messages) == []


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "at least one"),
        ([USER, 5], r"messages\[1\]: must be an object"),
        ([{"role": "robot", "content": "hi"}], "'robot' is not one of"),
        ([{"role": ["user"], "content": "hi"}], "is not one of"),
        ([{"content": "hi"}], "None is not one of"),
        ([{"role": "user"}], "content: must be a string, not absent"),
        ([{"role": "user", "content": None}], "content: must be a string, not null"),
        ([{"role": "user", "content": 5}], "content: must be a string or a list of parts"),
        ([{"role": "user", "content": []}], "must not be empty"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].text: must be a string"),
        ([{"role": "system", "content": [{"type": "image_url", "image_url": {}}]}], "must be a part of type text"),
        ([{"role": "user", "content": "hi", "name": "Ann Lee"}], "name: must be"),
        ([{"role": "user", "content": "hi", "sender": "Ann"}], "unknown key 'sender'"),
        ([USER, {"role": "assistant", "content": None}], "needs content or tool_calls"),
        ([USER, {"role": "assistant", "content": "hi", "sender": "Bot"}], "unknown key 'sender'"),
        ([USER, {"role": "assistant", "content": "hi", "refusal": 1}], "refusal: must be a string or null"),
        ([USER, {"role": "assistant", "content": "hi", "tool_calls": []}], "at least one call"),
        ([USER, {"role": "assistant", "content": "hi", "tool_calls": None}], "at least one call"),
        ([USER, make_asking(make_call())], "'call_1' is not followed by a tool message"),
        ([USER, make_asking(make_call()), USER], "'call_1' is not followed by a tool message"),
        ([USER, make_asking(make_call()), USER, make_result()], "answers no call"),
        ([USER, make_asking(make_call("a"), make_call("b")), make_result("a"), USER], "'b' is not followed"),
        ([USER, make_asking(make_call()), make_result(), make_result()], "a second tool message"),
        ([USER, make_result()], "answers no call"),
        ([USER, make_asking(make_call()), make_result(), USER, make_result()], "answers no call"),
        ([USER, make_asking(make_call()), make_result(5)], "tool_call_id: must be a non-empty string"),
        ([USER, make_asking(make_call()), {**make_result(), "tool_name": "look"}], "unknown key 'tool_name'"),
        ([USER, make_asking(make_call()), make_result(content=None)], "content: must be a string, not null"),
        ([USER, make_asking(make_call("a"), make_call("a")), make_result("a")], "used twice"),
        ([USER, make_asking(make_call(id=""))], "id: must be a non-empty string"),
        ([USER, make_asking(make_call(name="look up")), make_result()], "name: must be 1 to 64"),
        ([USER, make_asking(make_call(name="")), make_result()], "name: must be 1 to 64"),
        ([USER, make_asking(make_call(arguments={})), make_result()], "arguments: must be a string"),
        ([USER, make_asking({**make_call(), "index": 0}), make_result()], "exactly the keys id, type and function"),
        ([USER, make_asking({**make_call(), "type": "code"}), make_result()], "type: must be 'function'"),
        ([USER, make_asking({**make_call(), "function": None}), make_result()], "function: must be an object"),
        ([USER, make_asking(3)], r"tool_calls\[0\]: must be an object"),
    ],
)
def test_invalid_messages_name_their_place(messages: list[Any], problem: str) -> None:
    found = find_message_problems(messages)
    assert any(re.search(problem, one) for one in found), found


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["", "user", "assistant", "tool", "function", "call_1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)


@given(JSON)
def test_the_checker_takes_anything(value: Any) -> None:
    assert isinstance(find_message_problems(value), list)
    assert isinstance(find_request_problems({"messages": value, "tools": value, "tool_choice": value}), list)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model": ""}, "model: must be"),
        ({"tools": []}, "tools: must be a list with at least one"),
        ({"tools": [{"type": "function"}]}, r"tools\[0\]: must be an object"),
        ({"tools": [make_tool("look up")]}, r"tools\[0\].function.name"),
        ({"tools": [make_tool("a"), make_tool("a")]}, "used twice"),
        ({"tool_choice": "auto"}, "tool_choice: only allowed when tools"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls: only allowed when tools"),
        ({"tools": [make_tool("a")], "tool_choice": "any"}, "tool_choice: must be"),
        (
            {"tools": [make_tool("a")], "tool_choice": {"type": "function", "function": {"name": "b"}}},
            "must name one of",
        ),
        ({"tools": [make_tool("a")], "tool_choice": allow("b")}, "must name some of"),
        ({"tools": [make_tool("a")], "tool_choice": allow()}, "must name one of"),
        ({"stream": "yes"}, "stream: must be a boolean"),
        ({"stream_options": {"include_usage": True}}, "only allowed when stream is true"),
    ],
)
def test_options_are_checked_too(options: Json, problem: str) -> None:
    (found,) = find_request_problems({"model": "m", "messages": [USER], **options})
    assert re.search(problem, found)
