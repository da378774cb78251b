"""The two ways to carry calls and streams over a network: blocking, and with asyncio.

They read alike line by line. What to send, when to send it again and what an answer means is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, closing
from dataclasses import replace
from functools import partial
from typing import BinaryIO, Generic, TypeVar, cast

import httpx2

from swarmkeep_client._retries import Retries
from swarmkeep_client._settings import Settings
from swarmkeep_client._streams import Stream
from swarmkeep_client._traces import make_trace_headers
from swarmkeep_client._wire import Answer, Call, LostAnswer, Outcome, Request, make_failure, next_page
from swarmkeep_client.models import Page

T = TypeVar("T")
H = TypeVar("H")

# Each stream holds a connection for as long as it is read, so the number of connections must not be a limit.
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
_PIECE_BYTES = 256 * 1024


class ProcessHttp(Generic[H]):
    """An HTTP client for each process: a fork that used its parent's connections would get its parent's answers."""

    def __init__(self, make: Callable[[], H]) -> None:
        self._make = make
        self._made = os.getpid(), make()

    def get(self) -> H:
        if self._made[0] != os.getpid():
            self._made = os.getpid(), self._make()
        return self._made[1]


class Sender:
    """Carries calls and streams over blocking sockets. Threads may share one."""

    def __init__(
        self,
        settings: Settings,
        *,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.settings = settings
        self._sleep = sleep
        self._http = ProcessHttp(partial(httpx2.Client, transport=transport, limits=_LIMITS, headers=settings.headers))

    def close(self) -> None:
        self._http.get().close()

    def new_retries(self) -> Retries:
        return Retries(self.settings.max_retries)

    def perform(self, call: Call[T]) -> T:
        """Send a request until it has a final outcome."""
        retries = self.new_retries()
        while True:
            outcome = self._send(call.request)
            pause = retries.pause_after(call.request, outcome)
            if pause is None:
                return call.settle(outcome, resent=retries.failures > 0)
            self._sleep(pause)

    def iterate_pages(self, call: Call[Page[T]]) -> Generator[T, None, None]:
        """The items of a list, page by page as they are needed."""
        while True:
            page = self.perform(call)
            yield from page.data
            if page.next_cursor is None:
                return
            call = next_page(call, page.next_cursor)

    def stream(self, stream: Stream[T]) -> Generator[T, None, None]:
        """The items of a stream. The connection is closed when the reader stops, for any reason."""
        while True:
            outcome: Outcome = _make_ended_early(self.settings)
            try:
                with closing(self._open(stream.request)) as response:
                    if stream.accept(response.status_code, response.headers.get("content-type", "")):
                        for chunk in response.iter_bytes():
                            yield from stream.feed(chunk)
                            if stream.finished:
                                return
                    else:
                        outcome = Answer(response.status_code, response.headers, response.read())
            except httpx2.RequestError as error:
                outcome = _make_lost(error, self.settings)
            self._sleep(stream.handle_interruption(outcome))

    def download(self, request: Request) -> Generator[bytes, None, None]:
        """An answer of any length, piece by piece. It is asked for again only if nothing of it came."""
        retries = self.new_retries()
        while True:
            begun, outcome = False, cast(Outcome, _make_ended_early(self.settings))
            try:
                with closing(self._open(request)) as response:
                    if request.is_settled_by(outcome := Answer(response.status_code, response.headers, b"")):
                        begun = True
                        yield from response.iter_bytes()
                        return
                    outcome = Answer(response.status_code, response.headers, response.read())
            except httpx2.RequestError as error:
                outcome = _make_lost(error, self.settings)
            pause = None if begun else retries.pause_after(request, outcome)
            if pause is None:
                raise make_failure(request, outcome)
            self._sleep(pause)

    def _send(self, request: Request) -> Outcome:
        http = self._http.get()
        try:
            response = http.send(_build_request(http, self.settings, request))
        except httpx2.RequestError as error:
            return _make_lost(error, self.settings)
        return Answer(response.status_code, response.headers, response.content)

    def _open(self, request: Request) -> httpx2.Response:
        http = self._http.get()
        return http.send(_build_request(http, self.settings, request, streaming=True), stream=True)


class AsyncSender:
    """Carries calls and streams in an asyncio event loop. Tasks may share one."""

    def __init__(
        self,
        settings: Settings,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.settings = settings
        self._sleep = sleep
        self._http = ProcessHttp(
            partial(httpx2.AsyncClient, transport=transport, limits=_LIMITS, headers=settings.headers)
        )

    async def close(self) -> None:
        await self._http.get().aclose()

    def new_retries(self) -> Retries:
        return Retries(self.settings.max_retries)

    async def perform(self, call: Call[T]) -> T:
        """Send a request until it has a final outcome."""
        retries = self.new_retries()
        while True:
            outcome = await self._send(call.request)
            pause = retries.pause_after(call.request, outcome)
            if pause is None:
                return call.settle(outcome, resent=retries.failures > 0)
            await self._sleep(pause)

    async def iterate_pages(self, call: Call[Page[T]]) -> AsyncGenerator[T, None]:
        """The items of a list, page by page as they are needed."""
        while True:
            page = await self.perform(call)
            for item in page.data:
                yield item
            if page.next_cursor is None:
                return
            call = next_page(call, page.next_cursor)

    async def stream(self, stream: Stream[T]) -> AsyncGenerator[T, None]:
        """The items of a stream. The connection is closed when the reader stops, for any reason."""
        while True:
            outcome: Outcome = _make_ended_early(self.settings)
            try:
                async with aclosing(await self._open(stream.request)) as response:
                    if stream.accept(response.status_code, response.headers.get("content-type", "")):
                        async for chunk in response.aiter_bytes():
                            for item in stream.feed(chunk):
                                yield item
                            if stream.finished:
                                return
                    else:
                        outcome = Answer(response.status_code, response.headers, await response.aread())
            except httpx2.RequestError as error:
                outcome = _make_lost(error, self.settings)
            await self._sleep(stream.handle_interruption(outcome))

    async def download(self, request: Request) -> AsyncGenerator[bytes, None]:
        """An answer of any length, piece by piece. It is asked for again only if nothing of it came."""
        retries = self.new_retries()
        while True:
            begun, outcome = False, cast(Outcome, _make_ended_early(self.settings))
            try:
                async with aclosing(await self._open(request)) as response:
                    if request.is_settled_by(outcome := Answer(response.status_code, response.headers, b"")):
                        begun = True
                        async for piece in response.aiter_bytes():
                            yield piece
                        return
                    outcome = Answer(response.status_code, response.headers, await response.aread())
            except httpx2.RequestError as error:
                outcome = _make_lost(error, self.settings)
            pause = None if begun else retries.pause_after(request, outcome)
            if pause is None:
                raise make_failure(request, outcome)
            await self._sleep(pause)

    async def _send(self, request: Request) -> Outcome:
        http = self._http.get()
        try:
            response = await http.send(_build_request(http, self.settings, request))
        except httpx2.RequestError as error:
            return _make_lost(error, self.settings)
        return Answer(response.status_code, response.headers, response.content)

    async def _open(self, request: Request) -> httpx2.Response:
        http = self._http.get()
        return await http.send(_build_request(http, self.settings, request, streaming=True), stream=True)


def _build_request(
    http: httpx2.Client | httpx2.AsyncClient, settings: Settings, request: Request, *, streaming: bool = False
) -> httpx2.Request:
    body = request.body
    content: bytes | Generator[bytes, None, None] | AsyncGenerator[bytes, None] | None
    if body is None or isinstance(body, bytes):
        content = body
    else:
        content = _read_pieces(body) if isinstance(http, httpx2.Client) else _read_pieces_async(body)
        # With its length a server can refuse a file that is too large before it has come.
        request = replace(request, headers={**request.headers, "Content-Length": str(body.seek(0, os.SEEK_END))})
    # Compressed, a frame would wait in a buffer for the next one.
    uncompressed = {"Accept-Encoding": "identity", "Cache-Control": "no-store"} if streaming else {}
    return http.build_request(
        request.method,
        settings.base_url + request.target,
        content=content,
        headers={**make_trace_headers(), **request.headers, **uncompressed},
        timeout=settings.stream_timeout if streaming else settings.timeout,
    )


def _read_pieces(file: BinaryIO) -> Generator[bytes, None, None]:
    file.seek(0)
    while piece := file.read(_PIECE_BYTES):
        yield piece


async def _read_pieces_async(file: BinaryIO) -> AsyncGenerator[bytes, None]:
    await asyncio.to_thread(file.seek, 0)
    while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
        yield piece


def _make_lost(error: httpx2.RequestError, settings: Settings) -> LostAnswer:
    """Convert a failed exchange to a failure of the call. A request that cannot be sent as it is, is not sent again."""
    hopeless = isinstance(error, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError)
    reason = f"{str(error) or type(error).__name__} (at {settings.base_url})"
    return LostAnswer(reason, error, temporary=not hopeless)


def _make_ended_early(settings: Settings) -> LostAnswer:
    return LostAnswer(f"the stream ended before its last frame (at {settings.base_url})")
