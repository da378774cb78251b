# Made from _async_sender.py by make_sync.py: change that one, then `make client`.
"""Calls and streams over a network, blocking.

What to send, when to send it again and what an answer means is decided elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing
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


class Sender:
    """Carries calls and streams over blocking sockets. Threads may share one."""

    def __init__(
        self,
        settings: Settings,
        *,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.settings = settings
        self._sleep = sleep
        self._http = ProcessHttp(partial(httpx2.Client, transport=transport, limits=LIMITS, headers=settings.headers))

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

    def iterate_pages(self, call: Call[Page[T]]) -> Generator[T, None]:
        """The items of a list, page by page as they are needed."""
        while True:
            page = self.perform(call)
            for item in page.data:
                yield item
            if page.next_cursor is None:
                return
            call = next_page(call, page.next_cursor)

    def stream(self, stream: Stream[T]) -> Generator[T, None]:
        """The items of a stream. The connection is closed when the reader stops, for any reason."""
        while True:
            outcome: Outcome = make_ended_early(self.settings)
            try:
                with closing(self._open(stream.request)) as response:
                    if stream.accept(response.status_code, response.headers.get("content-type", "")):
                        with closing(_read_frames(response)) as frames:
                            for frame in frames:
                                for item in stream.read_frame(frame):
                                    yield item
                                if stream.finished:
                                    return
                    else:
                        outcome = Answer(response.status_code, response.headers, response.read())
            except httpx2.RequestError as error:
                outcome = make_lost(error, self.settings)
            self._sleep(stream.handle_interruption(outcome))

    def download(self, request: Request) -> Generator[bytes, None]:
        """An answer of any length, piece by piece. It is asked for again only if nothing of it came."""
        retries = self.new_retries()
        while True:
            begun, outcome = False, cast(Outcome, make_ended_early(self.settings))
            try:
                with closing(self._open(request)) as response:
                    if request.is_settled_by(outcome := Answer(response.status_code, response.headers, b"")):
                        begun = True
                        for piece in response.iter_bytes():
                            yield piece
                        return
                    outcome = Answer(response.status_code, response.headers, response.read())
            except httpx2.RequestError as error:
                outcome = make_lost(error, self.settings)
            pause = None if begun else retries.pause_after(request, outcome)
            if pause is None:
                raise make_failure(request, outcome)
            self._sleep(pause)

    def _send(self, request: Request) -> Outcome:
        http = self._http.get()
        try:
            response = http.send(build_request(http, self.settings, request))
        except httpx2.RequestError as error:
            return make_lost(error, self.settings)
        return Answer(response.status_code, response.headers, response.content)

    def _open(self, request: Request) -> httpx2.Response:
        http = self._http.get()
        return http.send(build_request(http, self.settings, request, streaming=True), stream=True)


def _read_frames(response: httpx2.Response) -> Generator[httpx2.ServerSentEvent, None]:
    # It is a generator, which the library's annotation does not say.
    return cast(Generator[httpx2.ServerSentEvent, None], iter(httpx2.EventSource(response, max_event_size=None)))
