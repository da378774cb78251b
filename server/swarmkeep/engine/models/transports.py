"""How a request reaches a client: the official ones take bytes, any other object gets keyword arguments."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncGenerator, Iterable
from typing import Any, Protocol

from swarmkeep.domain.codec import Json, decode
from swarmkeep.domain.request import ModelRequest
from swarmkeep.engine.models.assembly import END_OF_STREAM
from swarmkeep.engine.models.failures import is_web_page, read_page_title
from swarmkeep.engine.models.reply_errors import (
    MalformedReply,
    NonJsonReply,
    OversizedReply,
    ReportedError,
    WebPageReply,
)
from swarmkeep.engine.models.reply_limits import ReplyLimits

_PATH = "/chat/completions"
_HEADERS = {"headers": {"Content-Type": "application/json"}}


class Transport(Protocol):
    async def complete(self, request: ModelRequest) -> Json: ...

    def stream_chunks(self, request: ModelRequest) -> AsyncGenerator[Json]: ...


def choose_transport(client: Any, limits: ReplyLimits) -> Transport:
    """Choose by the client's exact class: a subclass (Azure's, say) may build its requests in its own way."""
    # Whoever has an official client has imported openai; nobody else need load it.
    openai = sys.modules.get("openai")
    if openai is not None and type(client) is openai.AsyncOpenAI:
        return AsyncOpenAITransport(client, limits)
    if openai is not None and type(client) is openai.OpenAI:
        return SyncOpenAITransport(client, limits)
    return GenericTransport(client)


class AsyncOpenAITransport:
    """The official asynchronous client, with its retries, time-outs and errors, and without its walk over messages."""

    def __init__(self, client: Any, limits: ReplyLimits) -> None:
        self._client = client
        self._limits = limits

    async def complete(self, request: ModelRequest) -> Json:
        import httpx2

        response = await self._client.post(_PATH, cast_to=httpx2.Response, content=request.body(), options=_HEADERS)
        return _parse_completion(response)

    async def stream_chunks(self, request: ModelRequest) -> AsyncGenerator[Json]:
        import httpx2
        import openai

        response = await self._client.post(
            _PATH,
            cast_to=httpx2.Response,
            content=request.body(),
            options=_HEADERS,
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )
        try:
            if not _is_stream(response):
                await response.aread()
                yield _parse_completion(response)
                yield END_OF_STREAM
                return
            lines = LineSplitter(self._limits.bytes)
            async for data in response.aiter_bytes():
                for line in lines.feed(data):
                    if (chunk := _parse_sse_line(line)) is not None:
                        yield chunk
                    if chunk is END_OF_STREAM:
                        return
            if (chunk := _parse_sse_line(lines.rest)) is not None:
                yield chunk
        finally:
            await response.aclose()


class SyncOpenAITransport:
    """The official synchronous client. Its calls block, so it serves the synchronous loop only."""

    def __init__(self, client: Any, limits: ReplyLimits) -> None:
        self._client = client
        self._limits = limits

    async def complete(self, request: ModelRequest) -> Json:
        import httpx2

        response = self._client.post(_PATH, cast_to=httpx2.Response, content=request.body(), options=_HEADERS)
        return _parse_completion(response)

    async def stream_chunks(self, request: ModelRequest) -> AsyncGenerator[Json]:
        import httpx2
        import openai

        response = self._client.post(
            _PATH,
            cast_to=httpx2.Response,
            content=request.body(),
            options=_HEADERS,
            stream=True,
            stream_cls=openai.Stream[object],
        )
        try:
            if not _is_stream(response):
                response.read()
                yield _parse_completion(response)
                yield END_OF_STREAM
                return
            lines = LineSplitter(self._limits.bytes)
            for data in response.iter_bytes():
                for line in lines.feed(data):
                    if (chunk := _parse_sse_line(line)) is not None:
                        yield chunk
                    if chunk is END_OF_STREAM:
                        return
            if (chunk := _parse_sse_line(lines.rest)) is not None:
                yield chunk
        finally:
            response.close()


class GenericTransport:
    """Anything with `chat.completions.create`, synchronous or not: a subclass, a wrapper, a double."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def complete(self, request: ModelRequest) -> Json:
        return _convert_to_dict(await self._create(request))

    async def stream_chunks(self, request: ModelRequest) -> AsyncGenerator[Json]:
        stream = await self._create(request)
        if hasattr(stream, "__aiter__"):
            async for chunk in stream:
                yield _convert_to_dict(chunk)
        elif isinstance(stream, Iterable):
            for chunk in stream:
                yield _convert_to_dict(chunk)
        else:
            raise MalformedReply("the client gave no stream")

    async def _create(self, request: ModelRequest) -> Any:
        arguments: Json = {"messages": request.messages, **request.params}
        if request.tools is not None:
            arguments["tools"] = decode(request.tools)
        created = self._client.chat.completions.create(**arguments)
        return await created if inspect.isawaitable(created) else created


class LineSplitter:
    """Lines from bytes as they arrive, ended by a newline only: JSON text may hold U+2028 and the like as they are."""

    def __init__(self, line_bytes: int) -> None:
        self._line_bytes = line_bytes
        self._size = 0
        self._parts: list[bytes] = []

    @property
    def rest(self) -> str:
        """What follows the last newline."""
        return b"".join(self._parts).decode(errors="replace")

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes. Raises OversizedReply for one that does not end."""
        first, *others = data.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        if self._size > self._line_bytes:
            raise OversizedReply(f"the model sent more than {self._line_bytes:,} bytes in one line")
        if not others:
            return []
        ended = [b"".join(self._parts), *others[:-1]]
        self._parts, self._size = [others[-1]], len(others[-1])
        return [line.decode(errors="replace") for line in ended]


def _is_stream(response: Any) -> bool:
    """Whether an answer to a request for a stream is one; some servers send the whole at once all the same."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind not in ("application/json", "text/html")


def _parse_completion(response: Any) -> Json:
    if is_web_page(response):
        raise WebPageReply(f"the model's address gave {read_page_title(response.text)}")
    return _parse_object(response.content)


def _parse_sse_line(line: str) -> Json | None:
    if not line.startswith("data:"):
        return None
    data = line[5:].strip()
    if not data:
        return None
    return END_OF_STREAM if data == "[DONE]" else _parse_object(data)


def _parse_object(text: str | bytes) -> Json:
    try:
        value = decode(text)
    except ValueError as error:
        raise NonJsonReply(f"the model's answer is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise MalformedReply("the model's answer is not a JSON object")
    if value.get("error"):
        raise ReportedError(value["error"])
    return value


def _convert_to_dict(value: Any) -> Json:
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    if not isinstance(value, dict):
        raise MalformedReply(f"the client gave a {type(value).__name__} where a completion was expected")
    return value
