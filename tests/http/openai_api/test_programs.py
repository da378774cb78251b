"""Requests as programs send them that know OpenAI's API: chat programs and frameworks, each with its habits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.http.server import RunningServer
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

URL = "/openai/v1/chat/completions"
PIXEL = "data:image/png;base64,iVBORw0KGgo="
SYSTEM: Any = {"role": "system", "content": "Answer in one line."}
TOOL: Any = {
    "name": "look",
    "description": "Look at something.",
    "parameters": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"at": {"type": "string"}},
        "required": ["at"],
        "additionalProperties": False,
    },
}


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


async def chat(service: RunningServer, body: Any, **headers: str) -> str:
    """The text of a completion, streamed or not; read as loosely as these programs do."""
    answer = await service.post(URL, body, headers={name.replace("_", "-"): value for name, value in headers.items()})
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        return str(answer.json()["choices"][0]["message"]["content"])
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert answer.text.endswith("data: [DONE]\n\n")
    if (body.get("stream_options") or {}).get("include_usage"):
        assert chunks[-1]["usage"]["total_tokens"] > 0
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


async def test_open_webui(service: RunningServer, model: ScriptedModel) -> None:
    listed = (await service.get("/openai/v1/models")).json()
    assert [entry["object"] for entry in listed["data"]] == ["model"] * len(listed["data"])
    headers = {
        "X_OpenWebUI_User_Name": "Ann%20Lee",
        "X_OpenWebUI_User_Id": "3c1a",
        "X_OpenWebUI_User_Email": "ann@example.org",
        "X_OpenWebUI_User_Role": "user",
        "X_OpenWebUI_Chat_Id": "0d1f6e7a-3a44-4bb0-8f2e-6b7a6a0b6c11",
    }
    model.say("Hello.")
    body: Any = {"model": "Front", "stream": True, "messages": [SYSTEM, user("Hi.")], "max_tokens": 100, "seed": 7}
    body |= {"temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0.5, "presence_penalty": 0.5, "stop": ["END"]}
    body |= {"stream_options": {"include_usage": True}, "logit_bias": {"5432": -100}, "reasoning_effort": "low"}
    assert await chat(service, body, **headers) == "Hello."
    picture = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    messages = [SYSTEM, user("Hi."), {"role": "assistant", "content": "Hello."}, user(picture)]
    model.say("A pixel.")
    assert await chat(service, {"model": "Front", "stream": True, "messages": messages}, **headers) == "A pixel."
    session = f"/v1/sessions/{headers['X_OpenWebUI_Chat_Id']}"
    assert (await service.get(session)).json()["message_count"] == 5


async def test_librechat(service: RunningServer, model: ScriptedModel) -> None:
    assert (await service.get("/openai/v1/models?user=64f0c2")).status_code == 200
    body: Any = {"model": "Front", "temperature": 1, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0}
    body |= {"n": 1, "user": "64f0c2", "stream": True, "stream_options": {"include_usage": True}}
    body |= {"messages": [SYSTEM, user([{"type": "text", "text": "Hi."}])]}
    model.say("Hello.")
    # The id of a chat that has none yet is an empty text.
    assert await chat(service, body, X_Session_Id="") == "Hello."
    model.say("Hello again.")
    assert await chat(service, body, X_Session_Id="b2c3dbd1-2d42-49ec-befa-809fea8133ec") == "Hello again."
    title: Any = {"model": "Front", "stream": False, "max_completion_tokens": 50, "messages": [user("A title?")]}
    model.say("Greetings")
    assert await chat(service, {**title, "metadata": None}, X_Session_Id="") == "Greetings"
    # Its default way to get one: a function that must be called.
    model.call("look", {"at": "it"}, id="c1")
    tool = {"type": "function", "function": TOOL}
    chosen = {"type": "function", "function": {"name": "look"}}
    answer = await service.post(URL, {**title, "tools": [tool], "tool_choice": chosen, "parallel_tool_calls": False})
    assert answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"


async def test_ai_sdk_for_compatible_servers(service: RunningServer, model: ScriptedModel) -> None:
    body: Any = {"model": "Front", "messages": [SYSTEM, user("Look.")], "tool_choice": "auto", "stream": True}
    body["tools"] = [{"type": "function", "function": TOOL}]
    model.call("look", {"at": "it"}, id="c1")
    first = await service.post(URL, body)
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"it"}'}}
    assert '"tool_calls"' in first.text
    said = {"role": "assistant", "content": "", "reasoning_content": "Let me see.", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1", "content": '{"type":"json"}'}
    model.say("{}")
    again = {**body, "messages": [*body["messages"], said, result], "response_format": {"type": "json_object"}}
    assert await chat(service, again) == "{}"


async def test_ai_sdk_references_across_conversations(service: RunningServer, model: ScriptedModel) -> None:
    items: list[Any] = [{"role": "developer", "content": "Answer in one line."}]
    for number in range(12):
        items.append({"role": "user", "content": [{"type": "input_text", "text": f"{number}?"}]})
        model.say(f"{number}.")
        asked = {"model": "Front", "input": items, "max_output_tokens": 100, "store": True, "tool_choice": "auto"}
        made = await service.post("/openai/v1/responses", {**asked, "tools": [{"type": "function", **TOOL}]})
        assert made.status_code == 200, made.text
        items.append({"type": "item_reference", "id": made.json()["output"][0]["id"]})
    told = [message["content"] for message in model.requests[-1]["messages"][1:]]
    assert told[-3:] == ["10?", "10.", "11?"]


@pytest.mark.parametrize("store", [True, False])
async def test_ai_sdk_responses_without_references(service: RunningServer, model: ScriptedModel, store: bool) -> None:
    said = {"role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "Hello."}]}
    schema = {"type": "json_schema", "strict": True, "name": "response", "schema": {**TOOL["parameters"]}}
    body = {"model": "Front", "input": [user("Hi."), said, user("Now?")], "store": store, "text": {"format": schema}}
    model.say('{"at": "it"}')
    made = (await service.post("/openai/v1/responses", {**body, "include": ["reasoning.encrypted_content"]})).json()
    assert made["output"][0]["content"][0]["text"] == '{"at": "it"}'


async def test_langchain(service: RunningServer, model: ScriptedModel) -> None:
    model.say("Hello.")
    body: Any = {"model": "Front", "messages": [SYSTEM, user("Hi.")], "n": 1, "stream": True, "temperature": 0.7}
    assert await chat(service, {**body, "stream_options": {"include_usage": True}, "stop": None}) == "Hello."
    model.say("Hello.")
    asked: Any = {"model": "Front", "input": [{"type": "message", **SYSTEM}, {"type": "message", **user("Hi.")}]}
    made = await service.post("/openai/v1/responses", {**asked, "temperature": 0.7, "stream": False})
    assert made.json()["output"][0]["type"] == "message"


async def test_litellm_sends_its_own_message_back(service: RunningServer, model: ScriptedModel) -> None:
    model.call("look", {"at": "it"}, id="c1")
    body: Any = {"model": "Front", "messages": [user("Look.")], "tools": [{"type": "function", "function": TOOL}]}
    said: Any = (await service.post(URL, body)).json()["choices"][0]["message"]
    # What it does not know of an answer, as the refusal that is null, it keeps in a field of its own.
    own = {"function_call": None, "provider_specific_fields": {"refusal": said.pop("refusal")}, "thinking_blocks": []}
    result = {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "A hill."}
    model.say("It is a hill.")
    assert await chat(service, {**body, "messages": [*body["messages"], {**said, **own}, result]}) == "It is a hill."
    assert set(model.requests[-1]["messages"][2]) == {"role", "content", "tool_calls"}
