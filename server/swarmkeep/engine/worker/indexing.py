"""The server's task that keeps the index of words: behind what is recorded, and never in its way."""

from __future__ import annotations

import asyncio
import logging
import random
import time

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.engine.attempts import log_failure
from swarmkeep.store.ports import SearchIndexer

log = logging.getLogger(__name__)

# How long others may have to wait for what is recorded here, so that many turns are indexed in one go.
_GATHER_SECONDS = 0.3
# How soon what other processes have recorded is looked for: whoever recorded it is likely to be first.
_POLL_SECONDS = 3.0
# Of a long backlog: for each second of work so many are left to all else.
_REST = 3.0


class SearchIndexing:
    """Indexes what was recorded, here and elsewhere, until it is stopped. `sessions_behind`: how many were to be done
    when it looked last."""

    def __init__(self, store: SearchIndexer) -> None:
        self._store = store
        self._recorded = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._has_failed = False
        self.sessions_behind = 0

    def observe_event(self, event: RecordedEvent) -> None:
        """Note what was recorded in this process."""
        if event.type.startswith(("run.", "session.")):
            self._recorded.set()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                await self._index_all()
                self._has_failed = False
            except Exception as error:
                # Said once: whoever needs the database notices by himself.
                if not self._has_failed:
                    log_failure(log, error, "the search index could not be updated; trying again")
                self._has_failed = True
            await self._wait()

    async def _index_all(self) -> None:
        """Index what there is, until fewer sessions are behind than were just done: these are gathered again."""
        self.sessions_behind = await self._store.count_sessions_behind()
        while self.sessions_behind:
            began = time.monotonic()
            done = await self._store.index_some()
            if not done:
                break
            await asyncio.sleep((time.monotonic() - began) * _REST)
            self.sessions_behind = await self._store.count_sessions_behind()
            if 0 < self.sessions_behind < done:
                self._recorded.set()
                break

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(_POLL_SECONDS * (1 + random.random())):
                await self._recorded.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_GATHER_SECONDS)
        self._recorded.clear()
