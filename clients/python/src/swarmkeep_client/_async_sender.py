"""Calls and streams over a network, with asyncio.

What to send, when to send it again and what an answer means is decided elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TypeVar, cast

import httpx2

from swarmkeep_client._http import LIMITS, ProcessHttp, build_request, make_ended_early, make_lost
from swarmkeep_client._retries import Retries
from swarmkeep_client._settings import Settings
from swarmkeep_client._streams import Stream
from swarmkeep_client._wire import Answer, Call, Outcome, Request, make_failure, next_page
from swarmkeep_client.models import Page

T = TypeVar("T")


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
            partial(httpx2.AsyncClient, transport=transport, limits=LIMITS, headers=settings.headers)
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
            outcome: Outcome = make_ended_early(self.settings)
            try:
                async with aclosing(await self._open(stream.request)) as response:
                    if stream.accept(response.status_code, response.headers.get("content-type", "")):
                        async with aclosing(_read_frames(response)) as frames:
                            async for frame in frames:
                                for item in stream.read_frame(frame):
                                    yield item
                                if stream.finished:
                                    return
                    else:
                        outcome = Answer(response.status_code, response.headers, await response.aread())
            except httpx2.RequestError as error:
                outcome = make_lost(error, self.settings)
            await self._sleep(stream.handle_interruption(outcome))

    async def download(self, request: Request) -> AsyncGenerator[bytes, None]:
        """An answer of any length, piece by piece. It is asked for again only if nothing of it came."""
        retries = self.new_retries()
        while True:
            begun, outcome = False, cast(Outcome, make_ended_early(self.settings))
            try:
                async with aclosing(await self._open(request)) as response:
                    if request.is_settled_by(outcome := Answer(response.status_code, response.headers, b"")):
                        begun = True
                        async for piece in response.aiter_bytes():
                            yield piece
                        return
                    outcome = Answer(response.status_code, response.headers, await response.aread())
            except httpx2.RequestError as error:
                outcome = make_lost(error, self.settings)
            pause = None if begun else retries.pause_after(request, outcome)
            if pause is None:
                raise make_failure(request, outcome)
            await self._sleep(pause)

    async def _send(self, request: Request) -> Outcome:
        http = self._http.get()
        try:
            response = await http.send(build_request(http, self.settings, request))
        except httpx2.RequestError as error:
            return make_lost(error, self.settings)
        return Answer(response.status_code, response.headers, response.content)

    async def _open(self, request: Request) -> httpx2.Response:
        http = self._http.get()
        return await http.send(build_request(http, self.settings, request, streaming=True), stream=True)


def _read_frames(response: httpx2.Response) -> AsyncGenerator[httpx2.ServerSentEvent, None]:
    # It is a generator, which the library's annotation does not say.
    return cast(AsyncGenerator[httpx2.ServerSentEvent, None], aiter(httpx2.EventSource(response, max_event_size=None)))
