"""Chat completions by OpenAI's clients: whole and streamed, structured, with functions, pictures and handoffs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.http.server import RunningServer
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

DOOR: Any = {
    "type": "function",
    "function": {
        "name": "open_door",
        "description": "Open a door.",
        "parameters": {"type": "object", "properties": {"door": {"type": "string"}}, "required": ["door"]},
    },
}
PICTURE = "data:image/png;base64,iVBORw0KGgo="


def user(text: Any) -> Any:
    return {"role": "user", "content": text}


class Weather(BaseModel):
    city: str
    degrees: int


async def test_completion_has_every_field(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 2}}
    model.say("It is sunny.", usage={"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, **details})
    answer = await openai.chat.completions.with_raw_response.create(model="Front", messages=[user("Weather?")])
    found = answer.parse()
    assert (found.object, found.model, found.id[:9]) == ("chat.completion", "Front", "chatcmpl-")
    assert found.created > 1_700_000_000
    choice = found.choices[0]
    assert (choice.index, choice.finish_reason, choice.logprobs, len(found.choices)) == (0, "stop", None, 1)
    message = choice.message
    assert (message.role, message.content, message.refusal, message.tool_calls) == (
        "assistant",
        "It is sunny.",
        None,
        None,
    )
    assert (found.service_tier, found.system_fingerprint) == (None, None)
    usage = found.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.completion_tokens_details is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (10, 5, 15)
    assert (usage.prompt_tokens_details.cached_tokens, usage.completion_tokens_details.reasoning_tokens) == (4, 2)
    session = answer.headers["x-session-id"]
    assert session.startswith("conv_")
    assert found.id.endswith(f".{session}")


async def test_stream_has_chunks_and_end(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.say(["It ", "is ", "sunny."])
    stream = await openai.chat.completions.create(model="Front", messages=[user("Weather?")], stream=True)
    chunks = [chunk async for chunk in stream]
    assert {(chunk.object, chunk.model, chunk.id) for chunk in chunks} == {
        ("chat.completion.chunk", "Front", chunks[0].id)
    }
    assert chunks[0].id.startswith("chatcmpl-")
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert [delta.role for delta in deltas[1:]] == [None] * (len(deltas) - 1)
    assert "".join(delta.content or "" for delta in deltas) == "It is sunny."
    assert [delta.content for delta in deltas[1:-1]] == ["It ", "is ", "sunny."]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


async def test_usage_comes_last_if_wanted(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.say("Hi.")
    stream = await openai.chat.completions.create(
        model="Front", messages=[user("hello")], stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 15
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-2].choices[0].finish_reason == "stop"


async def test_stream_helper_rebuilds_same_completion(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    for _ in range(2):
        model.calls([("open_door", {"door": "1"}, "c1"), ("open_door", {"door": "2"}, "c2")], text="At once.")
    async with openai.chat.completions.stream(
        model="Front", messages=[user("Open both.")], tools=[DOOR], stream_options={"include_usage": True}
    ) as stream:
        types = {event.type async for event in stream}
        streamed = await stream.get_final_completion()
    assert {"content.delta", "content.done", "tool_calls.function.arguments.done", "chunk"} <= types
    whole = await openai.chat.completions.create(model="Front", messages=[user("Open both.")], tools=[DOOR])
    assert streamed.choices[0].finish_reason == whole.choices[0].finish_reason == "tool_calls"
    shown = [
        [(call.id, call.function.name, call.function.arguments) for call in answer.choices[0].message.tool_calls or []]  # type: ignore[union-attr]
        for answer in (streamed, whole)
    ]
    assert shown[0] == shown[1] == [("c1", "open_door", '{"door": "1"}'), ("c2", "open_door", '{"door": "2"}')]
    assert streamed.choices[0].message.content == whole.choices[0].message.content == "At once."
    assert streamed.usage == whole.usage


async def test_parse_requests_and_reads_format(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    model.say('{"city": "Rome", "degrees": 30}')
    answer = await openai.chat.completions.with_raw_response.parse(
        model="Front", messages=[user("Weather?")], response_format=Weather
    )
    assert answer.parse().choices[0].message.parsed == Weather(city="Rome", degrees=30)
    options = await read_options(service, answer.headers["x-session-id"])
    asked = options["response_format"]
    assert (asked["type"], asked["json_schema"]["name"]) == ("json_schema", "Weather")
    assert (asked["json_schema"]["strict"], set(asked["json_schema"]["schema"]["properties"])) == (
        True,
        {"city", "degrees"},
    )


async def read_options(service: RunningServer, session: str) -> Any:
    events = await service.events(f"/v1/sessions/{session}")
    return next(event["data"]["options"] for event in events if event["type"] == "run.started")


async def test_settings_are_recorded_with_the_run(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    settings: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "seed": 7,
        "stop": ["END"],
        "max_completion_tokens": 100,
        "logit_bias": {"50256": -100},
        "reasoning_effort": "low",
        "verbosity": "low",
    }
    model.say("Hi.")
    answer = await openai.chat.completions.with_raw_response.create(
        model="Front",
        messages=[user("hello")],
        n=1,
        modalities=["text"],
        logprobs=False,
        tools=[DOOR],
        tool_choice={"type": "function", "function": {"name": "open_door"}},
        parallel_tool_calls=True,
        metadata={"a": "b"},
        user="u",
        service_tier="auto",
        **settings,
    )
    options = await read_options(service, answer.headers["x-session-id"])
    assert options["model_settings"] == settings
    assert options["tool_choice"] == {"type": "function", "function": {"name": "open_door"}}
    assert options["parallel_tool_calls"] is True
    assert (options["request"]["metadata"], options["request"]["user"]) == ({"a": "b"}, "u")
    sent = model.requests[0]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "open_door"}}
    # The same run as a response.
    name = answer.parse().id.replace("chatcmpl-", "resp_")
    response = await openai.responses.retrieve(name)
    assert (response.temperature, response.max_output_tokens, response.metadata) == (0.5, 100, {"a": "b"})
    assert response.output_text == "Hi."


async def test_allowed_tools_are_passed_on(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    choice: Any = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "open_door"}}]},
    }
    model.say("Hi.")
    await openai.chat.completions.create(model="Front", messages=[user("hello")], tools=[DOOR], tool_choice=choice)
    assert model.requests[0]["tool_choice"] == choice


async def test_forced_call_is_forced_once(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    asked: Any = {"model": "Front", "tools": [DOOR], "tool_choice": "required"}
    asked["extra_headers"] = {"X-Session-Id": "forced"}
    model.call("get_weather", {"city": "Rome"})
    model.call("open_door", {"floor": 1})
    called = await openai.chat.completions.create(messages=[user("Go out.")], **asked)
    [call] = called.choices[0].message.tool_calls or []
    model.call("get_weather", {"city": "Rome"})
    model.say("It is open.")
    messages: list[Any] = [user("Go out."), called.choices[0].message.model_dump(exclude_none=True)]
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "open"})
    answer = await openai.chat.completions.create(messages=messages, **asked)
    assert answer.choices[0].message.content == "It is open."
    assert [request["tool_choice"] for request in model.requests] == ["required", "auto"] * 2


async def test_agent_functions_and_handoffs_hidden(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    for _ in range(2):
        model.call("get_weather", {"city": "Rome"}, text="I look.")
        model.call("transfer_to_sales")
        model.say("Sales here.")
    found = await openai.chat.completions.create(model="Front", messages=[user("hello")])
    choice = found.choices[0]
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert choice.message.content == "I look.\n\nSales here."
    assert found.usage is not None
    assert found.usage.total_tokens == 45
    stream = await openai.chat.completions.create(model="Front", messages=[user("hello")], stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == choice.message.content
    assert not any(chunk.choices[0].delta.tool_calls for chunk in chunks)


@pytest.mark.parametrize("finish_reason", ["length", "content_filter"])
async def test_cut_short_answer_says_so(openai: AsyncOpenAI, model: ScriptedModel, finish_reason: str) -> None:
    model.say("It is", finish_reason=finish_reason)
    model.say("It is", finish_reason=finish_reason)
    found = await openai.chat.completions.create(model="Front", messages=[user("hello")])
    assert (found.choices[0].finish_reason, found.choices[0].message.content) == (finish_reason, "It is")
    # What the filter stopped has cost as much as what it has not.
    assert found.usage is not None
    assert found.usage.total_tokens == 15
    stream = await openai.chat.completions.create(
        model="Front", messages=[user("hello")], stream=True, stream_options={"include_usage": True}
    )
    *_, last, counted = [chunk async for chunk in stream]
    assert last.choices[0].finish_reason == finish_reason
    assert counted.usage == found.usage
    response = await openai.responses.retrieve(found.id.replace("chatcmpl-", "resp_"))
    assert response.status == "incomplete"
    assert response.error is None
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == {"length": "max_output_tokens"}.get(finish_reason, finish_reason)


async def test_message_parts_sent_unchanged(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    parts: Any = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}},
    ]
    model.say("A dot.")
    await openai.chat.completions.create(model="Front", messages=[user(parts)])
    assert model.requests[0]["messages"][-1] == {"role": "user", "content": parts}


async def test_refusal_reported_streamed_and_whole(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    message = {"role": "assistant", "content": None, "refusal": "I will not."}
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choices = [
        {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    model.chunks([{**chunk, **choice} for choice in choices])
    whole = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    model.raw({**whole, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    stream = await openai.chat.completions.create(model="Front", messages=[user("hello")], stream=True)
    chunks = [found async for found in stream]
    assert "".join(found.choices[0].delta.refusal or "" for found in chunks) == "I will not."
    found = await openai.chat.completions.create(model="Front", messages=[user("hello")])
    assert (found.choices[0].message.refusal, found.choices[0].message.content) == ("I will not.", None)


async def test_cut_emoji_streamed_once_whole(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in ("hi \ud83d", "\ude00.")]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    for _ in range(2):
        model.chunks([f"data: {json.dumps(chunk)}\n\n" for chunk in chunks])
    stream = await openai.chat.completions.create(model="Front", messages=[user("hello")], stream=True)
    texts = [chunk.choices[0].delta.content async for chunk in stream]
    assert [text for text in texts if text] == ["hi ", "\U0001f600."]
    events = await openai.responses.create(model="Front", input="hello", stream=True)
    deltas = [event.delta async for event in events if event.type == "response.output_text.delta"]
    assert deltas == ["hi ", "\U0001f600."]


async def test_what_is_not_stored_is_nowhere(openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer) -> None:
    model.say("hello")
    model.say("hello")
    said: Any = [user("a"), {"role": "assistant", "content": "b"}, user("c")]
    answer = await openai.chat.completions.with_raw_response.create(model="Front", messages=said, store=False)
    assert answer.parse().choices[0].message.content == "hello"
    assert "x-session-id" not in answer.headers
    stream = await openai.chat.completions.create(model="Front", messages=said, store=False, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "hello"
    assert [message["content"] for message in model.requests[0]["messages"][1:]] == ["a", "b", "c"]
    assert (await service.get("/v1/sessions")).json()["data"] == []
