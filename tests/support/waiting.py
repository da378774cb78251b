"""Waiting for what nobody tells of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def wait_until(holds: Callable[[], object]) -> None:
    """Once that holds, of something in this process that tells nobody of its changes."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
