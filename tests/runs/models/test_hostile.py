"""Models that are broken or mean harm: what they send is bounded, and refused in words."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI

from swarmkeep.events.codec import Json
from swarmkeep.events.facts import RunError
from swarmkeep.models.model import ChatModel, Deltas, TurnFailed
from swarmkeep.models.replies import ReplyLimits
from tests.runs.models.provider import open_provider
from tests.runs.models.test_transports import HELLO, collect_reply, expect_failure, make_request
from tests.support.scripted import Chunks, ScriptedModel

LIMITS = ReplyLimits(stream_bytes=200_000, bytes=20_000, calls=4, values=1_000)
STREAM = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
async def provider(model: ScriptedModel) -> AsyncIterator[AsyncOpenAI]:
    """The client that a server makes of its settings."""
    async with open_provider(model.url, limits=LIMITS) as client:
        yield client


async def expect_error(client: AsyncOpenAI, *, stream: bool) -> RunError:
    chat = ChatModel(client, limits=LIMITS)
    return (await expect_failure(chat, make_request(HELLO, stream=stream), stream=stream)).error


def make_completion(**message: Any) -> Json:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None, **message}}
    return {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}


def make_chunk(**delta: Any) -> Json:
    return {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}


def make_calls(count: int) -> list[Json]:
    function = {"name": "f", "arguments": "{}"}
    return [{"index": n, "id": f"c{n}", "type": "function", "function": function} for n in range(count)]


@STREAM
@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
async def test_inflating_body_is_read_to_limit(
    model: ScriptedModel, provider: AsyncOpenAI, compress: Any, stream: bool
) -> None:
    body = compress(json.dumps(make_completion(content="0" * 5_000_000)).encode())
    model.raw(body, headers={"content-encoding": "gzip" if compress is gzip.compress else "deflate"})
    error = await expect_error(provider, stream=stream)
    assert (error.code, error.retryable) == ("provider_answer_too_large", False)
    assert "20,000 bytes" in error.message


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
async def test_a_compressed_answer_is_read(model: ScriptedModel, provider: AsyncOpenAI, compress: Any) -> None:
    body = compress(json.dumps(make_completion(content="Hello.")).encode())
    model.raw(body, headers={"content-encoding": "gzip" if compress is gzip.compress else "deflate"})
    _, reply = await collect_reply(ChatModel(provider), make_request(HELLO), stream=False)
    assert reply.message["content"] == "Hello."
    assert model.headers[-1]["accept-encoding"] == "gzip, deflate"


@STREAM
@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "x" * 1000])
async def test_another_compression_is_refused(
    model: ScriptedModel, provider: AsyncOpenAI, encoding: str, stream: bool
) -> None:
    model.raw(make_completion(content="Hello."), headers={"content-encoding": encoding})
    error = await expect_error(provider, stream=stream)
    assert error.code == "provider_malformed"
    assert encoding[:40] in error.message
    assert len(error.message) < 200


@STREAM
async def test_falsely_compressed_body_is_refused(model: ScriptedModel, provider: AsyncOpenAI, stream: bool) -> None:
    model.raw(make_completion(content="Hello."), headers={"content-encoding": "gzip"})
    assert "cannot be decompressed" in (await expect_error(provider, stream=stream)).message


@STREAM
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_takes_the_conversation_nowhere(
    model: ScriptedModel, provider: AsyncOpenAI, status: int, stream: bool
) -> None:
    with ScriptedModel() as elsewhere:
        model.raw(b"", status=status, headers={"location": f"{elsewhere.url}/chat/completions"})
        error = await expect_error(provider, stream=stream)
        assert elsewhere.requests == []
        assert (error.code, error.retryable) == ("provider_redirected", False)
        assert elsewhere.url in error.message
        assert "OPENAI_BASE_URL" in error.message


@STREAM
async def test_long_error_description_is_cut(model: ScriptedModel, provider: AsyncOpenAI, stream: bool) -> None:
    model.raw(b"x" * 5_000_000, status=400, content_type="text/plain")
    error = await expect_error(provider, stream=stream)
    assert (error.code, error.provider_status) == ("provider_bad_request", 400)
    assert len(error.message) <= 2000


@STREAM
async def test_unclosed_page_title_costs_nothing(model: ScriptedModel, provider: AsyncOpenAI, stream: bool) -> None:
    model.raw(b"<title" * 3_000, content_type="text/html")
    assert (await expect_error(provider, stream=stream)).code == "provider_web_page"


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([make_chunk(content="x" * 900)] * 50, id="text"),
        pytest.param([make_chunk(reasoning="x" * 900)] * 50, id="another text"),
        pytest.param([make_chunk(**{f"key{n}": "x" * 900}) for n in range(50)], id="other fields"),
        pytest.param([make_chunk(**{f"key{n}": {"a": "x" * 900}}) for n in range(50)], id="other values"),
        pytest.param(
            [make_chunk(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": "x" * 900}}])] * 50,
            id="arguments",
        ),
        pytest.param(
            [
                make_chunk(tool_calls=[{"index": 0, "id": "a", "function": {"name": f"name{n}" * 20}}])
                for n in range(99)
            ],
            id="a name",
        ),
        pytest.param([make_chunk(tool_calls=make_calls(5))], id="calls"),
        pytest.param([make_chunk(tool_calls=[call]) for call in make_calls(5)], id="calls one by one"),
        pytest.param([make_chunk(content="x" * 30_000)], id="one line"),
        pytest.param(["data: {\n"] * 20_000, id="one event"),
        pytest.param([make_chunk()] * 4_000, id="pieces of nothing"),
    ],
)
async def test_stream_is_read_to_its_limits(
    model: ScriptedModel, provider: AsyncOpenAI, chunks: list[Json | bytes | str]
) -> None:
    model.add(Chunks(events=chunks))
    error = await expect_error(provider, stream=True)
    assert (error.code, error.retryable) == ("provider_answer_too_large", False)


async def test_reply_call_count_is_bounded(model: ScriptedModel, provider: AsyncOpenAI) -> None:
    model.raw(make_completion(tool_calls=make_calls(5)))
    error = await expect_error(provider, stream=False)
    assert (error.code, error.message) == ("provider_answer_too_large", "the model's answer has more than 4 tool calls")


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"content": "x", "other": [{}] * 1_000}, id="values"),
        pytest.param(
            {"tool_calls": [{**make_calls(1)[0], "function": {"name": "f", "arguments": f"[{'{},' * 1_000}1]"}}]},
            id="arguments",
        ),
    ],
)
@STREAM
async def test_reply_value_count_is_bounded(
    model: ScriptedModel, provider: AsyncOpenAI, message: Json, stream: bool
) -> None:
    model.add(Chunks(events=[make_chunk(**message)])) if stream else model.raw(make_completion(**message))
    error = await expect_error(provider, stream=stream)
    assert error.code == "provider_answer_too_large"
    assert "more than 1,000 values" in error.message


async def test_token_probabilities_do_not_count(model: ScriptedModel, provider: AsyncOpenAI) -> None:
    answer = make_completion(content="Yes.")
    answer["choices"][0]["logprobs"] = {"content": [{"token": "x", "top_logprobs": [{}, {}]}] * 400}
    model.raw(answer)
    _, reply = await collect_reply(ChatModel(provider, limits=LIMITS), make_request(HELLO), stream=False)
    assert reply.message["content"] == "Yes."
    # Of what else there is none is left out.
    answer["choices"][0]["message"]["other"] = [{}] * 1_000
    for body in (answer, f'{{"choices": [{{"logprobs": {"[" * 5_000}'):
        model.raw(body)
        assert (await expect_error(provider, stream=False)).code == "provider_answer_too_large"


@pytest.mark.parametrize("calls", [5, "f", {"id": "c"}, ["f"], [5], True])
@STREAM
async def test_mistyped_calls_are_refused_at_once(
    model: ScriptedModel, provider: AsyncOpenAI, calls: Any, stream: bool
) -> None:
    model.add(Chunks(events=[make_chunk(tool_calls=calls)])) if stream else model.raw(make_completion(tool_calls=calls))
    error = await expect_error(provider, stream=stream)
    assert error.code == "provider_malformed"
    assert "not a list of objects" in error.message
    assert len(model.requests) == 1


@pytest.mark.parametrize("choices", [5, "x", {"index": 0}, ["x"], True])
async def test_mistyped_choices_are_refused_at_once(model: ScriptedModel, provider: AsyncOpenAI, choices: Any) -> None:
    model.add(Chunks(events=[{"choices": choices}]))
    assert (await expect_error(provider, stream=True)).code == "provider_malformed"


async def test_mistyped_name_is_refused_at_once(model: ScriptedModel, provider: AsyncOpenAI) -> None:
    model.add(Chunks(events=[make_chunk(tool_calls=[{"index": 0, "function": {"name": 5}}])]))
    assert (await expect_error(provider, stream=True)).code == "provider_malformed"


@pytest.mark.parametrize("content", [5, True, {"text": "x"}, ["x"], [5], [[]]])
@STREAM
async def test_mistyped_content_is_refused_at_once(
    model: ScriptedModel, provider: AsyncOpenAI, content: Any, stream: bool
) -> None:
    model.add(Chunks(events=[make_chunk(content=content)])) if stream else model.raw(make_completion(content=content))
    error = await expect_error(provider, stream=stream)
    assert (error.code, error.message) == (
        "provider_malformed",
        "the model's answer holds a content that is not a text",
    )
    assert len(model.requests) == 1


@pytest.mark.parametrize("refused", [b'{"choices', json.dumps(make_chunk(tool_calls=make_calls(5))).encode()])
async def test_text_beside_refused_piece_is_kept(model: ScriptedModel, provider: AsyncOpenAI, refused: bytes) -> None:
    said = [json.dumps(make_chunk(content=text)).encode() for text in ("Half ", "an answer")]
    model.chunks([b"".join(b"data: %b\n\n" % data for data in (*said, refused))])
    pieces = ChatModel(provider, limits=LIMITS).ask(make_request(HELLO, stream=True), stream=True)
    first = await anext(pieces)
    assert isinstance(first, Deltas)
    assert [delta["content"] for delta in first.deltas] == ["Half ", "an answer"]
    # Not asked again: what was shown cannot be taken back.
    with pytest.raises(TurnFailed) as failed:
        await anext(pieces)
    assert failed.value.partial == "Half an answer"
