"""Calls of the configured model over aiohttp itself, which cost a third of those through the official client.

Where a request goes, its headers and the names of errors stay the official client's: it is asked once what it would
send, and is shown each answer that is no success.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from swarmkeep.domain.codec import Json
from swarmkeep.domain.request import ModelRequest
from swarmkeep.engine.models.answers import CHAT_PATH, parse_completion, parse_stream
from swarmkeep.engine.models.bounded_client import ENCODINGS, BodyBound, refuse_redirect
from swarmkeep.engine.models.chunks import Chunk
from swarmkeep.engine.models.reply_limits import ReplyLimits

if TYPE_CHECKING:
    import ssl

    import aiohttp
    import httpx2
    from openai import AsyncOpenAI

_SMALL_BODY_BYTES = 1_000_000


class _Template(msgspec.Struct, frozen=True):
    """What the official client sends beside the body."""

    url: Any
    headers: dict[str, str]


class DirectTransport:
    """Asks the server of an official client; `close` ends its connections.

    Raises what the client would: its errors for an answer that is no success and before one has begun, and those of its
    HTTP library in mid-answer.
    """

    def __init__(self, client: AsyncOpenAI, limits: ReplyLimits) -> None:
        self._client = client
        self._limits = limits
        self._templates: dict[bool, _Template] = {}
        self._session: aiohttp.ClientSession | None = None

    async def complete(self, request: ModelRequest) -> Json:
        import httpx2

        try:
            async with self._send(request, stream=False) as answer:
                body = await self._read_all(answer)
        except httpx2.HTTPError as error:
            raise _make_connection_error(error) from error
        return parse_completion(answer.headers.get("content-type", ""), body, self._limits)

    @asynccontextmanager
    async def open_stream(self, request: ModelRequest) -> AsyncIterator[AsyncGenerator[list[Chunk]]]:
        async with self._send(request, stream=True) as answer:
            kind = answer.headers.get("content-type", "")
            async with aclosing(parse_stream(kind, self._read(answer), self._limits)) as chunks:
                yield chunks

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    @asynccontextmanager
    async def _send(self, request: ModelRequest, *, stream: bool) -> AsyncIterator[aiohttp.ClientResponse]:
        import httpx2

        template = self._templates.get(stream) or await self._make_template(stream)
        try:
            session = self._session or await self._open_session()
            with _translated_errors:
                answer = await session.post(
                    template.url, data=await _make_body(request), headers=template.headers, allow_redirects=False
                )
        except httpx2.HTTPError as error:
            raise _make_connection_error(error) from error
        async with answer:
            if answer.status >= 300:
                await self._refuse(answer)
            yield answer

    async def _read(self, answer: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
        bound = BodyBound(answer.headers, self._limits, is_error=answer.status >= 400)
        with _translated_errors:
            # One call for each piece less than to iterate over them.
            while not bound.is_cut and (data := await answer.content.readany()):
                for piece in bound.feed(data):
                    yield piece

    async def _read_all(self, answer: aiohttp.ClientResponse) -> bytes:
        return b"".join([piece async for piece in self._read(answer)])

    async def _refuse(self, answer: aiohttp.ClientResponse) -> None:
        """Raise the official client's error for an answer that is no success."""
        import httpx2

        refuse_redirect(answer.status, answer.headers)
        try:
            body = await self._read_all(answer)
        except httpx2.HTTPError as error:
            raise _make_connection_error(error) from error
        # It was read as it is, inflated and cut to what is kept of an error.
        dropped = (b"content-encoding", b"content-length", b"transfer-encoding")
        # As bytes: a server may put any into them.
        headers = [(name, value) for name, value in answer.raw_headers if name.lower() not in dropped]
        await self._ask_client(
            lambda asked: httpx2.Response(answer.status, headers=headers, content=body, request=asked), stream=False
        )

    async def _make_template(self, stream: bool) -> _Template:
        import httpx2
        from yarl import URL

        sent: list[httpx2.Request] = []

        def note(request: httpx2.Request) -> httpx2.Response:
            sent.append(request)
            return httpx2.Response(200, json={}, request=request)

        await self._ask_client(note, stream=stream)
        [request] = sent
        # These follow from the URL and the body of each request.
        headers = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
        url = URL(str(request.url), encoded=True).with_user(None)
        template = self._templates[stream] = _Template(url, headers)
        return template

    async def _ask_client(self, answer: Callable[[httpx2.Request], httpx2.Response], *, stream: bool) -> None:
        """Have the official client make a request that goes nowhere, and take that answer as its server's."""
        import httpx2
        import openai

        nowhere = httpx2.AsyncClient(
            transport=httpx2.MockTransport(answer), headers={"Accept-Encoding": ENCODINGS}, trust_env=False
        )
        async with nowhere:
            await self._client.with_options(http_client=nowhere).post(
                CHAT_PATH,
                cast_to=httpx2.Response,
                content=b"{}",
                options={"headers": {"Content-Type": "application/json"}},
                stream=stream,
                stream_cls=openai.AsyncStream[object],
            )

    async def _open_session(self) -> aiohttp.ClientSession:
        # Every authority's certificate is read, which others need not wait for.
        context = await asyncio.to_thread(_make_ssl_context)
        if self._session is None:
            import aiohttp
            import httpx2

            timeout = self._client.timeout
            assert isinstance(timeout, httpx2.Timeout)
            self._session = aiohttp.ClientSession(
                # No limit, as the official client is given none.
                connector=aiohttp.TCPConnector(limit=0, ssl=context),
                # Of one conversation nothing is kept for the next.
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                timeout=aiohttp.ClientTimeout(
                    sock_connect=timeout.connect, sock_read=timeout.read, connect=timeout.pool
                ),
            )
        return self._session


def _make_ssl_context() -> ssl.SSLContext:
    # Needed next, and slow to load.
    import aiohttp  # noqa: F401
    import httpx2

    return httpx2.create_ssl_context()


async def _make_body(request: ModelRequest) -> bytes | io.BytesIO:
    """The body; a large one is put together in a thread, and sent piece by piece."""
    if sum(map(len, request.sent_history)) <= _SMALL_BODY_BYTES:
        return request.body()
    return io.BytesIO(await asyncio.to_thread(request.body))


class _TranslatedErrors:
    """Raises what the official client's own HTTP library raises in the same case. One serves all."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        import aiohttp
        import httpx2

        # The first that fits: some of these are kinds of others.
        for raised, translated in (
            (aiohttp.ConnectionTimeoutError, httpx2.ConnectTimeout),
            (TimeoutError, httpx2.ReadTimeout),
            (aiohttp.ClientConnectorError, httpx2.ConnectError),
            (aiohttp.ClientError, httpx2.ReadError),
        ):
            if isinstance(error, raised):
                raise translated(str(error)) from error


_translated_errors = _TranslatedErrors()


def _make_connection_error(error: httpx2.HTTPError) -> Exception:
    import httpx2
    import openai

    request = httpx2.Request("POST", CHAT_PATH)
    if isinstance(error, httpx2.TimeoutException):
        return openai.APITimeoutError(request=request)
    return openai.APIConnectionError(request=request)
