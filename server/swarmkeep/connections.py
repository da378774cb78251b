"""Limits on HTTP connections that the HTTP server itself leaves open: slow heads, and readers that have stopped."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class BoundedConnection(HttpToolsProtocol):
    """An HTTP connection with bounds: on the time and the size of a request's head, and on a reader that has stopped.

    Without them a client could keep a connection for ever by never finishing its head, fill memory with it, or hold an
    answer back by reading none of it.
    """

    head_bytes = 65_536

    def __init__(self, *args: Any, head_seconds: float, stalled_seconds: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_seconds = head_seconds
        self._stalled_seconds = stalled_seconds
        self._in_head = False
        self._head_size = 0
        self._head_limit: asyncio.TimerHandle | None = None
        self._stall_limit: asyncio.TimerHandle | None = None
        self._unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:
            # The next request, or the rest of a body that was refused: both are given the same time.
            self._await_head()
        super().data_received(data)
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > self.head_bytes:
                self.transport.abort()

    def on_message_begin(self) -> None:
        self._in_head, self._head_size = True, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # What follows a body in pieces are headers, too; nobody reads them, and they have no end of their own.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_head:
            # The next request has begun to come while this one was answered.
            self._await_head()

    def _await_head(self) -> None:
        if self._head_limit is None:
            self._head_limit = self.loop.call_later(self._head_seconds, self.transport.abort)

    def _end_head(self) -> None:
        self._in_head = False
        if self._head_limit is not None:
            self._head_limit.cancel()
            self._head_limit = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        if self._stall_limit is not None:
            self._stall_limit.cancel()
            self._stall_limit = None
        if self.flow is not None:
            super().resume_writing()

    def _watch_reader(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._stall_limit = self.loop.call_later(self._stalled_seconds, self._check_reader)

    def _check_reader(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent:
            self._watch_reader()
        else:
            self.transport.abort()
