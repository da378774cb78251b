"""A server that is spoken to over streamable HTTP: no answer of it is read past a bound, and no redirect followed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from http.cookiejar import Cookie, CookieJar

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client
from mcp.types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    ErrorData,
    JSONRPCError,
    jsonrpc_message_adapter,
)

from swarmkeep.agent import MCPServer
from swarmkeep.domain.codec import encode
from swarmkeep.engine.mcp.bounds import Bound, MessageLimits, MessageSize, ServerFlooded, describe_excess
from swarmkeep.engine.models.media_types import is_event_stream

# A stream of events may be silent for long; whoever waits for an answer has a limit of their own.
_READ_SECONDS = 900.0
# No server's code: what a server answers that does not know the session is told by it.
SESSION_GONE = -39_404
# As many and as long as a browser keeps at least.
_MOST_COOKIES = 50
_COOKIE_CHARACTERS = 4096
_SESSION_HEADER = "mcp-session-id"
_PHRASES = {int(status): status.phrase for status in HTTPStatus}
_SEPARATOR = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")


@asynccontextmanager
async def open_http(server: MCPServer, limits: MessageLimits) -> AsyncGenerator[TransportStreams]:
    """A connection with the server's headers. Its bodies come as they are: what is packed small is not unpacked."""
    timeout = httpx2.Timeout(server.connect_timeout, read=_READ_SECONDS)
    bound = Bound(limits, asyncio.get_running_loop().time)
    client = httpx2.AsyncClient(
        headers={**server.headers, "Accept-Encoding": "identity"},
        timeout=timeout,
        follow_redirects=False,
        cookies=BoundedCookieJar(),
        event_hooks={"response": [partial(_bound_response, bound=bound)]},
    )
    async with (
        client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=limits.message_bytes) as streams,
    ):
        yield streams


class BoundedCookieJar(CookieJar):
    """The first cookies of a connection: what spreads requests over several servers may know them by one. More would be
    kept, and sent, for as long as the connection lasts."""

    def set_cookie(self, cookie: Cookie) -> None:
        is_short = len(cookie.name) + len(cookie.value or "") <= _COOKIE_CHARACTERS
        is_known = any((one.domain, one.path, one.name) == (cookie.domain, cookie.path, cookie.name) for one in self)
        if is_short and (is_known or len(self) < _MOST_COOKIES):
            super().set_cookie(cookie)


async def _bound_response(response: httpx2.Response, bound: Bound) -> None:
    """A hook of the HTTP client, called before anything of an answer's body is read."""
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    media_type = response.headers.get("content-type", "").lower()
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.StreamError("the server compresses its answers, which it was not asked to")
    response.stream = body = BoundedBody(response.stream, bound, is_event_stream(media_type))
    status = response.status_code
    is_of_session = _SESSION_HEADER in response.request.headers
    # What 404 means without a session, the client says.
    if response.request.method == "POST" and status >= 400 and (status != 404 or is_of_session):
        is_explained = media_type.startswith("application/json") and status not in (401, 403)
        response.stream = _Refusal(body, status, is_explained)
        response.headers["content-type"] = "application/json"


class BoundedBody(httpx2.AsyncByteStream):
    """What is read of a body: up to a bound; of a stream of events, each of them."""

    def __init__(self, inner: httpx2.AsyncByteStream, bound: Bound, is_streamed: bool) -> None:
        self._inner = inner
        self._bound = bound
        self._is_streamed = is_streamed
        self._size = MessageSize(bound.limits)
        self._line_end = b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._inner:
            excess = self._find_excess(data)
            # Of each of these errors the client passes on what it says. It then takes a stream for lost.
            if excess is not None and self._is_streamed:
                raise httpx2.SSEError(f"a message of it is not read, because {excess}")
            if excess is not None:
                raise httpx2.StreamError(describe_excess(excess))
            yield data

    def _find_excess(self, data: bytes) -> str | None:
        messages = self._split(data) if self._is_streamed else [data]
        lines = data.count(b"\n") + data.count(b"\r") if self._is_streamed else 0
        try:
            self._bound.count(len(data), len(messages) - 1, lines)
        except ServerFlooded as error:
            return str(error)
        for place, piece in enumerate(messages):
            if place:
                self._size = MessageSize(self._bound.limits)
            excess = self._size.find_excess(piece)
            if excess is not None:
                return excess
        return None

    def _split(self, data: bytes) -> list[bytes]:
        """The rest of an event, those that follow, and the beginning of one. What ends it may be cut in two."""
        *whole, last = _SEPARATOR.split(self._line_end + data)
        begun = last.rstrip(b"\r\n")
        self._line_end = last[len(begun) :]
        return [*whole, begun]

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Refusal(httpx2.AsyncByteStream):
    """The protocol's error that came with an HTTP status, or one that names the status: of anything else the client
    says that it is an error, and no more."""

    def __init__(self, body: BoundedBody, status: int, is_explained: bool) -> None:
        self._body = body
        self._status = status
        self._is_explained = is_explained

    async def __aiter__(self) -> AsyncIterator[bytes]:
        said = await self._read_error() if self._is_explained else None
        yield encode({"jsonrpc": "2.0", "id": None, "error": self._choose_error(said)})

    async def _read_error(self) -> ErrorData | None:
        try:
            body = b"".join([data async for data in self._body])
            message = jsonrpc_message_adapter.validate_json(body, by_name=False)
        except (httpx2.StreamError, ValueError):
            return None
        return message.error if isinstance(message, JSONRPCError) else None

    def _choose_error(self, said: ErrorData | None) -> dict[str, int | str]:
        if self._status == 404 and (said is None or said.code != METHOD_NOT_FOUND):
            return {"code": SESSION_GONE, "message": "it does not know the session any more"}
        if said is not None:
            # The client's own code for a connection that is lost.
            return {"code": INTERNAL_ERROR if said.code == CONNECTION_CLOSED else said.code, "message": said.message}
        phrase = _PHRASES.get(self._status, "")
        return {"code": INTERNAL_ERROR, "message": f"it answered with HTTP status {self._status} {phrase}".rstrip()}

    async def aclose(self) -> None:
        await self._body.aclose()
