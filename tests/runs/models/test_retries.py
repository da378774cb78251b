"""Which model calls are made again, when, and what ends the waiting."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from openai import AsyncOpenAI

from swarmkeep.events.facts import RunError
from swarmkeep.models.failures import ProviderFailure
from swarmkeep.models.model import ChatModel, Retries
from tests.runs.models.provider import open_provider
from tests.runs.models.test_transports import HELLO, collect_reply, expect_failure, make_request
from tests.support.scripted import ScriptedModel

STREAM = pytest.mark.parametrize("stream", [False, True])
QUICK = Retries(count=2, first_seconds=0.001)
ERROR = RunError(code="provider_error", message="no", retryable=True)
Script = Callable[[ScriptedModel], None]


@pytest.fixture
async def openai(model: ScriptedModel) -> AsyncIterator[AsyncOpenAI]:
    async with open_provider(model.url) as client:
        yield client


def fail_with_status(status: int) -> Script:
    return lambda model: model.fail(status)


PASSING: dict[str, Script] = {
    **{str(status): fail_with_status(status) for status in (408, 409, 429, 500, 502, 503, 529)},
    "half an answer": lambda model: model.half_stream([]),
    "generation failed": lambda model: model.say("", finish_reason="network_error"),
    "an error in the place of an answer": lambda model: model.raw({"error": {"message": "overloaded", "code": 529}}),
    "told to come again": lambda model: model.fail(418, headers={"x-should-retry": "true"}),
}


@STREAM
@pytest.mark.parametrize("trouble", PASSING)
async def test_what_passes_is_asked_again(
    model: ScriptedModel, openai: AsyncOpenAI, trouble: str, stream: bool
) -> None:
    PASSING[trouble](model)
    PASSING[trouble](model)
    model.say("At last.")
    _, reply = await collect_reply(ChatModel(openai, QUICK), make_request(HELLO, stream=stream), stream=stream)
    assert reply.message["content"] == "At last."
    assert model.raw_requests == [model.raw_requests[0]] * 3


async def test_stream_ended_before_words_is_retried(model: ScriptedModel, openai: AsyncOpenAI) -> None:
    model.chunks([{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}], drop=True)
    model.chunks([], done=False)
    model.say("At last.")
    deltas, _ = await collect_reply(ChatModel(openai, QUICK), make_request(HELLO, stream=True), stream=True)
    assert "".join(delta["content"] or "" for delta in deltas) == "At last."


@STREAM
async def test_retries_stop_at_set_number(model: ScriptedModel, openai: AsyncOpenAI, stream: bool) -> None:
    for _ in range(3):
        model.fail(503, message="busy")
    failed = await expect_failure(ChatModel(openai, QUICK), make_request(HELLO, stream=stream), stream=stream)
    assert failed.error == RunError(code="provider_error", message="busy", retryable=True, provider_status=503)


LASTING: dict[str, Script] = {
    **{str(status): fail_with_status(status) for status in (400, 401, 403, 404, 413, 422)},
    "no credit": lambda model: model.fail(429, code="insufficient_quota"),
    "told not to": lambda model: model.fail(500, headers={"x-should-retry": "false"}),
    "no JSON": lambda model: model.raw("{"),
    "a web page": lambda model: model.raw("<html>", content_type="text/html"),
    "the filter": lambda model: model.say("", finish_reason="content_filter"),
}


@STREAM
@pytest.mark.parametrize("trouble", LASTING)
async def test_permanent_failure_is_asked_once(
    model: ScriptedModel, openai: AsyncOpenAI, trouble: str, stream: bool
) -> None:
    LASTING[trouble](model)
    await expect_failure(ChatModel(openai, QUICK), make_request(HELLO, stream=stream), stream=stream)
    assert model.request_count == 1


async def test_shown_text_is_not_repeated(model: ScriptedModel, openai: AsyncOpenAI) -> None:
    model.half_stream("Half")
    failed = await expect_failure(ChatModel(openai, QUICK), make_request(HELLO, stream=True), stream=True)
    assert (failed.error.code, failed.partial) == ("provider_stream_cut", "Half")
    assert model.request_count == 1


@STREAM
async def test_timed_out_model_is_not_retried(model: ScriptedModel, stream: bool) -> None:
    model.hang()
    async with open_provider(model.url, timeout=0.05) as client:
        failed = await expect_failure(ChatModel(client, QUICK), make_request(HELLO, stream=stream), stream=stream)
    # On a busy machine the time is up before the request has arrived.
    assert failed.error.code == "provider_timeout"
    assert model.request_count <= 1


async def test_returning_model_is_found(model: ScriptedModel) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            back.start()

    back = ScriptedModel(port=port)
    back.say("Here I am.")
    async with open_provider(f"http://127.0.0.1:{port}/v1") as client:
        _, reply = await collect_reply(ChatModel(client, Retries(count=2), wait), make_request(HELLO), stream=False)
    back.close()
    assert reply.message["content"] == "Here I am."
    assert 0.25 <= waited[0] <= 0.5 <= waited[1] <= 1.0


def format_http_date(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("headers", "shortest", "longest"),
    [
        (lambda: {"retry-after": "7"}, 7, 7.7),
        (lambda: {"retry-after": "0"}, 0, 0),
        (lambda: {"retry-after-ms": "1500", "retry-after": "7"}, 1.5, 1.65),
        (lambda: {"retry-after": format_http_date(50)}, 20, 55),
        (lambda: {"retry-after": format_http_date(-30)}, 0, 0),
        (lambda: {"retry-after": "-5"}, 0, 0),
        (lambda: {"retry-after": "soon"}, 0.25, 0.5),
        (lambda: {"retry-after": "nan"}, 0.25, 0.5),
        (lambda: {"retry-after": "inf"}, 0.25, 0.5),
    ],
)
async def test_retry_after_is_respected(
    model: ScriptedModel,
    openai: AsyncOpenAI,
    status: int,
    headers: Callable[[], dict[str, str]],
    shortest: float,
    longest: float,
) -> None:
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    model.fail(status, headers=headers())
    model.say("At last.")
    await collect_reply(ChatModel(openai, Retries(count=1), wait), make_request(HELLO), stream=False)
    assert len(waited) == 1
    assert shortest <= waited[0] <= longest


@pytest.mark.parametrize("when", ["3600", "date"])
async def test_overlong_wait_fails_with_its_time(model: ScriptedModel, openai: AsyncOpenAI, when: str) -> None:
    after = format_http_date(3600) if when == "date" else when
    model.fail(429, message="Rate limit reached.", headers={"retry-after": after})
    failed = await expect_failure(ChatModel(openai, QUICK), make_request(HELLO))
    assert (failed.error.code, failed.error.retryable) == ("provider_rate_limited", True)
    said, _, seconds = failed.error.message.rpartition("the provider asks to wait ")
    assert said == "Rate limit reached; "
    assert 3500 <= float(seconds.removesuffix(" s")) <= 3600
    assert model.request_count == 1


async def test_who_is_cancelled_waits_no_longer(model: ScriptedModel, openai: AsyncOpenAI) -> None:
    model.fail(429, headers={"retry-after": "50"})
    asked = asyncio.create_task(expect_failure(ChatModel(openai, QUICK), make_request(HELLO)))
    await model.wait_for_requests_async(1)
    asked.cancel()
    await asyncio.wait([asked])
    assert asked.cancelled()


def test_pauses_are_bounded_and_jittered() -> None:
    retries = Retries(count=100)
    met = ProviderFailure(ERROR, is_transient=True)
    pauses = [[retries.choose_pause(met, retried) or 0.0 for _ in range(50)] for retried in range(80)]
    for retried, found in enumerate(pauses):
        longest = min(0.5 * 2**retried, 8.0)
        assert all(longest / 2 <= pause <= longest for pause in found)
        assert len(set(found)) > 1
    assert retries.choose_pause(met, 100) is None
    assert retries.choose_pause(ProviderFailure(ERROR), 0) is None
    assert Retries().choose_pause(met, 0) is None
