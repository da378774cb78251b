"""What Open Responses asks of a server, and the requests of programs that know OpenAI's API, with their habits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.http.openai_api.open_responses import check_events, check_response
from tests.http.server import RunningServer
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

Json = dict[str, Any]

PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
    "AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WEATHER: Json = {
    "type": "function",
    "name": "look_outside",
    "description": "What the sky looks like at a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}


def message(role: str, content: Any, **more: Any) -> Json:
    return {"type": "message", "role": role, "content": content, **more}


async def respond(service: RunningServer, **body: Any) -> Json:
    answer = await service.post("/openai/v1/responses", {"model": "Front", **body})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/json")
    return check_response(answer.json())


async def stream(service: RunningServer, path: str = "/openai/v1/responses", **body: Any) -> list[Json]:
    """The events of a stream whose lines are exactly those of the specification."""
    method, sent = ("POST", {"model": "Front", "stream": True, **body}) if body else ("GET", None)
    events = []
    async with service.client.stream(method, path, json=sent) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        *blocks, done, end = (await answer.aread()).decode().split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    for block in blocks:
        first, second = block.split("\n")
        event = json.loads(second.removeprefix("data: "))
        assert first == f"event: {event['type']}"
        events.append(event)
    return events


async def test_a_text_is_answered(service: RunningServer, model: ScriptedModel) -> None:
    model.say("Hello there, friend.")
    found = await respond(service, input=[message("user", "Say hello in three words.")])
    assert found["status"] == "completed"
    assert found["output"][0]["content"][0]["text"] == "Hello there, friend."
    assert found["completed_at"] >= found["created_at"]
    assert (found["temperature"], found["top_p"], found["presence_penalty"]) == (1.0, 1.0, 0.0)


async def test_a_streamed_text_has_every_event(service: RunningServer, model: ScriptedModel) -> None:
    model.say(["1, 2, ", "3, 4, ", "5"])
    events = await stream(service, input=[message("user", "Count from one to five.")])
    last = check_events(events)
    assert (last["status"], last["output"][0]["content"][0]["text"]) == ("completed", "1, 2, 3, 4, 5")
    again = await stream(service, f"/openai/v1/responses/{last['id']}?stream=true")
    assert check_events(again) == last


async def test_the_callers_function_is_called(service: RunningServer, model: ScriptedModel) -> None:
    model.call("look_outside", {"place": "San Francisco"}, id="call_1")
    found = await respond(service, input=[message("user", "How is the weather?")], tools=[WEATHER])
    [call] = found["output"]
    assert (call["type"], call["call_id"], call["name"]) == ("function_call", "call_1", "look_outside")
    assert json.loads(call["arguments"]) == {"place": "San Francisco"}
    assert found["tools"] == [WEATHER | {"strict": None}]


@pytest.mark.parametrize("words", ["", "Let me look."])
async def test_a_streamed_call_has_every_event(service: RunningServer, model: ScriptedModel, words: str) -> None:
    model.call("look_outside", {"place": "San Francisco"}, id="call_1", text=words)
    events = await stream(service, input=[message("user", "How is the weather?")], tools=[WEATHER])
    last = check_events(events)
    assert last["output"][-1]["type"] == "function_call"
    types = [event["type"] for event in events]
    assert types.index("response.function_call_arguments.delta") < types.index("response.function_call_arguments.done")
    assert check_events(await stream(service, f"/openai/v1/responses/{last['id']}?stream=true")) == last


async def test_a_picture_is_sent_on(service: RunningServer, model: ScriptedModel) -> None:
    model.say("A heart.")
    parts = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": PICTURE}]
    found = await respond(service, input=[message("user", parts)])
    assert found["status"] == "completed"
    assert model.requests[0]["messages"][-1]["content"][1]["image_url"]["url"] == PICTURE
    listed = (await service.get(f"/openai/v1/responses/{found['id']}/input_items")).json()["data"]
    assert [part["type"] for part in listed[0]["content"]] == ["input_text", "input_image"]


async def test_a_conversation_comes_as_input(service: RunningServer, model: ScriptedModel) -> None:
    model.say("Alice.")
    said = [
        message("system", "Speak like a pirate."),
        message("user", "My name is Alice."),
        message("assistant", "I see.", phase="commentary"),
        message("assistant", [{"type": "output_text", "text": "Hello, Alice!"}], phase="final_answer"),
        message("user", "What is my name?"),
    ]
    found = await respond(service, input=said)
    assert found["status"] == "completed"
    sent = [(said["role"], said["content"]) for said in model.requests[0]["messages"][-5:]]
    assert sent == [
        ("system", "Speak like a pirate."),
        ("user", "My name is Alice."),
        ("assistant", "I see."),
        ("assistant", "Hello, Alice!"),
        ("user", "What is my name?"),
    ]


async def test_what_was_asked_is_shown_again(service: RunningServer, model: ScriptedModel) -> None:
    model.say("{}")
    body: Json = {
        "instructions": "Be brief.",
        "temperature": 0,
        "top_p": 0.5,
        "presence_penalty": 1,
        "frequency_penalty": -0.5,
        "max_output_tokens": 500,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low"},
        "truncation": "auto",
        "service_tier": "flex",
        "safety_identifier": "me",
        "prompt_cache_key": "cache",
        "text": {"format": {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}, "verbosity": "low"},
        "tools": [WEATHER],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "look_outside"}],
        },
    }
    found = await respond(service, input="Well?", **body)
    for name in body.keys() - {"reasoning", "text", "tools"}:
        assert found[name] == body[name], name
    assert found["reasoning"] == {"effort": "low", "summary": None}
    assert found["text"]["format"]["strict"] is False


@pytest.mark.parametrize("stored", [True, False])
async def test_cut_off_answer_is_incomplete(service: RunningServer, model: ScriptedModel, stored: bool) -> None:
    model.say("One, two,", finish_reason="length")
    last = check_events(await stream(service, input="Count.", store=stored))
    assert (last["status"], last["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert last["completed_at"] is None
    assert last["store"] is stored


async def test_refusal_is_its_own_part(service: RunningServer, model: ScriptedModel) -> None:
    refusal = {"role": "assistant", "content": None, "refusal": "I will not."}
    model.raw(make_completion(refusal))
    found = await respond(service, input="Do harm.")
    assert found["output"][0]["content"] == [{"type": "refusal", "refusal": "I will not."}]
    assert check_events(await stream(service, f"/openai/v1/responses/{found['id']}?stream=true")) == found


def make_completion(said: Json) -> Json:
    choice = {"index": 0, "message": said, "finish_reason": "stop", "logprobs": None}
    usage = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [choice],
        "usage": usage,
    }


async def test_what_fails_says_why(service: RunningServer, model: ScriptedModel) -> None:
    model.fail(400, message="no such thing")
    last = check_events(await stream(service, input="Hello."))
    assert last["status"] == "failed"
    assert last["error"]["message"]
    model.fail(400, message="no such thing")
    assert (await respond(service, input="Hello."))["status"] == "failed"


async def test_errors_have_their_shape(plain: RunningServer) -> None:
    for body, param in (({"input": "a", "model": "nobody"}, "model"), ({"input": 5}, "input"), ({"n": 1}, None)):
        answer = await plain.post("/openai/v1/responses", body)
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert 400 <= answer.status_code < 500
        assert error["type"] == "invalid_request_error"
        assert param is None or error["param"] == param


# Requests as programs send them: chat programs and frameworks.


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
