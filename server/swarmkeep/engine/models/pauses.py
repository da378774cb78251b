"""Pauses that a server's end cuts short."""

from __future__ import annotations

import asyncio


class ServerStopping(Exception):
    """The server is being stopped, so that the pause is not worth waiting for."""


class Pauses:
    """What pauses in a process, until it is told to stop. From then on every pause is over before it begins."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Return after that time. Raises Stopped as soon as `end` was called."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return
        raise ServerStopping

    def end(self) -> None:
        self._ended.set()
