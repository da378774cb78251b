"""What chat completions refuse, and how runs that fail are told."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from openai import APIError, APIStatusError, AsyncOpenAI, AsyncStream, RateLimitError
from openai.types.chat import ChatCompletionChunk

from swarmkeep.events.codec import Json
from swarmkeep.http.auth import Keyring
from swarmkeep.http.metrics import ServerLimits
from swarmkeep.store.records import StoreUnavailable
from tests.http.openai_api.test_chat import user
from tests.http.server import RunningServer, scripted, start_server
from tests.support.scripted import Completion, ScriptedModel

pytestmark = pytest.mark.one_database

PATH = "/openai/v1/chat/completions"
BODY: Json = {"model": "Front", "messages": [{"role": "user", "content": "hi"}]}
CALL: Json = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
FUNCTION: Json = {"type": "function", "function": {"name": "f"}}

# A request's field, a value that it cannot have, and what the refusal names.
WRONG: list[tuple[str, Any, str]] = [
    ("messages", None, "messages"),
    ("messages", "hi", "messages"),
    ("messages", [], "messages"),
    ("messages", [1], "messages[0]"),
    ("model", 1, "model"),
    ("store", "no", "store"),
    ("stream", "yes", "stream"),
    ("stream_options", [], "stream_options"),
    ("stream_options", {"include_usage": 1}, "stream_options.include_usage"),
    ("stream_options", {"x": True}, "stream_options.x"),
    ("metadata", {"a": 1}, "metadata"),
    ("metadata", "a", "metadata"),
    ("tools", {}, "tools"),
    ("tools", [1], "tools[0]"),
    ("tools", [{"type": "web_search"}], "tools[0].type"),
    ("tools", [{"type": "function"}], "tools[0].function.name"),
    ("tools", [{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
    ("tools", [{"type": "function", "function": {"name": "f", "parameters": 1}}], "tools[0].function.parameters"),
    ("tools", [{"type": "function", "function": {"name": "get_weather"}}], "tools[0]"),
    ("tools", [FUNCTION, FUNCTION], "tools[1].function.name"),
    ("tool_choice", 1, "tool_choice"),
    ("tool_choice", "any", "tool_choice"),
    ("tool_choice", {"type": "function", "name": "f"}, "tool_choice"),
    ("tool_choice", {"type": "custom", "custom": {"name": "f"}}, "tool_choice"),
    (
        "tool_choice",
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [1]}},
        "tool_choice.allowed_tools.tools[0]",
    ),
    ("parallel_tool_calls", "yes", "parallel_tool_calls"),
    ("response_format", "json", "response_format"),
    ("response_format", {"type": "xml"}, "response_format"),
    ("response_format", {"type": ["text"]}, "response_format"),
    ("response_format", {"type": "json_schema"}, "response_format"),
    ("response_format", {"type": "text", "x": 1}, "response_format.x"),
    ("response_format", {"type": "json_schema", "json_schema": {"name": 1}}, "response_format"),
    (
        "response_format",
        {"type": "json_schema", "json_schema": {"name": "a", "schema": []}},
        "response_format.json_schema.schema",
    ),
    (
        "response_format",
        {"type": "json_schema", "json_schema": {"name": "a", "strict": "yes"}},
        "response_format.json_schema.strict",
    ),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "x": 1}}, "response_format.json_schema.x"),
    ("temperature", "hot", "temperature"),
    ("temperature", 3, "temperature"),
    ("top_p", 2, "top_p"),
    ("presence_penalty", -3, "presence_penalty"),
    ("frequency_penalty", [], "frequency_penalty"),
    ("seed", 1.5, "seed"),
    ("seed", 2**70, "seed"),
    ("stop", 1, "stop"),
    ("stop", ["a"] * 5, "stop"),
    ("stop", [1], "stop[0]"),
    ("max_tokens", 0, "max_tokens"),
    ("max_completion_tokens", "many", "max_completion_tokens"),
    ("logit_bias", {"1": 101}, "logit_bias"),
    ("logit_bias", [], "logit_bias"),
    ("reasoning_effort", 1, "reasoning_effort"),
    ("verbosity", "loud", "verbosity"),
    ("user", 1, "user"),
    ("safety_identifier", "x" * 65, "safety_identifier"),
    ("prompt_cache_key", {}, "prompt_cache_key"),
    ("prompt_cache_retention", 1, "prompt_cache_retention"),
    ("service_tier", 1, "service_tier"),
    ("n", 2, "n"),
    ("n", "1", "n"),
    ("modalities", ["audio"], "modalities[0]"),
    ("modalities", "text", "modalities"),
    ("logprobs", True, "logprobs"),
    ("top_logprobs", 1, "top_logprobs"),
    ("audio", {"voice": "a", "format": "wav"}, "audio"),
    ("functions", [], "functions"),
    ("function_call", "auto", "function_call"),
    ("prediction", {}, "prediction"),
    ("web_search_options", {}, "web_search_options"),
    ("moderation", {}, "moderation"),
    ("prompt_cache_options", {}, "prompt_cache_options"),
    ("top_k", 1, "top_k"),
]

# A message that cannot be, and what the refusal names in it.
WRONG_MESSAGES: list[tuple[Json, str]] = [
    ({}, ".role"),
    ({"role": 1, "content": "hi"}, ".role"),
    ({"role": ["user"], "content": "hi"}, ".role"),
    ({"role": "function", "name": "f", "content": "hi"}, ".role"),
    ({"role": "user"}, ".content"),
    ({"role": "user", "content": 1}, ".content"),
    ({"role": "user", "content": []}, ".content"),
    ({"role": "user", "content": [1]}, ".content[0].type"),
    ({"role": "user", "content": [{"type": ["text"]}]}, ".content[0].type"),
    ({"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}, ".content[0].type"),
    ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text"}]}, ".content[1].text"),
    ({"role": "user", "content": [{"type": "image_url", "image_url": 1}]}, ".content[0].image_url"),
    ({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": ""}}]},
     ".content[0].input_audio.format"),
    ({"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}, ".content[0].file.file_id"),
    ({"role": "user", "content": "hi", "name": 1}, ".name"),
    ({"role": "user", "content": "hi", "tool_calls": [CALL]}, ".tool_calls"),
    ({"role": "system", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}, ".content[0].type"),
    ({"role": "developer", "content": None}, ".content"),
    ({"role": "assistant", "content": 1}, ".content"),
    ({"role": "assistant", "content": [{"type": "image_url"}]}, ".content[0]"),
    ({"role": "assistant", "content": "a", "refusal": 1}, ".refusal"),
    ({"role": "assistant", "content": "a", "audio": {"id": "x"}}, ".audio"),
    ({"role": "assistant", "content": "a", "function_call": {"name": "f", "arguments": ""}}, ".function_call"),
    ({"role": "assistant", "tool_calls": {"a": 1}}, ".tool_calls"),
    ({"role": "assistant", "tool_calls": [1]}, ".tool_calls[0]"),
    ({"role": "assistant", "tool_calls": [{**CALL, "id": ""}]}, ".tool_calls[0]"),
    ({"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}, ".tool_calls[0]"),
    ({"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {}}}]}, ".tool_calls[0]"),
    ({"role": "tool", "content": "a"}, ".tool_call_id"),
    ({"role": "tool", "content": "a", "tool_call_id": 1}, ".tool_call_id"),
    ({"role": "tool", "content": None, "tool_call_id": "c1"}, ".content"),
    ({"role": "tool", "content": [{"type": "image_url"}], "tool_call_id": "c1"}, ".content[0]"),
]  # fmt: skip


def check_refusal(answer: Any, param: str | None, status: int = 400) -> Json:
    assert answer.status_code == status, answer.text
    error: Json = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["param"] == param, error
    return error


# One server for all of them: to begin another takes ten times as long as to be refused.


async def test_wrong_field_is_named(plain: RunningServer) -> None:
    for field, value, param in WRONG:
        for store in (True, False):
            error = check_refusal(await plain.post(PATH, {**BODY, "store": store, field: value}), param)
            assert error["type"] == "invalid_request_error"
    assert (await plain.get("/v1/sessions")).json()["data"] == []


async def test_wrong_message_is_named(plain: RunningServer) -> None:
    for message, param in WRONG_MESSAGES:
        body = {**BODY, "messages": [user("hi"), message]}
        check_refusal(await plain.post(PATH, body), f"messages[1]{param}")


async def test_two_limits_of_tokens_are_refused(plain: RunningServer) -> None:
    check_refusal(await plain.post(PATH, {**BODY, "max_tokens": 1, "max_completion_tokens": 1}), "max_tokens")


async def test_neutral_values_change_nothing(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    neutral: Any = {
        "n": 1,
        "modalities": ["text"],
        "logprobs": False,
        "top_logprobs": 0,
        "audio": None,
        "functions": None,
        "function_call": None,
        "prediction": None,
        "moderation": None,
        "response_format": {"type": "text"},
        "tools": [],
        "stream_options": {"include_usage": None, "include_obfuscation": False},
    }
    model.say("Hi.")
    answer = await openai.chat.completions.create(model="Front", messages=[user("hi")], extra_body=neutral)
    assert answer.choices[0].message.content == "Hi."


async def test_answer_may_be_sent_back_verbatim(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    sent_back: Any = {
        "role": "assistant",
        "content": "Hello.",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
        "reasoning_content": "Hm.",
        "name": "Front",
    }
    model.say("Hi.")
    await openai.chat.completions.create(model="Front", messages=[user("a"), sent_back, user("b")])
    assert model.requests[0]["messages"][2] == {"role": "assistant", "content": "Hello.", "name": "Front"}


@pytest.mark.parametrize(
    ("failure", "status", "code", "kind"),
    [
        (429, 429, "provider_rate_limited", "rate_limit_error"),
        (500, 502, "provider_error", "server_error"),
        (401, 502, "provider_authentication", "server_error"),
        (400, 502, "provider_bad_request", "server_error"),
        # Clients know these by the status: they shorten the conversation, and do not ask again.
        (400, 400, "context_length_exceeded", "invalid_request_error"),
        (400, 400, "content_filter", "invalid_request_error"),
    ],
)
@pytest.mark.parametrize("store", [True, False])
async def test_failing_run_is_an_error(
    openai: AsyncOpenAI, model: ScriptedModel, store: bool, failure: int, status: int, code: str, kind: str
) -> None:
    retrying = openai.with_options(max_retries=2)
    model.fail(failure, code=code)
    with pytest.raises(APIStatusError) as failed:
        await retrying.chat.completions.create(
            model="Front", messages=[user("hi")], store=store, extra_headers={"X-Session-Id": "bad"}
        )
    error = failed.value
    assert (error.status_code, error.code, error.type, error.param) == (status, code, kind, None)
    assert error.response.headers.get("x-session-id") == ("bad" if store else None)
    # It was not asked again by the client: the run and its input are recorded already.
    assert len(model.requests) == 1


@pytest.mark.parametrize("store", [True, False])
async def test_early_stream_failure_refused_like_answer(openai: AsyncOpenAI, model: ScriptedModel, store: bool) -> None:
    retrying = openai.with_options(max_retries=2)
    model.fail(429, code="insufficient_quota")
    with pytest.raises(RateLimitError) as failed:
        await retrying.chat.completions.create(
            model="Front", messages=[user("hi")], stream=True, store=store, extra_headers={"X-Session-Id": "bad"}
        )
    error = failed.value
    assert (error.code, error.type) == ("provider_quota_exceeded", "rate_limit_error")
    assert error.response.headers.get("x-session-id") == ("bad" if store else None)
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("store", "cut", "status", "code", "retry"),
    [
        (False, "stopped", 503, "draining", None),
        (True, "deleted", 404, "session_not_found", "false"),
        (True, "without its database", 503, "store_unavailable", "false"),
    ],
)
async def test_early_cut_stream_has_status(
    sqlite_ready: str,
    model: ScriptedModel,
    monkeypatch: pytest.MonkeyPatch,
    store: bool,
    cut: str,
    status: int,
    code: str,
    retry: str | None,
) -> None:
    async def find_nobody() -> bool:
        raise StoreUnavailable("gone")

    model.hang()
    async with start_server(scripted(sqlite_ready, model), ServerLimits(gone_seconds=0.0)) as service:
        named = {"X-Session-Id": "cut"} if store else {}
        asked = asyncio.create_task(service.post(PATH, {**BODY, "stream": True, "store": store}, headers=named))
        await model.wait_for_requests_async(1)
        if cut == "stopped":
            await service.service.drain()
        elif cut == "deleted":
            await service.delete("/v1/sessions/cut?force=true")
        else:
            keys = service.service.keyring.keys
            monkeypatch.setattr(keys, "has_keys", find_nobody)
            # One that has asked nothing yet.
            service.service.keyring = Keyring(keys)
        answer = await asked
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert answer.headers.get("x-should-retry") == retry
        model.release()


async def test_long_silent_stream_begins_anyway(sqlite_ready: str, model: ScriptedModel) -> None:
    model.hang(then="There.")
    async with (
        start_server(scripted(sqlite_ready, model), ServerLimits(ping_seconds=0.0)) as service,
        service.client.stream("POST", PATH, json={**BODY, "stream": True}) as answer,
    ):
        assert answer.status_code == 200
        model.release()
        assert "There." in (await answer.aread()).decode()


@pytest.mark.parametrize("store", [True, False])
async def test_failing_stream_ends_with_error(
    openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel, store: bool
) -> None:
    for _ in range(2):
        model.half_stream("It is su")
    body = {**BODY, "stream": True, "store": store}
    answer = await service.post(PATH, body)
    assert answer.status_code == 200
    lines = [line for line in answer.text.split("\n\n") if line and not line.startswith(":")]
    last = json.loads(lines[-1].removeprefix("data: "))
    assert set(last) == {"error"}
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert (last["error"]["code"], last["error"]["type"]) == ("provider_stream_cut", "server_error")
    assert "[DONE]" not in answer.text
    assert 'finish_reason":"' not in answer.text
    stream = await openai.chat.completions.create(model="Front", messages=[user("hi")], stream=True, store=store)
    said: list[str] = []
    with pytest.raises(APIError, match="cut off"):
        await read_texts(stream, said)
    assert "".join(said) == "It is su"


async def read_texts(stream: AsyncStream[ChatCompletionChunk], said: list[str]) -> None:
    async for chunk in stream:
        said.append(chunk.choices[0].delta.content or "")


async def test_server_ended_run_has_own_error(sqlite_ready: str) -> None:
    with ScriptedModel(default=lambda request: Completion(gate=threading.Event())) as silent:
        async with start_server(scripted(sqlite_ready, silent, run_seconds=0.2)) as service:
            error = check_refusal(await service.post(PATH, BODY), None, 500)
    assert (error["code"], error["type"]) == ("run_timeout", "server_error")


async def test_cancelled_run_is_incomplete_answer(service: RunningServer, model: ScriptedModel) -> None:
    model.hang("One ")
    await service.session(id="stopped", agent="Front")
    async with service.stream("/v1/sessions/stopped/events") as events:
        asked = asyncio.create_task(
            service.client.post(PATH, json={**BODY, "stream": True}, headers={"X-Session-Id": "stopped"})
        )
        started = (await events.until("message.delta"))[-1]
        await service.post(f"/v1/sessions/stopped/runs/{started.data['run_id']}/cancel")
        answer = await asked
    assert '"finish_reason":"length"' in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_message_limit_is_ten_thousand(service: RunningServer, model: ScriptedModel) -> None:
    said = [user("1"), {"role": "assistant", "content": "2"}] * 4_999 + [user("last"), user("words")]
    model.say("Many.")
    answer = await service.client.post(PATH, json={**BODY, "messages": said}, headers={"X-Session-Id": "many"})
    assert answer.json()["choices"][0]["message"]["content"] == "Many."
    assert len(model.requests[0]["messages"]) == 10_001
    model.say("More.")
    said = [*said[:-2], {"role": "assistant", "content": "Many."}, user("again")]
    answer = await service.client.post(PATH, json={**BODY, "messages": said}, headers={"X-Session-Id": "many"})
    assert answer.json()["choices"][0]["message"]["content"] == "More."
    assert len(model.requests[1]["messages"]) == 10_003
    error = check_refusal(await service.post(PATH, {**BODY, "messages": [user("1")] * 10_001}), None, 413)
    assert error["code"] == "too_large"


@pytest.mark.parametrize(
    "place",
    [
        '"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"a","x":%s}}]}]',
        '"messages":[{"role":"user","content":%s}]',
        '"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f","parameters":'
        '{"x":%s}}}]',
        '"messages":[{"role":"user","content":"hi"}],"response_format":{"type":"json_schema","json_schema":{"name":"a",'
        '"schema":{"x":%s}}}',
        '"messages":[{"role":"user","content":"hi"}],"tool_choice":{"type":"allowed_tools","allowed_tools":%s}',
        '"messages":[{"role":"user","content":"hi"}],"metadata":%s',
        '"messages":[{"role":"user","content":"hi"}],"stream_options":{"include_usage":%s}',
    ],
)
@pytest.mark.parametrize("depth", [2_000, 20_000])
async def test_what_is_nested_deeply_is_refused(plain: RunningServer, place: str, depth: int) -> None:
    body = '{"model":"Front",%s}' % (place % ("[" * depth + "]" * depth))
    answer = await plain.client.post(PATH, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 413), answer.text
    assert answer.json()["error"]["code"] in ("invalid_request", "too_large")


async def test_odd_texts_kept_unchanged(service: RunningServer, model: ScriptedModel) -> None:
    odd = "a\u0000b \ud800 e\u0301 \u2028"
    model.say("Odd.")
    body = json.dumps({**BODY, "messages": [user(odd)], "user": odd, "metadata": {"session_id": "odd", "note": odd}})
    answer = await service.client.post(PATH, content=body, headers={"Content-Type": "application/json"})
    assert answer.json()["choices"][0]["message"]["content"] == "Odd."
    told = (await service.get("/v1/sessions/odd/messages")).content
    assert json.loads(told)["data"][0]["content"] == odd
    assert (await service.get("/v1/sessions/odd/verify")).json()["valid"] is True
