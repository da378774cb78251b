"""Work that takes long: done where others do not wait for it, and dropped once nobody waits for it any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from litestar.types import Receive

from swarmkeep.api.sse import wait_for_disconnect

P = ParamSpec("P")
T = TypeVar("T")


class ClientGone(Exception):
    """Whoever asked has gone before there was an answer."""


async def run_aside(is_long: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What it returns: done in a thread if it is long, and at once if not."""
    return await asyncio.to_thread(work, *args, **kwargs) if is_long else work(*args, **kwargs)


async def wait_for_client(work: Awaitable[T], receive: Receive, seconds: float) -> T:
    """What `work` comes to, for the client of a request that has been read. Raises ClientGone when there is none.

    It is looked after `seconds` only: most answers are there before, and to look takes a task of its own.
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
