"""Streams: server-sent events and JSON lines, sent as they come, dropped once the client stops reading."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, aclosing
from itertools import starmap
from operator import is_not
from typing import Any

import msgspec
from litestar import Response

from swarmkeep.events.codec import encode
from swarmkeep.events.errors import Overloaded
from swarmkeep.events.facts import RecordedEvent, view_event
from swarmkeep.events.wording import escape_line
from swarmkeep.http.access import SEND_PART
from swarmkeep.http.metrics import Receive, Scope, Send, wait_for_disconnect
from swarmkeep.logs import outage_log
from swarmkeep.runs.hub import Item, MessageDeltas, MessageStarted
from swarmkeep.store.records import StoreUnavailable

log = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"
ZIP = "application/zip"

_PARTS_IN_A_ROW = 100
_SENT_AT_ONCE = 1024 * 1024


class JsonAnswer(msgspec.Struct, frozen=True):
    """Answers in the place of a stream that failed before its first part."""

    status: int
    body: bytes
    headers: dict[str, str]


Begin = Callable[[AsyncGenerator[bytes]], Awaitable[bytes | JsonAnswer]]


class StreamResponse(Response[Any]):
    """An answer whose parts come from a generator, which is closed when the client goes away.

    It also ends when `until` returns: the generator cannot end it while the reader takes nothing. `begin` reads the
    first parts, and returns what is sent of them, or a JSON answer in the place of the stream.
    """

    def __init__(
        self,
        parts: AsyncGenerator[bytes],
        media_type: str,
        headers: Mapping[str, str] | None = None,
        until: Callable[[], Coroutine[Any, Any, None]] | None = None,
        begin: Begin | None = None,
    ) -> None:
        always = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(None, media_type=media_type, headers={**always, **(headers or {})})
        self._parts = parts
        self._until = until
        self._begin = begin

    def to_asgi_response(self, *args: Any, **kwargs: Any) -> Any:
        return self._send

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        send_part = scope.get(SEND_PART, send)
        pump = asyncio.create_task(self._pump(send, send_part))
        tasks = [pump, asyncio.create_task(wait_for_disconnect(receive))]
        if self._until is not None:
            tasks.append(asyncio.create_task(self._until()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, send: Send, send_part: Send) -> None:
        async with aclosing(self._parts) as parts:
            try:
                first = b"" if self._begin is None else await self._begin(parts)
                if isinstance(first, JsonAnswer):
                    await self._send_head(send, first.status, "application/json", first.headers)
                    await send({"type": "http.response.body", "body": first.body, "more_body": False})
                    return
                charset = "" if self.media_type == ZIP else "; charset=utf-8"
                await self._send_head(send, 200, f"{self.media_type}{charset}", self.headers)
                if first:
                    await send_part({"type": "http.response.body", "body": first, "more_body": True})
                count = 0
                async for part in parts:
                    await send_part({"type": "http.response.body", "body": part, "more_body": True})
                    count += 1
                    if count % _PARTS_IN_A_ROW == 0:
                        # As long as there is more at once, nothing here waits, and no other task gets a turn.
                        await asyncio.sleep(0)
            except (StoreUnavailable, Overloaded) as error:
                self._note_break(error)
                return
            except Exception:
                # The status may be out. Without its end, the server closes the connection and the client can tell.
                log.exception("a stream failed")
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _note_break(self, error: Exception) -> None:
        if self.media_type == EVENT_STREAM:
            outage_log.note(error, "streams broken off")
        else:
            # There are few of them, and what is written down may have been deleted meanwhile, too.
            log.warning("a download was broken off: %s", error)

    async def _send_head(self, send: Send, status: int, media_type: str, headers: Mapping[str, str]) -> None:
        head = [(b"content-type", media_type.encode())]
        head += [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": head})


def make_counted_response(body: bytes, taken: ExitStack) -> Response[Any]:
    """An answer of JSON for which memory was `taken`: if it is large, that is given back when all is sent, or dropped.

    A reader may be slow: what is not sent yet counts until then.
    """
    if len(body) <= _SENT_AT_ONCE:
        return Response[Any](body, media_type="application/json")
    give_back = taken.pop_all().close
    parts = _send_slices(body, give_back)
    weakref.finalize(parts, give_back)
    return StreamResponse(parts, "application/json")


async def _send_slices(body: bytes, give_back: Callable[[], None]) -> AsyncGenerator[bytes]:
    try:
        for start in range(0, len(body), _SENT_AT_ONCE):
            yield body[start : start + _SENT_AT_ONCE]
    finally:
        give_back()


def frame(event: str, data: bytes, place: int | str | None = None) -> bytes:
    """One server-sent event. Its data is JSON in one line; `place` is the id that a reader goes on after."""
    line = b"" if place is None else f"id: {place}\n".encode()
    # A type that came out of a file may be any text, and is not to begin a line, or a frame, of its own.
    name = event if event.isprintable() else escape_line(event)
    return b"%bevent: %b\ndata: %b\n\n" % (line, name.encode(errors="backslashreplace"), data)


def comment(text: str) -> bytes:
    return f": {text}\n\n".encode()


FrameParts = tuple[str, bytes, int | None]


class _DeltaData(msgspec.Struct, omit_defaults=True):
    """The data of a delta."""

    run_id: str
    agent: str
    content: Any = None
    tool_calls: Any = None


def list_frame_parts(item: Item) -> list[FrameParts]:
    """The event, data and seq of each frame of an item; none for a delta that says nothing."""
    match item:
        case RecordedEvent():
            return [(item.type, encode(view_event(item)), item.seq)]
        case MessageStarted():
            return [("message.started", encode({"run_id": item.run_id, "agent": item.agent}), None)]
        case MessageDeltas():
            parts: list[FrameParts] = []
            for delta in item.deltas:
                content, calls = delta.get("content") or None, delta.get("tool_calls") or None
                if content or calls:
                    parts.append(("message.delta", encode(_DeltaData(item.run_id, item.agent, content, calls)), None))
            return parts


def write_item(item: Item) -> bytes:
    """The frames of an item."""
    return b"".join(starmap(frame, list_frame_parts(item)))


class FrameWriter:
    """Writes the items of a session as frames, once for all readers of the session.

    The readers are woken together and get the same items one after the other. So it is enough to keep the last frames,
    and what identifies their items.
    """

    def __init__(self) -> None:
        self._ids: Sequence[object] = ()
        self._frames = b""

    def write(self, items: Sequence[Item]) -> bytes:
        # An event's hash is a text of its own for each time that it is read. The event itself may be large.
        ids = [item.hash if isinstance(item, RecordedEvent) else item for item in items]
        known = self._ids
        # Nothing is kept while nothing happens.
        if len(known) != len(ids) or any(map(is_not, known, ids)):
            self._ids, self._frames = ids, b"".join(map(write_item, items))
        return self._frames
