"""Requests as the HTTP library wants them, and its failures as ours: for both senders."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import replace
from typing import BinaryIO, Generic, TypeVar

import httpx2

from swarmkeep_client._settings import Settings
from swarmkeep_client._traces import make_trace_headers
from swarmkeep_client._wire import LostAnswer, Request

H = TypeVar("H")

# Each stream holds a connection for as long as it is read, so the number of connections must not be a limit.
LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
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


def build_request(
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


def make_lost(error: httpx2.RequestError, settings: Settings) -> LostAnswer:
    """Convert a failed exchange to a failure of the call. A request that cannot be sent as it is, is not sent again."""
    hopeless = isinstance(error, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError)
    reason = f"{str(error) or type(error).__name__} (at {settings.base_url})"
    return LostAnswer(reason, error, temporary=not hopeless)


def make_ended_early(settings: Settings) -> LostAnswer:
    return LostAnswer(f"the stream ended before its last frame (at {settings.base_url})")
