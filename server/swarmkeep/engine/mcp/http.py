"""A server that is spoken to over streamable HTTP: no answer of it is read past a bound, and no redirect followed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client
from mcp.types import INTERNAL_ERROR

from swarmkeep.agent import MCPServer
from swarmkeep.domain.codec import encode
from swarmkeep.engine.mcp.bounds import Bound, MessageLimits, MessageSize, ServerFlooded, describe_excess
from swarmkeep.engine.models.media_types import is_event_stream

# A stream of events may be silent for long; whoever waits for an answer has a limit of their own.
_READ_SECONDS = 900.0
_PHRASES = {int(status): status.phrase for status in HTTPStatus}
_SEPARATOR = re.compile(rb"\r\n\r\n|\n\n|\r\r")


@asynccontextmanager
async def open_http(server: MCPServer, limits: MessageLimits) -> AsyncGenerator[TransportStreams]:
    """A connection with the server's headers. Its bodies come as they are: what is packed small is not unpacked."""
    timeout = httpx2.Timeout(server.connect_timeout, read=_READ_SECONDS)
    bound = Bound(limits, asyncio.get_running_loop().time)
    client = httpx2.AsyncClient(
        headers={**server.headers, "Accept-Encoding": "identity"},
        timeout=timeout,
        follow_redirects=False,
        event_hooks={"response": [partial(_bound_response, bound=bound, limits=limits)]},
    )
    async with (
        client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=limits.message_bytes) as streams,
    ):
        yield streams


async def _bound_response(response: httpx2.Response, bound: Bound, limits: MessageLimits) -> None:
    """A hook of the HTTP client, called before anything of an answer's body is read."""
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    inner = response.stream
    streamed = is_event_stream(response.headers.get("content-type", ""))
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.StreamError("the server compresses its answers, which it was not asked to")
    if _is_unexplained(response):
        # The client says of it that it was an error, and no more; an error of the protocol it passes on.
        response.headers["content-type"] = "application/json"
        response.stream = _Refusal(inner, response.status_code)
        return

    class BoundedStream(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = MessageSize(limits)
            async for data in inner:
                messages = _SEPARATOR.split(data) if streamed else [data]
                try:
                    bound.count(len(data), len(messages) - 1)
                except ServerFlooded as error:
                    raise httpx2.StreamError(str(error)) from None
                for place, piece in enumerate(messages):
                    size = MessageSize(limits) if place else size
                    excess = size.find_excess(piece)
                    if excess is not None:
                        raise httpx2.StreamError(describe_excess(excess))
                yield data

        async def aclose(self) -> None:
            await inner.aclose()

    response.stream = BoundedStream()


def _is_unexplained(response: httpx2.Response) -> bool:
    """Whether a request was refused by no answer of the protocol, and by none of those that mean something in it."""
    status = response.status_code
    if response.request.method != "POST" or status < 400 or status in (404, 405):
        return False
    return status in (401, 403) or not response.headers.get("content-type", "").lower().startswith("application/json")


class _Refusal(httpx2.AsyncByteStream):
    """What an HTTP status says, as an answer; what came with it is not read."""

    def __init__(self, inner: httpx2.AsyncByteStream, status: int) -> None:
        self._inner = inner
        self._status = status

    async def __aiter__(self) -> AsyncIterator[bytes]:
        phrase = _PHRASES.get(self._status, "")
        text = f"it answered with HTTP status {self._status} {phrase}".rstrip()
        yield encode({"jsonrpc": "2.0", "id": None, "error": {"code": INTERNAL_ERROR, "message": text}})

    async def aclose(self) -> None:
        await self._inner.aclose()
