"""A receiver of webhooks: an HTTP server in a thread of its own, which keeps what comes and answers as it is told."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from aiohttp import web

PATIENCE_SECONDS = 20.0


class Received(msgspec.Struct, frozen=True):
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def place(self) -> tuple[str, int]:
        """The session and seq of the event that it is about."""
        return self.event["data"]["session_id"], self.event["data"]["seq"]


Answer = Callable[[Received], Awaitable[int | tuple[int, Mapping[str, str]]]]


class Receiver:
    """`answer` gives the status, and perhaps headers; `taken` is what was answered with a 2xx."""

    def __init__(self) -> None:
        self.url = ""
        self.received: list[Received] = []
        self.taken: list[Received] = []
        self._news = threading.Condition()

    async def answer(self, _: Received) -> int | tuple[int, Mapping[str, str]]:
        return 204

    async def handle(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        found = Received(request.path, headers, await request.read())
        self.received.append(found)
        answer = await self.answer(found)
        status, sent = answer if isinstance(answer, tuple) else (answer, {})
        if status < 300:
            self.taken.append(found)
        with self._news:
            self._news.notify_all()
        return web.Response(status=status, headers=sent)

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that follows from what has come."""
        await asyncio.to_thread(self.wait, holds)

    def wait(self, holds: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
        with self._news:
            assert self._news.wait_for(holds, seconds), [(one.path, one.event["type"]) for one in self.received]


@contextmanager
def receiving(context: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """A receiver on a free port of the loopback; with `context` it is `https://localhost`."""
    receiver = Receiver()
    loop = asyncio.new_event_loop()
    app = web.Application(client_max_size=10_000_000)
    app.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(start(), loop).result()

    async def stop() -> None:
        # One of TLS would wait for the other side to take leave, whose loop may be waiting for this one.
        for one in runner.server.connections if runner.server else ():
            if one.transport is not None:
                one.transport.abort()
        await runner.cleanup()

    host = "http://127.0.0.1" if context is None else "https://localhost"
    receiver.url = f"{host}:{runner.addresses[0][1]}"
    try:
        yield receiver
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
