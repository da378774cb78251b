"""The short way to a provider: what it sends, and what it makes of failures, is what the official client does."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Callable

import pytest
from openai import APIConnectionError, AsyncOpenAI

from swarmkeep.models.clients import AsyncOpenAITransport, DirectTransport, Transport, choose_transport
from swarmkeep.models.failures import ProviderFailure, describe_failure
from swarmkeep.models.replies import ReplyLimits
from tests.runs.models.provider import open_provider
from tests.runs.models.test_transports import HELLO, make_request
from tests.support.scripted import ScriptedModel

STREAM = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
async def client(model: ScriptedModel) -> AsyncIterator[AsyncOpenAI]:
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
async def test_requests_match_the_official_client(model: ScriptedModel, client: AsyncOpenAI, stream: bool) -> None:
    for transport in open_both(client) * 2:
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
    model: ScriptedModel, client: AsyncOpenAI, trouble: str, stream: bool
) -> None:
    for _ in range(2):
        FAILURES[trouble](model)
    own, official = await asyncio.gather(*(find_failure(each, stream=stream) for each in open_both(client)))
    assert own == official


@STREAM
async def test_unreachable_host_error_matches_official_client(stream: bool) -> None:
    async with open_provider("http://127.0.0.1:9/v1") as client:
        (failure, kind), (official, _) = [await find_failure(each, stream=stream) for each in open_both(client)]
    assert failure == official
    assert kind is APIConnectionError
    assert failure.error.code == "provider_unreachable"


@STREAM
async def test_answers_leave_no_state_for_next_request(model: ScriptedModel, client: AsyncOpenAI, stream: bool) -> None:
    body = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hi."}}]}
    for transport in open_both(client):
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
