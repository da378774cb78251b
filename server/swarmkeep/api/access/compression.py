"""Compresses answers that come in one piece, for clients that accept it; a large one in a thread.

Streams are not compressed: their parts are to arrive at once.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable

from swarmkeep.api.access.asgi import Application, Message, Receive, Scope, Send
from swarmkeep.api.aside import run_aside
from swarmkeep.api.parameters import takes_gzip

SMALLEST_BYTES = 1_000
"""What is smaller takes one packet either way."""

_LEVEL = 5
_MAX_BYTES_ON_LOOP = 32_000
_TYPES = (b"application/json", b"application/problem+json", b"application/vnd.oai.openapi+json", b"text/")


class Compression:
    """An ASGI application around another."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] != "HEAD" and takes_gzip(scope["headers"]):
            send = _CompressedAnswer(send).send
        await self._app(scope, receive, send)


class _CompressedAnswer:
    """Sends an answer on. The start of one that is to be compressed is held back until its body is there."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_compressible(message["headers"]):
            self._start = message
            return
        if self._start is not None:
            start, self._start = self._start, None
            # A body that has a length is one piece; should one not be, it goes on as it is.
            if message["type"] == "http.response.body" and not message.get("more_body"):
                start, message = await _compress(start, message)
            await self._send(start)
        await self._send(message)


def _is_compressible(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    named = {name.lower(): value for name, value in headers}
    # Streams have no length.
    length, kind = named.get(b"content-length", b"0"), named.get(b"content-type", b"")
    return int(length) >= SMALLEST_BYTES and kind.startswith(_TYPES) and b"content-encoding" not in named


async def _compress(start: Message, body: Message) -> tuple[Message, Message]:
    whole = body.get("body", b"")
    small = await run_aside(len(whole) > _MAX_BYTES_ON_LOOP, _gzip, whole)
    headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
    headers += [
        (b"content-encoding", b"gzip"),
        (b"vary", b"Accept-Encoding"),
        (b"content-length", str(len(small)).encode()),
    ]
    return {**start, "headers": headers}, {**body, "body": small}


def _gzip(whole: bytes) -> bytes:
    # Without a time, the same answer has the same bytes.
    return gzip.compress(whole, _LEVEL, mtime=0)
