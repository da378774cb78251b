"""Pauses that a server's end cuts short."""

from __future__ import annotations

import asyncio


class ServerStopping(Exception):
    """The server is being stopped, so that the pause is not worth waiting for."""


class Pauses:
    """The pauses of a process, until it is told to stop. From then on every pause is over before it begins."""

    def __init__(self) -> None:
        self._ended = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Return after that time. Raises ServerStopping as soon as `stop_waiting` was called."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return
        raise ServerStopping

    def stop_waiting(self) -> None:
        self._ended.set()
