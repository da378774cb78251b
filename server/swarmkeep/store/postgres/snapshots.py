"""Reads that take their time, in a thread and a loop of their own: nobody waits for what they decode and check."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import greenlet_spawn

from swarmkeep.store.postgres.connections import make_engine, pin_moment, run_query
from swarmkeep.store.urls import PostgresServer

T = TypeVar("T")


class SnapshotThread:
    """Runs queries, each of which sees the database at one moment. The thread is made when it is first needed.

    The engine is this loop's own: connections belong to the loop that they were made in.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._engine: AsyncEngine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def run(self, query: Callable[[Connection], T]) -> T:
        """Run a query; what it raises comes as it is. Cancelled, it ends at its next statement."""
        loop = self._loop or self._start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._read(query), loop))

    def _start(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.new_event_loop()
        # A daemon, so that a program which forgets to close can still end.
        self._thread = threading.Thread(target=self._loop.run_forever, name="swarmkeep-snapshot", daemon=True)
        self._thread.start()
        return self._loop

    async def _read(self, query: Callable[[Connection], T]) -> T:
        if self._engine is None:
            self._engine = make_engine(self._server)
        return await greenlet_spawn(run_query, pin_moment(self._engine).sync_engine, query)

    async def close(self) -> None:
        """End what goes on, and the thread. A second time does nothing."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._finish(), loop))
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()

    async def _finish(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._engine is not None:
            await self._engine.dispose()
