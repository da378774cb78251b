"""Failed model calls as data, and which of them are made again, when, and what ends the waiting."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import msgspec
import pytest
from openai import AsyncOpenAI

from swarmkeep.events.codec import Json
from swarmkeep.events.facts import RunError
from swarmkeep.models.failures import REMOVED, ProviderFailure, find_secrets
from swarmkeep.models.model import ChatModel, Retries
from tests.runs.models.provider import open_provider
from tests.runs.models.test_transports import HELLO, collect_reply, expect_failure, make_request
from tests.support.scripted import USAGE, ScriptedModel


@pytest.fixture
async def provider(model: ScriptedModel) -> AsyncIterator[AsyncOpenAI]:
    async with open_provider(model.url) as client:
        yield client


STREAM = pytest.mark.parametrize("stream", [False, True])


async def expect_error(client: AsyncOpenAI, stream: bool) -> RunError:
    return (await expect_failure(ChatModel(client), make_request(HELLO, stream=stream), stream=stream)).error


@STREAM
@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "provider_bad_request", False),
        (401, "provider_authentication", False),
        (403, "provider_permission", False),
        (404, "provider_not_found", False),
        (408, "provider_timeout", True),
        (409, "provider_conflict", True),
        (413, "context_length_exceeded", False),
        (418, "provider_error", False),
        (422, "provider_bad_request", False),
        (429, "provider_rate_limited", True),
        (500, "provider_error", True),
        (502, "provider_error", True),
        (503, "provider_error", True),
        (529, "provider_error", True),
    ],
)
async def test_each_status_has_its_code(
    model: ScriptedModel, provider: AsyncOpenAI, status: int, code: str, retryable: bool, stream: bool
) -> None:
    model.fail(status, message="no such luck")
    error = await expect_error(provider, stream)
    assert error == RunError(code=code, message="no such luck", retryable=retryable, provider_status=status)


@pytest.mark.parametrize(
    ("status", "provider_code", "message", "code"),
    [
        (400, "context_length_exceeded", "too long", "context_length_exceeded"),
        (400, None, "This model's maximum context length is 8192 tokens.", "context_length_exceeded"),
        (400, "content_filter", "blocked", "content_filter"),
        (404, "model_not_found", "The model `gpt-9` does not exist.", "provider_not_found"),
        (429, "insufficient_quota", "You exceeded your current quota.", "provider_quota_exceeded"),
        (500, None, "crashed: context window of the worker", "provider_error"),
    ],
)
async def test_provider_details_refine_the_error(
    model: ScriptedModel, provider: AsyncOpenAI, status: int, provider_code: str | None, message: str, code: str
) -> None:
    model.fail(status, code=provider_code, message=message)
    error = await expect_error(provider, stream=False)
    assert error.code == code
    assert error.message == message
    assert error.retryable is (status == 500)


PAGE = "<html><head><title>502 Bad\nGateway &amp; more</title></head><body><h1>nginx</h1></body></html>"


@STREAM
async def test_an_error_page_of_some_proxy(model: ScriptedModel, provider: AsyncOpenAI, stream: bool) -> None:
    model.raw(PAGE, status=502, content_type="text/html")
    error = await expect_error(provider, stream)
    assert (error.code, error.retryable, error.provider_status) == ("provider_error", True, 502)
    assert error.message == "a web page instead of an answer: 502 Bad Gateway & more"


@STREAM
async def test_web_page_instead_of_answer_fails(model: ScriptedModel, provider: AsyncOpenAI, stream: bool) -> None:
    model.raw("<html><h1>Welcome to nginx!</h1></html>", content_type="text/html; charset=utf-8")
    error = await expect_error(provider, stream)
    assert (error.code, error.retryable, error.provider_status) == ("provider_web_page", False, None)
    assert error.message.endswith("a web page instead of an answer: Welcome to nginx!")


@STREAM
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ('{"choices": [', "provider_not_json"),
        ("", "provider_not_json"),
        ("<html>", "provider_not_json"),
        ("[" * 20_000, "provider_not_json"),
        ("[]", "provider_malformed"),
        ("null", "provider_malformed"),
        ("{}", "provider_empty_answer"),
        ('{"choices": null}', "provider_empty_answer"),
        ('{"choices": []}', "provider_empty_answer"),
        ('{"choices": [{"message": null}]}', "provider_empty_answer"),
        ('{"choices": [{"text": "a completion of old"}]}', "provider_empty_answer"),
        ("\xff\xfe", "provider_not_json"),
    ],
)
async def test_an_answer_that_is_no_completion(
    model: ScriptedModel, provider: AsyncOpenAI, body: str, code: str, stream: bool
) -> None:
    model.raw(body.encode("latin-1"), content_type="application/json")
    error = await expect_error(provider, stream)
    assert (error.code, error.retryable, error.provider_status) == (code, True, None)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("<html>Welcome to nginx!</html>", "provider_stream_cut"),
        ("", "provider_stream_cut"),
        (": working on it\n\n", "provider_stream_cut"),
        ("data: [DONE]\n\n", "provider_empty_answer"),
        ('data: {"choices": []}\n\ndata: [DONE]\n\n', "provider_empty_answer"),
        ('data: {"choices": [\n\n', "provider_not_json"),
        ("data: []\n\n", "provider_malformed"),
        ('data: {"choices": [5]}\n\n', "provider_malformed"),
        ('data: {"error": {"message": "overloaded"}}\n\n', "provider_error"),
        ('data: {"error": "overloaded"}\n\n', "provider_error"),
    ],
)
async def test_a_stream_that_is_none(model: ScriptedModel, provider: AsyncOpenAI, body: str, code: str) -> None:
    model.raw(body, content_type="text/event-stream")
    error = await expect_error(provider, stream=True)
    assert (error.code, error.retryable) == (code, True)


@STREAM
@pytest.mark.parametrize(
    ("reported", "code", "retryable", "status"),
    [
        ({"message": "out of memory"}, "provider_error", True, None),
        ({"message": "out of memory", "code": 500}, "provider_error", True, 500),
        ({"message": "slow down", "code": "429"}, "provider_rate_limited", True, 429),
        ({"message": "slow down", "type": "rate_limit_error"}, "provider_rate_limited", True, None),
        ({"message": "no", "code": 401}, "provider_authentication", False, 401),
        ({"message": "no", "code": "context_length_exceeded"}, "context_length_exceeded", False, None),
        ({"message": "blocked", "code": "content_filter"}, "content_filter", False, None),
        ({"message": "no", "code": 99999999999, "type": None}, "provider_error", True, None),
    ],
)
async def test_error_instead_of_answer_fails(
    model: ScriptedModel,
    provider: AsyncOpenAI,
    reported: Json,
    code: str,
    retryable: bool,
    status: int | None,
    stream: bool,
) -> None:
    if stream:
        model.chunks([{"choices": [{"index": 0, "delta": {"content": "Half"}}]}, {"error": reported}])
    else:
        model.raw({"error": reported})
    failed = await expect_failure(ChatModel(provider), make_request(HELLO, stream=stream), stream=stream)
    expected = RunError(code=code, message=reported["message"], retryable=retryable, provider_status=status)
    assert failed.error == expected
    assert failed.partial == ("Half" if stream else "")


@STREAM
async def test_an_answer_that_the_filter_stopped(model: ScriptedModel, provider: AsyncOpenAI, stream: bool) -> None:
    model.say("This is how to", finish_reason="content_filter")
    failed = await expect_failure(ChatModel(provider), make_request(HELLO, stream=stream), stream=stream)
    assert (failed.error.code, failed.error.retryable) == ("content_filter", False)
    assert failed.partial == "This is how to"
    assert failed.usage == USAGE


FAILED = ("error", "network_error", "insufficient_system_resource", "MALFORMED_FUNCTION_CALL", "abort", "tool_calls")


@STREAM
@pytest.mark.parametrize("text", ["half an ans", ""])
@pytest.mark.parametrize("reason", [*FAILED, "function_call_filter: MALFORMED_FUNCTION_CALL"])
async def test_an_end_that_says_generation_failed(
    model: ScriptedModel, provider: AsyncOpenAI, reason: str, text: str, stream: bool
) -> None:
    model.say(text, finish_reason=reason)
    failed = await expect_failure(ChatModel(provider), make_request(HELLO, stream=stream), stream=stream)
    assert (failed.error.code, failed.error.retryable) == ("provider_failed", True)
    assert repr(reason) in failed.error.message
    assert (failed.partial, failed.usage, failed.finish_reason) == (text, USAGE, reason)


@STREAM
@pytest.mark.parametrize(
    ("reason", "ending"),
    [
        ("eos", "stop"),
        ("STOP", "stop"),
        ("end_turn", "stop"),
        ("MAX_TOKENS", "length"),
        ("max_output_tokens", "length"),
    ],
)
async def test_a_good_end_has_many_names(
    model: ScriptedModel, provider: AsyncOpenAI, reason: str, ending: str, stream: bool
) -> None:
    model.say("Hi.", finish_reason=reason)
    _, reply = await collect_reply(ChatModel(provider), make_request(HELLO, stream=stream), stream=stream)
    assert (reply.completion.finish_reason, reply.completion.ending) == (reason, ending)


@pytest.mark.parametrize(
    ("reasons", "kept"),
    [
        (["null", "stop"], "stop"),
        (["tool_use", "stop"], "tool_use"),
        (["length", "stop"], "length"),
        (["stop", ""], "stop"),
        (["SAFETY", "stop"], None),
        (["error", "stop"], None),
    ],
)
async def test_the_gravest_of_several_ends_counts(
    model: ScriptedModel, provider: AsyncOpenAI, reasons: list[str], kept: str | None
) -> None:
    call = {"index": 0, "id": "a", "function": {"name": "look", "arguments": "{}"}}
    model.chunks(
        [{"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": reason}]} for reason in reasons]
    )
    chat, request = ChatModel(provider), make_request(HELLO, stream=True)
    if kept is None:
        await expect_failure(chat, request, stream=True)
    else:
        assert (await collect_reply(chat, request, stream=True))[1].completion.finish_reason == kept


async def test_stream_without_finish_reason_is_cut(model: ScriptedModel, provider: AsyncOpenAI) -> None:
    model.chunks([{"choices": [{"index": 0, "delta": {"content": "Half a"}}]}], done=False)
    failed = await expect_failure(ChatModel(provider), make_request(HELLO, stream=True), stream=True)
    assert (failed.error.code, failed.partial) == ("provider_stream_cut", "Half a")


async def test_half_an_answer(model: ScriptedModel, provider: AsyncOpenAI) -> None:
    model.half_stream("Half")
    error = await expect_error(provider, stream=False)
    assert error.retryable
    assert error.code in ("provider_unreachable", "provider_stream_cut")


async def test_unanswered_model_request_times_out(model: ScriptedModel) -> None:
    model.hang()
    async with open_provider(model.url, timeout=0.05) as client:
        error = await expect_error(client, stream=False)
    assert error == RunError(code="provider_timeout", message="the model did not answer in time", retryable=True)


async def test_mid_answer_silence_times_out(model: ScriptedModel) -> None:
    # On a busy machine the time may be up before it has said anything.
    for seconds in (0.2, 2, 20):
        model.hang("Well, ")
        async with open_provider(model.url, timeout=seconds) as client:
            failed = await expect_failure(ChatModel(client), make_request(HELLO, stream=True), stream=True)
        if failed.partial:
            break
    assert (failed.error.code, failed.error.retryable) == ("provider_timeout", True)
    assert failed.partial == "Well, "


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1?key=secret", "http://user:secret@127.0.0.1:1/v1"])
async def test_no_message_shows_a_secret(url: str) -> None:
    async with open_provider(url, api_key="sk-secret") as client:
        assert "secret" not in (await expect_error(client, stream=False)).message


async def test_the_message_is_never_empty(model: ScriptedModel, provider: AsyncOpenAI) -> None:
    script: list[Callable[[], None]] = [
        lambda: model.raw("", status=500),
        lambda: model.raw({"error": {"message": ""}}, status=500),
        lambda: model.raw({"error": "plain text"}, status=500),
        lambda: model.raw({"message": "flat"}, status=500),
    ]
    for answer in script:
        answer()
        assert (await expect_error(provider, stream=False)).message


@STREAM
@pytest.mark.parametrize(
    ("params", "words", "advice"),
    [
        ({}, "Unsupported parameter: 'parallel_tool_calls'", '"parallel_tool_calls": "omit"'),
        (
            {"max_tokens": 5},
            "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.",
            '"tokens_parameter": "max_completion_tokens"',
        ),
        ({"max_tokens": 5}, "max_tokens is too large: 5", "leave max_tokens out of model_settings"),
        ({}, "System message must be at the beginning.", '"system_messages": "one_leading"'),
        ({}, "messages[1].role: unknown variant `developer`", '"developer_role": "system"'),
        ({}, "Function call is missing a thought_signature", '"missing_attachments": "signature"'),
        ({}, "property 'reasoning' is unsupported", '"attachments": "omit"'),
        ({"temperature": 0}, "temperature does not support 0 with this model", '{"temperature": null}'),
        ({}, "something else is wrong", None),
    ],
)
async def test_a_refused_parameter_names_the_setting_that_helps(
    model: ScriptedModel, provider: AsyncOpenAI, stream: bool, params: Json, words: str, advice: str | None
) -> None:
    model.fail(400, message=words)
    asked = make_request(HELLO, stream=stream)
    request = msgspec.structs.replace(asked, params={**asked.params, **params})
    error = (await expect_failure(ChatModel(provider), request, stream=stream)).error
    assert error.message.startswith(words.rstrip("."))
    assert (advice or "To help") in error.message if advice else "To help" not in error.message


# Which model calls are made again, when, and what ends the waiting.

QUICK = Retries(count=2, first_seconds=0.001)
ERROR = RunError(code="provider_error", message="no", retryable=True)
Script = Callable[[ScriptedModel], None]


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
    model: ScriptedModel, provider: AsyncOpenAI, trouble: str, stream: bool
) -> None:
    PASSING[trouble](model)
    PASSING[trouble](model)
    model.say("At last.")
    _, reply = await collect_reply(ChatModel(provider, QUICK), make_request(HELLO, stream=stream), stream=stream)
    assert reply.message["content"] == "At last."
    assert model.raw_requests == [model.raw_requests[0]] * 3


async def test_stream_ended_before_words_is_retried(model: ScriptedModel, provider: AsyncOpenAI) -> None:
    model.chunks([{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}], drop=True)
    model.chunks([], done=False)
    model.say("At last.")
    deltas, _ = await collect_reply(ChatModel(provider, QUICK), make_request(HELLO, stream=True), stream=True)
    assert "".join(delta["content"] or "" for delta in deltas) == "At last."


@STREAM
async def test_retries_stop_at_set_number(model: ScriptedModel, provider: AsyncOpenAI, stream: bool) -> None:
    for _ in range(3):
        model.fail(503, message="busy")
    failed = await expect_failure(ChatModel(provider, QUICK), make_request(HELLO, stream=stream), stream=stream)
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
    model: ScriptedModel, provider: AsyncOpenAI, trouble: str, stream: bool
) -> None:
    LASTING[trouble](model)
    await expect_failure(ChatModel(provider, QUICK), make_request(HELLO, stream=stream), stream=stream)
    assert model.request_count == 1


async def test_shown_text_is_not_repeated(model: ScriptedModel, provider: AsyncOpenAI) -> None:
    model.half_stream("Half")
    failed = await expect_failure(ChatModel(provider, QUICK), make_request(HELLO, stream=True), stream=True)
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
    provider: AsyncOpenAI,
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
    await collect_reply(ChatModel(provider, Retries(count=1), wait), make_request(HELLO), stream=False)
    assert len(waited) == 1
    assert shortest <= waited[0] <= longest


@pytest.mark.parametrize("when", ["3600", "date"])
async def test_overlong_wait_fails_with_its_time(model: ScriptedModel, provider: AsyncOpenAI, when: str) -> None:
    after = format_http_date(3600) if when == "date" else when
    model.fail(429, message="Rate limit reached.", headers={"retry-after": after})
    failed = await expect_failure(ChatModel(provider, QUICK), make_request(HELLO))
    assert (failed.error.code, failed.error.retryable) == ("provider_rate_limited", True)
    said, _, seconds = failed.error.message.rpartition("the provider asks to wait ")
    assert said == "Rate limit reached; "
    assert 3500 <= float(seconds.removesuffix(" s")) <= 3600
    assert model.request_count == 1


async def test_who_is_cancelled_waits_no_longer(model: ScriptedModel, provider: AsyncOpenAI) -> None:
    model.fail(429, headers={"retry-after": "50"})
    asked = asyncio.create_task(expect_failure(ChatModel(provider, QUICK), make_request(HELLO)))
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


# Which texts of the environment are secrets.


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("OTEL_EXPORTER_OTLP_HEADERS", "tenant=shop-one,authorization=Basic%20dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20dXNlcjpwYXNz", "Basic dXNlcjpwYXNz"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-team = 0123456789abcdef , a=b", "0123456789abcdef"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-team=0123456789abcdef==", "0123456789abcdef=="),
    ],
)
def test_collector_credentials_are_secret(name: str, value: str, secret: str) -> None:
    assert find_secrets({name: value}).mask(f"it sent {secret}!") == f"it sent {REMOVED}!"


def test_other_collector_settings_are_not_secret() -> None:
    found = find_secrets(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.example:4318", "OTEL_SERVICE_NAME": "swarmkeep"}
    )
    assert found.mask("swarmkeep sends to collector.example:4318") == "swarmkeep sends to collector.example:4318"


@pytest.mark.parametrize(
    "secret",
    [
        "-----BEGIN KEY-----\nMC4CAQAw\n-----END KEY-----\n",
        '{"id": "shop", "private_key": "0123"}',
        "pass\\word",
        "clé-secrète",
    ],
)
def test_secrets_are_removed_in_any_escaping(secret: str) -> None:
    found, value = find_secrets({"SHOP_CREDENTIALS": secret}), {"is": secret}
    for written in (secret, secret.strip(), json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret)):
        masked = found.mask(f"<{written}>")
        assert REMOVED in masked
        assert len(masked) <= len(f'<"{REMOVED}\\n">')
    assert REMOVED in found.mask(json.dumps(value))
    assert REMOVED in found.mask(str(value))


def test_url_password_is_removed_raw_and_encoded() -> None:
    found = find_secrets({"DATABASE_URL": "postgresql://app:very%2Fsecret@db/app"})
    assert found.mask("very%2Fsecret very/secret") == f"{REMOVED} {REMOVED}"
    found = find_secrets({"DATABASE_URL": "postgresql://db/app?user=app&password=very-secret&sslmode=require"})
    assert found.mask("app very-secret require") == f"app {REMOVED} require"
