"""What a connection does at once: tasks of their own, of which the first to end takes the others along."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from swarmkeep.api.websocket.frames import Socket, close_restarting


async def run_until_first(socket: Socket, lock: asyncio.Lock, *work: Coroutine[Any, Any, None]) -> None:
    """Do these until one of them ends, cancel the others, and close the connection. Raises what that one raises.

    What is being done under the lock is done to its end: a run that is recorded has to be set going, too.
    """
    tasks = [asyncio.create_task(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        async with lock:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
    await close_restarting(socket)
