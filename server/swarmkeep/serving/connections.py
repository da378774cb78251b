"""Limits on connections that the HTTP server itself leaves open: slow heads, and readers that have stopped."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame


class UnsentLimit:
    """Bounds what all connections together hold for readers that are slow.

    Above the limit, the connections whose readers have taken nothing for the longest are aborted, which also frees what
    their answers are made of. A client that reconnects to a stream misses nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sizes: dict[asyncio.Transport, int] = {}
        self._total = 0

    def add(self, transport: asyncio.Transport) -> None:
        """Count a connection as it is now, and as one that has just taken something."""
        self._count(transport)
        if self._total > self._max_bytes:
            self._count_anew(transport)
        while self._total > self._max_bytes and len(self._sizes) > 1:
            longest = next(iter(self._sizes))
            self.remove(longest)
            longest.abort()

    def _count_anew(self, last: asyncio.Transport) -> None:
        """Count again the connections whose readers have taken something meanwhile, and `last` after them."""
        for transport, size in list(self._sizes.items()):
            if transport.get_write_buffer_size() < size:
                self._count(transport)
        self._count(last)

    def _count(self, transport: asyncio.Transport) -> None:
        self.remove(transport)
        size = self._sizes[transport] = transport.get_write_buffer_size()
        self._total += size

    def remove(self, transport: asyncio.Transport) -> None:
        self._total -= self._sizes.pop(transport, 0)


class StallLimit:
    """Ends a connection whose reader takes nothing of what is to be sent, or too slowly once it is to be closed."""

    def __init__(self, seconds: float, unsent: UnsentLimit) -> None:
        self._seconds = seconds
        self._unsent_limit = unsent
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0

    def watch(self, transport: asyncio.Transport) -> None:
        self.stop()
        self._transport = transport
        self._unsent_limit.add(transport)
        self._unsent = transport.get_write_buffer_size()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._check, transport)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._unsent_limit.remove(self._transport)
            self._transport = None

    def _check(self, transport: asyncio.Transport) -> None:
        # Closing waits for the reader, who may take a byte now and then for ever.
        if transport.get_write_buffer_size() < self._unsent and not transport.is_closing():
            self.watch(transport)
        else:
            # After an upgrade nobody else tells that the connection is gone.
            self.stop()
            transport.abort()


class BoundedConnection(HttpToolsProtocol):
    """An HTTP connection with bounds: on the time and the size of a request's head, and on a reader that has stopped.

    Without them a client could keep a connection for ever by never finishing its head, fill memory with it, or hold an
    answer back by reading none of it.
    """

    head_bytes = 65_536

    def __init__(
        self, *args: Any, head_seconds: float, stalled_seconds: float, unsent: UnsentLimit, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._head_seconds = head_seconds
        self._stall = StallLimit(stalled_seconds, unsent)
        self._in_head = False
        self._head_size = 0
        self._head_limit: asyncio.TimerHandle | None = None

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
        self._stall.watch(self.transport)

    def resume_writing(self) -> None:
        self._stall.stop()
        if self.flow is not None:
            super().resume_writing()


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket with bounds: on what waits for a reader that has stopped, and for how long, and on unfinished frames.

    Without them a viewer that reads nothing would be kept for ever, and could fill memory with answers to its pings or
    with a message in pieces that never ends.
    """

    def __init__(self, *args: Any, stalled_seconds: float, unsent: UnsentLimit, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stall = StallLimit(stalled_seconds, unsent)
        self._is_write_paused = False
        self._owed_pong = b""

    def connection_lost(self, exc: Exception | None) -> None:
        self._stall.stop()
        self._owed_pong = b""
        super().connection_lost(exc)

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        # A refusal is an answer, too: uvicorn would take it for none, and log that as an error of the application.
        if self.close_sent:
            self.handshake_complete = True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._is_write_paused = True
        self._stall.watch(self.transport)

    def resume_writing(self) -> None:
        self._is_write_paused = False
        if not self.transport.is_closing():
            self._stall.stop()
        pong, self._owed_pong = self._owed_pong, b""
        if pong and not (self.close_sent or self.transport.is_closing()):
            self.transport.write(pong)
        super().resume_writing()

    def handle_ping(self) -> None:
        if not self._is_write_paused:
            return super().handle_ping()
        # RFC 6455, 5.5.3: of several pings only the last one has to be answered.
        for part in self.conn.data_to_send():
            self._owed_pong = part or self._owed_pong
        return None

    def handle_cont(self, event: Frame) -> None:
        # One text that grows: a list of pieces takes many times their size where they are small.
        if not isinstance(self.frames[0], bytearray):
            self.frames[0] = bytearray(self.frames[0])  # type: ignore[call-overload]
        self.frames[0] += event.data
        if event.fin:
            self.send_receive_event_to_app()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._limit_closing()

    def handle_close(self, event: Frame) -> None:
        super().handle_close(event)
        self._limit_closing()

    def handle_parser_exception(self) -> None:
        super().handle_parser_exception()
        self._limit_closing()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self._limit_closing()

    def _limit_closing(self) -> None:
        """What is closed waits until the rest was taken; not for ever."""
        if self.transport.is_closing() and not self.disconnected:
            self._stall.watch(self.transport)
