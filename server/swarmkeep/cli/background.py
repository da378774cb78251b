"""An event loop beside the main thread, which stays free to wait for a person and to be interrupted by one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """Runs coroutines in a thread of its own.

    Ctrl-C is raised in the main thread only: what runs here is not torn in the middle of a step, and leases go on being
    renewed while the main thread waits for input.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="swarmkeep", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns, or raises."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def iterate(self, items: AsyncGenerator[T | None]) -> Iterator[T]:
        """The items of an asynchronous generator; a None is left out. The generator is closed when the reader stops."""
        arrived: SimpleQueue[tuple[T | None, BaseException | None, bool]] = SimpleQueue()

        async def pump() -> None:
            try:
                async with aclosing(items):
                    async for item in items:
                        if item is not None:
                            arrived.put((item, None, False))
            except BaseException as error:
                arrived.put((None, error, True))
                raise
            arrived.put((None, None, True))

        pumping = asyncio.run_coroutine_threadsafe(pump(), self._loop)
        try:
            while True:
                item, error, ended = arrived.get()
                if error is not None:
                    raise error
                if ended:
                    return
                yield item  # type: ignore[misc]
        finally:
            pumping.cancel()

    def close(self) -> None:
        """Cancel what still runs, and end the thread."""
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()
