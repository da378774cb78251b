"""How a request reaches a client: the official ones take bytes, any other object gets keyword arguments."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, Protocol

from swarmkeep.domain.codec import Json, decode
from swarmkeep.domain.request import ModelRequest
from swarmkeep.engine.models.answers import (
    CHAT_PATH,
    EventReader,
    parse_completion,
    parse_stream,
)
from swarmkeep.engine.models.assembly import END_OF_STREAM
from swarmkeep.engine.models.chunks import Chunk
from swarmkeep.engine.models.direct import DirectTransport
from swarmkeep.engine.models.media_types import may_be_stream
from swarmkeep.engine.models.reply_errors import MalformedReply
from swarmkeep.engine.models.reply_limits import ReplyLimits

_HEADERS = {"headers": {"Content-Type": "application/json"}}


class Transport(Protocol):
    async def complete(self, request: ModelRequest) -> Json: ...

    def open_stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncGenerator[list[Chunk]]]:
        """The chunks of the answer, those that come at once together."""
        ...


def choose_transport(client: Any, limits: ReplyLimits) -> Transport:
    """Choose by the client's exact class: a subclass (Azure's, say) may build its requests in its own way."""
    if isinstance(own := getattr(client, "transport", None), DirectTransport):
        return own
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

        response = await self._client.post(CHAT_PATH, cast_to=httpx2.Response, content=request.body(), options=_HEADERS)
        return parse_completion(_get_kind(response), response.content, self._limits)

    @asynccontextmanager
    async def open_stream(self, request: ModelRequest) -> AsyncGenerator[AsyncGenerator[list[Chunk]]]:
        import httpx2
        import openai

        response = await self._client.post(
            CHAT_PATH,
            cast_to=httpx2.Response,
            content=request.body(),
            options=_HEADERS,
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )
        try:
            async with aclosing(parse_stream(_get_kind(response), response.aiter_bytes(), self._limits)) as chunks:
                yield chunks
        finally:
            await response.aclose()


class SyncOpenAITransport:
    """The official synchronous client. Its calls block, so it serves the synchronous loop only."""

    def __init__(self, client: Any, limits: ReplyLimits) -> None:
        self._client = client
        self._limits = limits

    async def complete(self, request: ModelRequest) -> Json:
        import httpx2

        response = self._client.post(CHAT_PATH, cast_to=httpx2.Response, content=request.body(), options=_HEADERS)
        return parse_completion(_get_kind(response), response.content, self._limits)

    def open_stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncGenerator[list[Chunk]]]:
        return aclosing(self._stream_chunks(request))

    async def _stream_chunks(self, request: ModelRequest) -> AsyncGenerator[list[Chunk]]:
        import httpx2
        import openai

        response = self._client.post(
            CHAT_PATH,
            cast_to=httpx2.Response,
            content=request.body(),
            options=_HEADERS,
            stream=True,
            stream_cls=openai.Stream[object],
        )
        try:
            if not may_be_stream(_get_kind(response)):
                yield [parse_completion(_get_kind(response), response.read(), self._limits), END_OF_STREAM]
                return
            events = EventReader(self._limits)
            for data in response.iter_bytes():
                for chunks in events.feed(data):
                    yield chunks
                    if chunks[-1] is END_OF_STREAM:
                        return
            for chunks in events.finish():
                yield chunks
        finally:
            response.close()


class GenericTransport:
    """Anything with `chat.completions.create`, synchronous or not: a subclass, a wrapper, a double."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def complete(self, request: ModelRequest) -> Json:
        return _convert_to_dict(await self._create(request))

    def open_stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncGenerator[list[Chunk]]]:
        return aclosing(self._stream_chunks(request))

    async def _stream_chunks(self, request: ModelRequest) -> AsyncGenerator[list[Chunk]]:
        stream = await self._create(request)
        if hasattr(stream, "__aiter__"):
            async for chunk in stream:
                yield [_convert_to_dict(chunk)]
        elif isinstance(stream, Iterable):
            for chunk in stream:
                yield [_convert_to_dict(chunk)]
        else:
            raise MalformedReply("the client gave no stream")

    async def _create(self, request: ModelRequest) -> Any:
        arguments: Json = {"messages": request.messages, **_name_arguments(self._client, request.params)}
        if request.tools is not None:
            arguments["tools"] = decode(request.tools)
        created = self._client.chat.completions.create(**arguments)
        return await created if inspect.isawaitable(created) else created


def _name_arguments(client: Any, params: Json) -> Json:
    """The parameters as `create` takes them: an official client's has names, and whatever else goes into the body."""
    openai = sys.modules.get("openai")
    if openai is None or not isinstance(client, openai.OpenAI | openai.AsyncOpenAI):
        return params
    from openai.types.chat import completion_create_params

    known = completion_create_params.CompletionCreateParamsBase.__annotations__.keys() | {"stream"}
    extra = {name: value for name, value in params.items() if name not in known}
    named = {name: value for name, value in params.items() if name in known}
    return {**named, "extra_body": extra} if extra else named


def _get_kind(response: Any) -> str:
    kind: str = response.headers.get("content-type", "")
    return kind


def _convert_to_dict(value: Any) -> Json:
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    if not isinstance(value, dict):
        raise MalformedReply(f"the client gave a {type(value).__name__} where a completion was expected")
    return value
