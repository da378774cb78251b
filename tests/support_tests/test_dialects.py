"""The fake servers refuse what those that they stand for refuse, and accept what they themselves made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest

from swarmkeep.events.codec import Json
from tests.support.dialects import DIALECTS, ERRORS, RULES, Answer, DialectModel
from tests.support.scripted import ScriptedModel

ANSWER = Answer("Let me look.", (("get_weather", {"city": "Rome"}), ("hang_up", {})))
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("get_weather", "hang_up")
]
USER = {"role": "user", "content": "Hi."}

# A request that breaks each rule, by what it has besides.
BROKEN: Mapping[str, Json] = {
    "parallel_tool_calls": {"tools": TOOLS, "parallel_tool_calls": True},
    "max_tokens": {"max_tokens": 5},
    "temperature": {"temperature": 0},
    "later system": {"messages": [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, USER]},
    "empty text": {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]},
    "calls without tools": {},
    "chosen function": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "hang_up"}}},
    "long ids": {},
}


def call_and_answer(call_id: str) -> list[Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "hang_up", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [USER, message, {"role": "tool", "tool_call_id": call_id, "content": "done"}]


def ask(url: str, request: Json) -> httpx2.Response:
    return httpx2.post(f"{url}/chat/completions", json=request, verify=False)


@pytest.mark.parametrize(("name", "rule"), [(name, rule) for name, row in DIALECTS.items() for rule in row.refuses])
def test_rules_keep_their_servers_words(name: str, rule: str) -> None:
    dialect = DIALECTS[name]
    request = {"model": dialect.model, "messages": [USER], **BROKEN[rule]}
    if not BROKEN[rule]:
        request["messages"] = call_and_answer("call_of_another_server")
        request |= {"tools": TOOLS} if rule == "long ids" else {}
    if dialect.attaches and rule == "long ids":
        assert RULES[rule].find(request) is not None
    fake = DialectModel(lambda messages: ANSWER)
    with ScriptedModel(default=fake, strict=False) as model:
        answer = ask(model.url, request)
    assert answer.status_code == 400
    (fault,) = fake.refused
    assert fault.removeprefix(f"{name}: ") in json.dumps(answer.json(), ensure_ascii=False).replace('\\\\"', '"')
    shape = ERRORS[dialect.error]("", None)
    assert type(answer.json()) is type(shape)
    assert isinstance(shape, list) or answer.json().keys() == shape.keys()


@pytest.mark.parametrize("name", DIALECTS)
def test_server_attachments_must_come_back(name: str) -> None:
    dialect = DIALECTS[name]
    fake = DialectModel(lambda messages: ANSWER if len(messages) == 1 else Answer("Done."))
    with ScriptedModel(default=fake, strict=False) as model:
        request: Json = {"model": dialect.model, "messages": [USER], "tools": TOOLS}
        choices = ask(model.url, request).json()["choices"]
        message = choices[-1]["message"]
        for number, call in enumerate(message["tool_calls"]):
            call["id"] = call["id"] or f"made{number:05d}"
            given = call["function"]["arguments"]
            call["function"]["arguments"] = json.dumps(given) if isinstance(given, dict) else given or "{}"
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in message["tool_calls"]]
        assert ask(model.url, request | {"messages": [USER, message, *results]}).status_code == 200
        assert fake.refused == []
        calls = [{key: call[key] for key in ("id", "type", "function")} for call in message["tool_calls"]]
        bare = {"role": "assistant", "content": "Let me look.", "tool_calls": calls}
        status = ask(model.url, request | {"messages": [USER, bare, *results]}).status_code
        assert status == (400 if dialect.attaches else 200)


@pytest.mark.parametrize("name", DIALECTS)
def test_stream_equals_whole_reply(name: str) -> None:
    dialect = DIALECTS[name]
    fake = DialectModel(lambda messages: Answer("Fine. 😀"))
    with ScriptedModel(default=fake, strict=False) as model:
        request: Json = {"model": dialect.model, "messages": [USER]}
        whole = ask(model.url, request).json()["choices"][0]["message"]["content"]
        lines = ask(model.url, request | {"stream": True}).text.splitlines()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    contents = [choice["delta"].get("content") for chunk in chunks for choice in chunk["choices"]]
    text = "".join(content for content in contents if isinstance(content, str))
    assert text.encode("utf-16", "surrogatepass").decode("utf-16") == "Fine. 😀"
    assert whole == "Fine. 😀" or whole[-1]["text"] == "Fine. 😀"
    assert lines[-2 if lines[-1] == "" else -1] == "data: [DONE]"
