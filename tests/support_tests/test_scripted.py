"""The scripted model keeps to its script, and says so when its caller does not."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support.scripted import USAGE, Call, ScriptedModel

ROOT = Path(__file__).parents[2]
ASK: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as running:
        yield running


@pytest.fixture
def client(model: ScriptedModel) -> Iterator[OpenAI]:
    with OpenAI(api_key="test", base_url=model.url, max_retries=0) as made:
        yield made


@pytest.fixture
async def async_client(model: ScriptedModel) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(api_key="test", base_url=model.url, max_retries=0) as made:
        yield made


def ask_for_text(client: OpenAI, content: str = "hello") -> str | None:
    completion = client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": content}])
    return completion.choices[0].message.content


def test_replies_follow_written_order(model: ScriptedModel, client: OpenAI) -> None:
    model.say("one")
    model.say("two")
    assert [ask_for_text(client), ask_for_text(client)] == ["one", "two"]
    assert [request["messages"][0]["content"] for request in model.requests] == ["hello", "hello"]
    assert json.loads(model.raw_requests[0]) == model.requests[0]
    assert model.headers[0]["authorization"] == "Bearer test"


def test_calls_keep_ids_and_arguments(model: ScriptedModel, client: OpenAI) -> None:
    model.calls([("add", {"a": 1}, "call_1"), Call("add", "{broken"), {"name": "stop"}], text="Working.")
    choice = client.chat.completions.create(**ASK).choices[0]
    calls = [call for call in choice.message.tool_calls or () if call.type == "function"]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Working."
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("add", '{"a": 1}'),
        ("add", "{broken"),
        ("stop", "{}"),
    ]
    assert calls[0].id == "call_1"
    assert len({call.id for call in calls}) == 3


def test_stream_carries_text_calls_usage(model: ScriptedModel, client: OpenAI) -> None:
    model.call("get_weather", {"city": "Rome"}, id="call_1", text="Let me see.")
    chunks = list(client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    fragments = [call for delta in deltas for call in delta.tool_calls or ()]
    assert "".join(delta.content or "" for delta in deltas) == "Let me see."
    assert fragments[0].id == "call_1"
    assert "".join((call.function and call.function.arguments) or "" for call in fragments) == '{"city": "Rome"}'
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == USAGE["total_tokens"]


def test_stream_usage_must_be_requested(model: ScriptedModel, client: OpenAI) -> None:
    model.say(["Hel", "lo"])
    chunks = list(client.chat.completions.create(**ASK, stream=True))
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", "Hel", "lo", None]
    assert all(chunk.usage is None for chunk in chunks)


def test_exact_chunks_are_sent_unchanged(model: ScriptedModel, client: OpenAI) -> None:
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
    model.chunks([chunk, b": ping\n\n", {**chunk, "id": "y"}])
    assert [got.id for got in client.chat.completions.create(**ASK, stream=True)] == ["x", "y"]


def test_raw_bodies_go_out_untouched(model: ScriptedModel) -> None:
    model.raw(b"<html>bad gateway</html>", status=502, content_type="text/html")
    model.raw({"anything": 1}, headers={"x-request-id": "req_1"})
    first = httpx2.post(f"{model.url}/chat/completions", json=ASK)
    second = httpx2.post(f"{model.url}/chat/completions", json=ASK)
    assert (first.status_code, first.content) == (502, b"<html>bad gateway</html>")
    assert (second.json(), second.headers["x-request-id"]) == ({"anything": 1}, "req_1")


def test_failures_look_like_the_providers(model: ScriptedModel, client: OpenAI) -> None:
    model.fail(429, code="rate_limit_exceeded", headers={"retry-after": "0"})
    with pytest.raises(openai.RateLimitError) as refused:
        ask_for_text(client)
    assert refused.value.code == "rate_limit_exceeded"
    assert refused.value.response.headers["retry-after"] == "0"


def test_a_retry_takes_the_next_reply(model: ScriptedModel, client: OpenAI) -> None:
    model.fail(503, headers={"retry-after-ms": "1"})
    model.say("second time lucky")
    assert ask_for_text(client.with_options(max_retries=1)) == "second time lucky"


@pytest.mark.parametrize("stream", [False, True])
def test_half_an_answer_breaks_the_connection(model: ScriptedModel, stream: bool) -> None:
    model.half_stream("partial te")
    received: list[bytes] = []
    body = {**ASK, "stream": stream}
    with (
        httpx2.stream("POST", f"{model.url}/chat/completions", json=body) as response,
        pytest.raises(httpx2.RemoteProtocolError),
    ):
        received.extend(response.iter_raw())
    assert b"partial " in b"".join(received)
    assert b"[DONE]" not in b"".join(received)


def test_the_same_connection_serves_many_requests(model: ScriptedModel) -> None:
    with httpx2.Client() as http:
        for number in range(3):
            model.say(str(number))
            http.post(f"{model.url}/chat/completions", json=ASK)
            assert http.get(f"{model.url}/models").json()["data"][0]["id"] == "scripted-model"


def test_replies_can_wait_for_fitting_request(model: ScriptedModel, client: OpenAI) -> None:
    for name in ("a", "b", "c"):
        model.say(f"for {name}", when=lambda request, name=name: request["messages"][-1]["content"] == name)
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda name: ask_for_text(client, name), "cab")) == ["for c", "for a", "for b"]


async def test_a_gate_holds_the_reply_back(model: ScriptedModel, async_client: AsyncOpenAI) -> None:
    gate = threading.Event()
    model.say("at last", gate=gate)
    waiting = asyncio.create_task(async_client.chat.completions.create(**ASK))
    await model.wait_for_requests_async(1)
    assert not waiting.done()
    gate.set()
    assert (await waiting).choices[0].message.content == "at last"


async def test_stream_hangs_halfway_until_released(model: ScriptedModel, async_client: AsyncOpenAI) -> None:
    model.hang("one ", then="two")
    seen: list[str] = []
    async for chunk in await async_client.chat.completions.create(**ASK, stream=True):
        if content := chunk.choices[0].delta.content:
            seen.append(content)
        if seen == ["one "]:
            model.release()
    assert seen == ["one ", "two"]


async def test_disconnected_client_is_noticed(model: ScriptedModel, async_client: AsyncOpenAI) -> None:
    model.hang()
    waiting = asyncio.create_task(async_client.chat.completions.create(**ASK))
    await model.wait_for_requests_async(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await model.wait_for_disconnects_async(1)


async def test_leaving_ends_what_still_hangs() -> None:
    with ScriptedModel() as model:
        model.hang()
        async with AsyncOpenAI(api_key="test", base_url=model.url, max_retries=0) as client:
            waiting = asyncio.create_task(client.chat.completions.create(**ASK))
            await model.wait_for_requests_async(1)
            await asyncio.to_thread(model.close)
            with pytest.raises(openai.APIConnectionError):
                await waiting


def test_an_unused_reply_is_an_error() -> None:
    with pytest.raises(AssertionError, match=r"not used: Completion\(.*'never said'"), ScriptedModel() as model:
        model.say(["never said"])


def test_unexpected_call_is_refused_and_remembered() -> None:
    model = ScriptedModel().start()
    with OpenAI(api_key="test", base_url=model.url) as client, pytest.raises(openai.InternalServerError) as refused:
        ask_for_text(client)
    model.close()
    assert refused.value.code == "unexpected_call"
    assert model.request_count == 1
    with pytest.raises(AssertionError, match=r"request 1 was not expected.*hello"):
        model.assert_done()


def test_call_without_wanting_reply_is_unexpected() -> None:
    model = ScriptedModel().start()
    model.say("hi", when=lambda request: False)
    response = httpx2.post(f"{model.url}/chat/completions", json=ASK)
    model.close()
    assert response.status_code == 500
    assert len(model.problems()) == 2


def test_a_failing_predicate_is_reported() -> None:
    model = ScriptedModel().start()
    model.say("hi", when=lambda request: request["no such key"])
    httpx2.post(f"{model.url}/chat/completions", json=ASK)
    model.close()
    assert "KeyError" in model.problems()[0]


def test_invalid_request_is_refused_and_remembered() -> None:
    model = ScriptedModel().start()
    body = {**ASK, "messages": [{"role": "user", "content": "hi", "sender": "me"}]}
    response = httpx2.post(f"{model.url}/chat/completions", json=body)
    model.close()
    assert response.status_code == 400
    with pytest.raises(AssertionError, match="unknown key 'sender'"):
        model.assert_done()


def test_the_checker_can_be_switched_off() -> None:
    with ScriptedModel(strict=False) as model:
        model.say("hm")
        body = {**ASK, "messages": [{"role": "user", "content": "hi", "sender": "me"}]}
        assert httpx2.post(f"{model.url}/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"[" * 20_000])
def test_non_object_body_is_refused(body: bytes) -> None:
    model = ScriptedModel().start()
    response = httpx2.post(f"{model.url}/chat/completions", content=body)
    model.close()
    assert response.status_code == 400
    assert len(model.problems()) == 1


def test_failing_test_outranks_unused_replies() -> None:
    def failing_test() -> None:
        with ScriptedModel() as model:
            model.say("never")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_test()


def test_awaiting_absent_requests_fails() -> None:
    with ScriptedModel() as model, pytest.raises(AssertionError, match="0 of 1 requests"):
        model.wait_for_requests(1, timeout=0.01)


@pytest.mark.parametrize(
    ("reply", "content", "called"),
    [("you said {}", "you said hello", None), (Call("look", {}), None, "look")],
)
def test_a_default_answers_whatever_comes(reply: str | Call, content: str | None, called: str | None) -> None:
    def echo(request: dict[str, Any]) -> str | Call:
        return reply.format(request["messages"][-1]["content"]) if isinstance(reply, str) else reply

    with ScriptedModel(default=echo, remember=False) as model, OpenAI(api_key="test", base_url=model.url) as client:
        for _ in range(3):
            message = client.chat.completions.create(**ASK).choices[0].message
            assert message.content == content
            assert [call.function.name for call in message.tool_calls or () if call.type == "function"] == (
                [called] if called else []
            )
        model.wait_for_requests(3)
        assert model.requests == []


def start_program(script: object, folder: Path) -> subprocess.Popen[str]:
    file = folder / "script.json"
    file.write_text(json.dumps(script))
    command = [sys.executable, "-m", "tests.support.scripted", "--script", str(file)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_it_runs_as_a_program(tmp_path: Path) -> None:
    entries = [
        {"call": {"name": "look", "arguments": {"at": "me"}, "id": "call_1"}},
        {"fail": 401, "code": "invalid_api_key"},
        {"say": "for b", "when": "b"},
        {"say": "for a", "when": "a", "delay": 0.001},
        {"half_stream": "no"},
    ]
    with start_program({"replies": entries, "default": {"say": "always"}}, tmp_path) as process:
        with OpenAI(api_key="test", base_url=read_url(process), max_retries=0) as client:
            assert client.chat.completions.create(**ASK).choices[0].finish_reason == "tool_calls"
            with pytest.raises(openai.AuthenticationError):
                ask_for_text(client)
            assert [ask_for_text(client, "a"), ask_for_text(client, "b")] == ["for a", "for b"]
            with pytest.raises(openai.APIConnectionError):
                ask_for_text(client)
            assert [ask_for_text(client), ask_for_text(client)] == ["always", "always"]
            report = httpx2.get(str(client.base_url.copy_with(path="/scripted/report"))).json()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert (report["unused"], report["complaints"], len(report["requests"])) == (0, [], 7)


def test_unused_replies_are_reported(tmp_path: Path) -> None:
    with start_program([{"say": "never"}], tmp_path) as process:
        read_url(process)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 1
    assert "not used" in errors


def test_the_program_refuses_a_wrong_script(tmp_path: Path) -> None:
    with start_program([{"shout": "hey"}], tmp_path) as process:
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 2
    assert "shout" in errors
