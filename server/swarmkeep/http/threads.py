"""Long work: done in a thread, bounded in memory, or cancelled when its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from litestar.types import Receive

from swarmkeep.http.metrics import wait_for_disconnect

P = ParamSpec("P")
T = TypeVar("T")


class ClientGone(Exception):
    """The client of a request left before there was an answer."""


async def run_aside(is_long: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do the work, in a thread if it is long, and return its result."""
    return await asyncio.to_thread(work, *args, **kwargs) if is_long else work(*args, **kwargs)


class ByteBudget:
    """Bounds the memory of large answers: those that do not fit wait, the first one first."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self.used = 0

    @property
    def is_awaited(self) -> bool:
        return self._turn.locked()

    async def take(self, size: int) -> Callable[[], None]:
        """Wait until `size` bytes fit, and return what gives them back; once, however often it is called.

        What is larger than all is let in when it is alone.
        """
        size = min(size, self._total)
        async with self._turn:
            while self.used + size > self._total:
                self._changed.clear()
                await self._changed.wait()
            self.used += size
        left = [size]

        def give_back() -> None:
            if left:
                self.used -= left.pop()
                self._changed.set()

        return give_back


async def wait_for_client(work: Awaitable[T], receive: Receive, seconds: float) -> T:
    """Wait for the result of `work`, as long as the client of the request is there. Raises ClientGone.

    The client is watched after `seconds` only: most results come before, and watching takes a task. The request must
    have been read.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    watching: list[asyncio.Task[None]] = []

    def watch() -> None:
        watching.append(loop.create_task(wait_for_disconnect(receive)))
        watching[0].add_done_callback(lambda watcher: watcher.cancelled() or task.cancel())

    timer = loop.call_later(seconds, watch)
    try:
        return await work
    except asyncio.CancelledError:
        if watching and watching[0].done() and not task.uncancel():
            raise ClientGone from None
        raise
    finally:
        timer.cancel()
        for watcher in watching:
            watcher.cancel()
