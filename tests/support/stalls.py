"""Watches whether an event loop stands still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_BEAT_SECONDS = 0.005


class Stalls:
    """The longest time that the loop gave nobody a turn."""

    longest_seconds = 0.0


@asynccontextmanager
async def watch_stalls() -> AsyncIterator[Stalls]:
    """While this lasts, the running loop is looked at every few milliseconds."""
    found = Stalls()

    async def beat() -> None:
        before = time.monotonic()
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            now = time.monotonic()
            found.longest_seconds = max(found.longest_seconds, now - before - _BEAT_SECONDS)
            before = now

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0)
    try:
        yield found
        # What stood still until now is seen by one more beat.
        await asyncio.sleep(_BEAT_SECONDS)
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
