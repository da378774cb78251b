"""Requests on the wire, and how often: official clients send the request's own bytes, others get arguments."""

from __future__ import annotations

import asyncio
import json
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from msgspec import UNSET
from openai import APIConnectionError, AsyncAzureOpenAI, AsyncOpenAI, OpenAI

from swarmkeep.events.codec import Json, digest
from swarmkeep.events.messages import Entry
from swarmkeep.events.records import CompletionRecord
from swarmkeep.events.state import State
from swarmkeep.models.clients import (
    AsyncOpenAITransport,
    DirectTransport,
    GenericTransport,
    SyncOpenAITransport,
    Transport,
    choose_transport,
)
from swarmkeep.models.failures import ProviderFailure, describe_failure
from swarmkeep.models.model import ChatModel, Deltas, Reply, TurnFailed, normalise_message
from swarmkeep.models.replies import ReplyLimits
from swarmkeep.request.request import ModelRequest, Profile, assemble_request, build_request
from tests.runs.models.provider import open_provider
from tests.runs.swarm.runners import open_async, open_sync
from tests.support.scripted import USAGE, Chunks, ScriptedModel
from tests.support.scripted.exchange import Exchange


def make_request(
    *messages: Json, tools: str | None = None, stream: bool = False, instructions: str = "Be brief."
) -> ModelRequest:
    profile = Profile(
        name="A", model="m", instructions=instructions, tools=tools, tool_choice="auto" if tools else None
    )
    entries = [Entry(seq=n, at="", run_id=None, message=message) for n, message in enumerate(messages)]
    made = build_request(State(), profile, stream=stream)
    return assemble_request(entries, made.instructions, made.tools, made.params)


HELLO: Json = {"role": "user", "content": "hello", "sender": "user"}
SOURCE = ("m", "host")
TOOLS = '[{"type":"function","function":{"name":"look","description":"","parameters":{}}}]'


async def collect_reply(model: ChatModel, asked: ModelRequest, *, stream: bool) -> tuple[list[Json], Reply]:
    """The deltas, and the reply that they led to."""
    pieces = [piece async for piece in model.ask(asked, stream=stream)]
    *deltas, reply = pieces
    assert isinstance(reply, Reply)
    return [delta for piece in deltas if isinstance(piece, Deltas) for delta in piece.deltas], reply


async def expect_failure(model: ChatModel, asked: ModelRequest, *, stream: bool = False) -> TurnFailed:
    with pytest.raises(TurnFailed) as failed:
        await collect_reply(model, asked, stream=stream)
    return failed.value


CONVERSATIONS: Sequence[Sequence[Json]] = (
    (HELLO,),
    ({"role": "user", "content": "Grüße 世界 😀 \u2028 \0 \ud800"},),
    (
        HELLO,
        {
            "role": "assistant",
            "content": None,
            "sender": "A",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "rain", "tool_name": "look", "sender": "A"},
    ),
)


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("stream", [False, True])
async def test_wire_bytes_are_the_request_bytes(
    model: ScriptedModel,
    client: OpenAI,
    async_client: AsyncOpenAI,
    messages: Sequence[Json],
    tools: str | None,
    stream: bool,
) -> None:
    asked = make_request(*messages, tools=tools, stream=stream)
    model.say("Hi.")
    model.say("Hi.")
    for one in (async_client, client):
        await collect_reply(ChatModel(one), asked, stream=stream)
    assert model.raw_requests == [asked.body()] * 2
    for headers in model.headers:
        assert headers["content-type"] == "application/json"
        assert headers["authorization"] == "Bearer test"


async def test_other_clients_get_request_as_arguments(model: ScriptedModel) -> None:
    class Wrapped(AsyncOpenAI):
        """A subclass may do anything with a request, so it is asked in the usual way."""

    asked = make_request(*CONVERSATIONS[2], tools=TOOLS)
    model.say("Hi.")
    async with Wrapped(api_key="test", base_url=model.url) as wrapped:
        await collect_reply(ChatModel(wrapped), asked, stream=False)
    assert model.requests == [json.loads(asked.body())]


def test_each_client_kind_has_its_transport(client: OpenAI, async_client: AsyncOpenAI) -> None:
    azure = AsyncAzureOpenAI(api_key="x", api_version="1", azure_endpoint="http://localhost")
    assert isinstance(choose_transport(client, ReplyLimits()), SyncOpenAITransport)
    assert isinstance(choose_transport(async_client, ReplyLimits()), AsyncOpenAITransport)
    assert isinstance(choose_transport(azure, ReplyLimits()), GenericTransport)
    assert isinstance(choose_transport(object(), ReplyLimits()), GenericTransport)
    asyncio.run(azure.close())


async def test_the_settings_of_the_client_hold(model: ScriptedModel) -> None:
    model.say("Hi.")
    async with open_async(
        model.url, api_key="sk-1", organization="org", default_headers={"x-team": "swarm"}, default_query={"v": "1"}
    ) as client:
        await collect_reply(ChatModel(client), make_request(HELLO), stream=False)
    [headers] = model.headers
    assert headers["authorization"] == "Bearer sk-1"
    assert headers["openai-organization"] == "org"
    assert headers["x-team"] == "swarm"


# What comes back.


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_reply_names_its_origin(
    model: ScriptedModel, client: OpenAI, async_client: AsyncOpenAI, stream: bool, kind: str
) -> None:
    asked = make_request(HELLO, tools=TOOLS, stream=stream)
    model.say(["Hel", "lo"])
    chat = ChatModel(async_client if kind == "async" else client)
    deltas, reply = await collect_reply(chat, asked, stream=stream)
    assert "".join(delta["content"] or "" for delta in deltas) == ("Hello" if stream else "")
    assert reply.message["content"] == "Hello"
    completion = reply.completion
    assert completion.duration_ms > 0
    assert completion == CompletionRecord(
        id="chatcmpl-1",
        model="scripted-model",
        finish_reason="stop",
        usage=USAGE,
        duration_ms=completion.duration_ms,
        request=asked.record,
        time_to_first_token_ms=completion.time_to_first_token_ms,
    )
    if stream:
        assert isinstance(completion.time_to_first_token_ms, float)
        assert 0 < completion.time_to_first_token_ms <= completion.duration_ms
    else:
        assert completion.time_to_first_token_ms is UNSET
    assert asked.record.instructions == digest("Be brief.")
    assert asked.record.tools == digest(TOOLS)


async def test_deltas_arrive_before_whole_reply(model: ScriptedModel, async_client: AsyncOpenAI) -> None:
    model.hang("First, ", then="then.")
    pieces = ChatModel(async_client).ask(make_request(HELLO, stream=True), stream=True)
    texts = []
    while "First, " not in texts:
        piece = await anext(pieces)
        assert isinstance(piece, Deltas)
        texts += [delta["content"] for delta in piece.deltas]
    model.release()
    *_, last = [piece async for piece in pieces]
    assert isinstance(last, Reply)
    assert last.message["content"] == "First, then."


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_closed_stream_closes_its_connection(
    model: ScriptedModel, client: OpenAI, async_client: AsyncOpenAI, kind: str
) -> None:
    model.hang("Once upon")
    pieces = ChatModel(async_client if kind == "async" else client).ask(make_request(HELLO, stream=True), stream=True)
    await anext(pieces)
    await pieces.aclose()
    await model.wait_for_disconnects_async(1)


CALL_PIECE: Json = {"index": 0, "id": "c", "function": {"name": "look", "arguments": '{"q": 1}'}}


@pytest.mark.parametrize("delta", [{"content": "Hello"}, {"tool_calls": [CALL_PIECE]}])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_done_suffices_without_finish_reason(
    model: ScriptedModel, client: OpenAI, async_client: AsyncOpenAI, delta: Json, kind: str
) -> None:
    model.chunks([{"choices": [{"index": 0, "delta": delta}]}])
    chat = ChatModel(async_client if kind == "async" else client)
    _, reply = await collect_reply(chat, make_request(HELLO, stream=True), stream=True)
    assert reply.completion.finish_reason is None
    assert reply.message["content"] == delta.get("content")
    assert len(reply.message.get("tool_calls", [])) == len(delta.get("tool_calls", []))


@dataclass(frozen=True, kw_only=True)
class DoneAndSilent(Chunks):
    """Says that it is done, and leaves the connection open until the client closes it."""

    def write(self, exchange: Exchange) -> None:
        exchange.begin_stream()
        for event in (*self.events, b"data: [DONE]\n\n"):
            exchange.send_event(event)
        exchange.wait(threading.Event())


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_nothing_is_read_after_done(
    model: ScriptedModel, client: OpenAI, async_client: AsyncOpenAI, kind: str
) -> None:
    model.add(DoneAndSilent(events=[{"choices": [{"index": 0, "delta": {"content": "All."}}]}]))
    chat = ChatModel(async_client if kind == "async" else client)
    _, reply = await collect_reply(chat, make_request(HELLO, stream=True), stream=True)
    assert reply.message["content"] == "All."
    await model.wait_for_disconnects_async(1)


ODD_SEPARATORS = "a\u2028b\u2029c\x85d\x7fe"


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
async def test_only_newlines_end_stream_lines(
    model: ScriptedModel, client: OpenAI, async_client: AsyncOpenAI, ending: str, kind: str
) -> None:
    choice = {"index": 0, "delta": {"content": ODD_SEPARATORS}, "finish_reason": "stop"}
    text = f"data: {json.dumps({'choices': [choice]}, ensure_ascii=False)}{ending}{ending}".encode()
    # In pieces of one byte, so that lines and characters are cut everywhere.
    model.chunks([text[at : at + 1] for at in range(len(text))])
    chat = ChatModel(async_client if kind == "async" else client)
    _, reply = await collect_reply(chat, make_request(HELLO, stream=True), stream=True)
    assert reply.message["content"] == ODD_SEPARATORS


CHUNK_IN_LINES = json.dumps(
    {"choices": [{"index": 0, "delta": {"content": "Hi."}, "finish_reason": "stop"}]}, indent=1
).split("\n")


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_events_of_several_lines_are_read(
    model: ScriptedModel, client: OpenAI, async_client: AsyncOpenAI, ending: str, kind: str
) -> None:
    event = [*(f"data: {line}" for line in CHUNK_IN_LINES), "", ""]
    lines = [
        "\ufeff: a comment",
        "",
        "event: message",
        "id: 1",
        *event,
        "retry: 5",
        "data:",
        "",
        "data: [DONE]",
        "",
        "",
    ]
    text = ending.join(lines).encode()
    for size in (1, 7, len(text)):
        model.chunks([text[at : at + size] for at in range(0, len(text), size)], done=False)
        chat = ChatModel(async_client if kind == "async" else client)
        _, reply = await collect_reply(chat, make_request(HELLO, stream=True), stream=True)
        assert reply.message["content"] == "Hi."


async def test_event_may_be_named_error(model: ScriptedModel, async_client: AsyncOpenAI) -> None:
    model.chunks(['event: error\ndata: {"message": "overloaded", "code": 529}\n\n'])
    failed = await expect_failure(ChatModel(async_client), make_request(HELLO, stream=True), stream=True)
    assert (failed.error.message, failed.error.provider_status) == ("overloaded", 529)


async def test_done_amid_a_call_is_no_end(model: ScriptedModel, async_client: AsyncOpenAI) -> None:
    cut = {**CALL_PIECE, "function": {"name": "look", "arguments": '{"q": '}}
    model.chunks([{"choices": [{"index": 0, "delta": {"tool_calls": [cut]}}]}])
    failed = await expect_failure(ChatModel(async_client), make_request(HELLO, stream=True), stream=True)
    assert failed.error.code == "provider_stream_cut"


async def test_connection_cut_after_reply_loses_nothing(model: ScriptedModel, async_client: AsyncOpenAI) -> None:
    model.chunks([{"choices": [{"index": 0, "delta": {"content": "All."}, "finish_reason": "stop"}]}], drop=True)
    _, reply = await collect_reply(ChatModel(async_client), make_request(HELLO, stream=True), stream=True)
    assert (reply.message["content"], reply.completion.usage) == ("All.", None)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_non_streaming_server_is_understood(
    model: ScriptedModel, client: OpenAI, async_client: AsyncOpenAI, kind: str
) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "All at once."}, "finish_reason": "stop"}
    model.raw({"id": "x", "choices": [choice]})
    chat = ChatModel(async_client if kind == "async" else client)
    deltas, reply = await collect_reply(chat, make_request(HELLO, stream=True), stream=True)
    assert [delta["content"] for delta in deltas] == [reply.message["content"]] == ["All at once."]


async def test_double_may_answer_in_any_form() -> None:
    message = openai.types.chat.ChatCompletionMessage(role="assistant", content="hi")
    whole: Json = {"choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}
    completion = openai.types.chat.ChatCompletion.construct(
        id="x", choices=[{"message": message, "finish_reason": "stop", "index": 0}]
    )

    async def later() -> Any:
        return whole

    for answer in (lambda: whole, lambda: completion, later):
        reply = (await collect_reply(ChatModel(make_double_client(answer)), make_request(HELLO), stream=False))[1]
        assert reply.message["content"] == "hi"


async def test_double_may_stream_from_list() -> None:
    chunks = [{"choices": [{"delta": {"content": "hi"}}]}, {"choices": [{"delta": {}, "finish_reason": "stop"}]}]
    deltas, reply = await collect_reply(
        ChatModel(make_double_client(lambda: chunks)), make_request(HELLO, stream=True), stream=True
    )
    assert [delta["content"] for delta in deltas] == ["hi"]
    assert reply.message["content"] == "hi"


@pytest.mark.parametrize(
    ("answer", "stream", "code", "told"),
    [
        (lambda: 5, False, "provider_malformed", "int where a completion was expected"),
        (lambda: 5, True, "provider_malformed", "gave no stream"),
        (lambda: [5], True, "provider_malformed", "int where a completion was expected"),
        (lambda: {"choices": []}, False, "provider_empty_answer", "no choice"),
    ],
)
async def test_a_double_that_answers_nonsense(answer: Any, stream: bool, code: str, told: str) -> None:
    failed = await expect_failure(
        ChatModel(make_double_client(answer)), make_request(HELLO, stream=stream), stream=stream
    )
    assert failed.error.code == code
    assert told in failed.error.message


async def test_what_a_double_raises_is_named() -> None:
    def refuse() -> Any:
        raise ZeroDivisionError("no")

    failed = await expect_failure(ChatModel(make_double_client(refuse)), make_request(HELLO))
    assert (failed.error.code, failed.error.message) == ("model_client_error", "ZeroDivisionError: no")
    assert failed.error.retryable is False


def make_double_client(answer: Any) -> Any:
    completions = SimpleNamespace(create=lambda **arguments: answer())
    return SimpleNamespace(chat=SimpleNamespace(completions=completions))


# Asking again.


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
async def test_the_clients_retries_are_kept(model: ScriptedModel, status: int, stream: bool) -> None:
    model.fail(status, headers={"retry-after-ms": "1"})
    model.fail(status, headers={"retry-after-ms": "1"})
    model.say("At last.")
    async with open_async(model.url, max_retries=2) as client:
        _, reply = await collect_reply(ChatModel(client), make_request(HELLO, stream=stream), stream=stream)
    assert reply.message["content"] == "At last."
    assert model.raw_requests == [model.raw_requests[0]] * 3


def test_the_synchronous_client_retries_too(model: ScriptedModel) -> None:
    async def ask() -> str:
        with open_sync(model.url, max_retries=1) as client:
            _, reply = await collect_reply(ChatModel(client), make_request(HELLO), stream=False)
        return str(reply.message["content"])

    model.fail(500, headers={"retry-after-ms": "1"})
    model.say("At last.")
    assert asyncio.run(ask()) == "At last."


# What a provider counts.


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("usage", "kept"),
    [([], None), ([1], None), ("many", None), (7, None), (True, None), ({}, {}), ({"cost": 0.5}, {"cost": 0.5})],
)
async def test_non_object_usage_is_left_out(
    model: ScriptedModel, async_client: AsyncOpenAI, usage: Any, kept: Json | None, stream: bool
) -> None:
    model.say("Hi.", usage=usage)
    _, reply = await collect_reply(ChatModel(async_client), make_request(HELLO, stream=stream), stream=stream)
    assert (reply.message["content"], reply.completion.usage or None) == ("Hi.", kept or None)


# How a message is kept.


def test_message_keeps_sender_and_drops_nulls() -> None:
    kept = normalise_message({"role": "model", "content": "hi", "refusal": None, "logprobs": [1]}, "A", (), SOURCE)
    attached = {"model": "m", "server": "host", "message": {"logprobs": [1]}}
    assert kept == {"role": "assistant", "content": "hi", "provider": attached, "sender": "A"}


def test_model_cannot_choose_its_sender() -> None:
    assert normalise_message({"content": "hi", "sender": "B"}, "A", (), SOURCE)["sender"] == "A"


def test_calls_are_kept_in_one_shape() -> None:
    message = {
        "tool_calls": [
            {"id": 7, "function": {"name": "look", "arguments": {"q": 1}}, "index": 0},
            {"id": "used", "function": {"name": None, "arguments": None}},
            None,
            {"function": "nonsense"},
            {"id": "half \ud83d", "function": {"name": "look", "arguments": "{}"}},
        ]
    }
    kept = normalise_message(message, "A", {"used"}, SOURCE)["tool_calls"]
    assert [call["function"] for call in kept] == [
        {"name": "look", "arguments": '{"q":1}'},
        {"name": "", "arguments": "{}"},
        {"name": "", "arguments": "{}"},
        {"name": "look", "arguments": "{}"},
    ]
    assert kept[0]["id"] == "7"
    assert len({call["id"] for call in kept} | {"used", "", "half \ud83d"}) == 7
    assert all(call.keys() == {"id", "type", "function"} and call["type"] == "function" for call in kept)


# The short way to a provider: what it sends, and what it makes of failures, is what the official client does.


STREAM = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
async def provider(model: ScriptedModel) -> AsyncIterator[AsyncOpenAI]:
    async with open_provider(model.url, timeout=1) as client:
        yield client


def open_both(client: AsyncOpenAI) -> tuple[Transport, Transport]:
    short = choose_transport(client, ReplyLimits())
    assert isinstance(short, DirectTransport)
    return short, AsyncOpenAITransport(client, ReplyLimits())


async def ask(transport: Transport, *, stream: bool) -> None:
    request = make_request(HELLO, stream=stream)
    if not stream:
        await transport.complete(request)
        return
    async with transport.open_stream(request) as chunks:
        async for _ in chunks:
            pass


async def find_failure(transport: Transport, *, stream: bool) -> tuple[ProviderFailure, type[Exception]]:
    try:
        await ask(transport, stream=stream)
    except Exception as error:
        return describe_failure(error), type(error)
    raise AssertionError("the call was answered")


@STREAM
async def test_requests_match_the_official_client(model: ScriptedModel, provider: AsyncOpenAI, stream: bool) -> None:
    for transport in open_both(provider) * 2:
        model.say("Hello.")
        await ask(transport, stream=stream)
    first, *others = model.headers
    assert first["authorization"] == "Bearer test"
    assert first["x-stainless-retry-count"] == "0"
    for other in others:
        assert other == first
    assert len({bytes(body) for body in model.raw_requests}) == 1


async def test_address_credentials_are_sent(model: ScriptedModel) -> None:
    """The official client refuses them where its requests go over aiohttp."""
    async with open_provider(model.url.replace("//", "//ann:s%20cret@")) as client:
        model.say("Hello.")
        await ask(choose_transport(client, ReplyLimits()), stream=False)
    assert model.headers[0]["authorization"] == f"Basic {b64encode(b'ann:s cret').decode()}"


FAILURES: dict[str, Callable[[ScriptedModel], None]] = {
    "bad request": lambda model: model.fail(400, message="no such parameter"),
    "wrong key": lambda model: model.fail(401, message="who are you?"),
    "too long": lambda model: model.fail(400, message="this model's maximum context length is 8 tokens"),
    "busy": lambda model: model.fail(429, headers={"retry-after": "7"}),
    "down": lambda model: model.fail(503),
    "a header beyond ASCII": lambda model: model.fail(500, headers={"x-trace": "\xff\xed\xa0"}),
    "redirect": lambda model: model.raw(b"", status=307, headers={"location": "http://127.0.0.1:9/"}),
    "a page": lambda model: model.raw(b"<title>Welcome</title>", status=502, headers={"content-type": "text/html"}),
    "silence": lambda model: model.hang(),
    "half an answer": lambda model: model.hang("Once upon"),
}


@pytest.mark.long
@STREAM
@pytest.mark.parametrize("trouble", FAILURES)
async def test_failures_match_the_official_client(
    model: ScriptedModel, provider: AsyncOpenAI, trouble: str, stream: bool
) -> None:
    for _ in range(2):
        FAILURES[trouble](model)
    own, official = await asyncio.gather(*(find_failure(each, stream=stream) for each in open_both(provider)))
    assert own == official


@STREAM
async def test_unreachable_host_error_matches_official_client(stream: bool) -> None:
    async with open_provider("http://127.0.0.1:9/v1") as client:
        (failure, kind), (official, _) = [await find_failure(each, stream=stream) for each in open_both(client)]
    assert failure == official
    assert kind is APIConnectionError
    assert failure.error.code == "provider_unreachable"


@STREAM
async def test_answers_leave_no_state_for_next_request(
    model: ScriptedModel, provider: AsyncOpenAI, stream: bool
) -> None:
    body = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hi."}}]}
    for transport in open_both(provider):
        for number in range(2):
            model.raw(body, headers={"set-cookie": f"c{number}=kept; Path=/"})
            await ask(transport, stream=stream)
    assert len(model.headers) == 4
    assert not any("cookie" in headers for headers in model.headers)


def test_proxied_requests_use_official_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:3128")
    monkeypatch.setenv("NO_PROXY", "models.example")
    limits = ReplyLimits()
    assert not isinstance(choose_transport(open_provider("https://api.example/v1"), limits), DirectTransport)
    assert isinstance(choose_transport(open_provider("https://models.example/v1"), limits), DirectTransport)
