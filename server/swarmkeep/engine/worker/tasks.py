"""The sessions that this process advances, each by a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.engine.session_log import StoreSessionLog
from swarmkeep.store.ports import Lease, SessionKey

# How long what was stopped may take to tidy up before nobody waits for it any more.
_CLEANUP_SECONDS = 2.0

Advance = Callable[[StoreSessionLog, list[RecordedEvent]], Awaitable[None]]


class _SessionTask(msgspec.Struct, frozen=True):
    ledger: StoreSessionLog
    task: asyncio.Task[None]

    @property
    def is_concluding(self) -> bool:
        """Whether it is about to end by itself: its run is over, or it is just finding out."""
        return self.ledger.lease is None or self.ledger.is_committing


class SessionTasks:
    """Begins, replaces and stops the tasks. `advance` is what they do; `left` hears of a session that has none now."""

    def __init__(self, advance: Advance, left: Callable[[SessionKey], None]) -> None:
        self._advance = advance
        self._on_task_end = left
        self._by_session: dict[SessionKey, _SessionTask] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __contains__(self, key: SessionKey) -> bool:
        return key in self._by_session

    def __len__(self) -> int:
        return len(self._by_session)

    def start_task(self, ledger: StoreSessionLog, begun: list[RecordedEvent]) -> None:
        """Go on with a session whose lease the ledger holds; `begun` is what set it going.

        What was going on there before is over. If it does not know that yet, it is stopped, and nobody waits for its
        farewell; if it does, what it recorded last is shown first.
        """
        before = self._by_session.get(ledger.key)
        if before is not None and not before.is_concluding:
            self.abandon(ledger.key)
            before = None
        task = asyncio.create_task(self._run_task(ledger, begun, before))
        self._by_session[ledger.key] = _SessionTask(ledger, task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_task(self, ledger: StoreSessionLog, begun: list[RecordedEvent], before: _SessionTask | None) -> None:
        try:
            if before is not None:
                await asyncio.wait([before.task])
            await self._advance(ledger, begun)
        finally:
            drive = self._by_session.get(ledger.key)
            if drive is not None and drive.ledger is ledger:
                self._forget(ledger.key)

    def abandon(self, key: SessionKey) -> None:
        """Stop working on a session: a model call is dropped, a late result ignored."""
        drive = self._by_session.get(key)
        if drive is not None:
            drive.task.cancel()
            self._forget(key)

    def _forget(self, key: SessionKey) -> None:
        del self._by_session[key]
        self._on_task_end(key)

    def leases(self) -> dict[SessionKey, Lease]:
        """The leases in hand."""
        return {key: drive.ledger.lease for key, drive in self._by_session.items() if drive.ledger.lease is not None}

    def lost(self, key: SessionKey, lease: Lease) -> bool:
        """Stop working on a session whose lease is not this one any more; True if that was news."""
        drive = self._by_session.get(key)
        if drive is None or drive.is_concluding or drive.ledger.lease != lease:
            return False
        self.abandon(key)
        return True

    async def stop(self, seconds: float) -> list[StoreSessionLog]:
        """Let them end in that time, then stop the others; returns the ledgers of those."""
        if self._by_session:
            await asyncio.wait([drive.task for drive in self._by_session.values()], timeout=seconds)
        stopped = [drive.ledger for drive in self._by_session.values()]
        for ledger in stopped:
            self.abandon(ledger.key)
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=_CLEANUP_SECONDS)
        return stopped
