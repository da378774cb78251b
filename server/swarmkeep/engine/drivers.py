"""The sessions that this process advances, each by a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.engine.ledger import StoreLedger
from swarmkeep.store.ports import Lease, SessionKey

# How long what was stopped may take to tidy up before nobody waits for it any more.
_FAREWELL_SECONDS = 2.0

Advance = Callable[[StoreLedger, list[RecordedEvent]], Awaitable[None]]


class _Drive(msgspec.Struct, frozen=True):
    ledger: StoreLedger
    task: asyncio.Task[None]

    @property
    def concludes(self) -> bool:
        """Whether it is about to end by itself: its run is over, or it is just finding out."""
        return self.ledger.lease is None or self.ledger.committing


class Drivers:
    """Begins, replaces and stops the tasks. `advance` is what they do; `left` hears of a session that has none now."""

    def __init__(self, advance: Advance, left: Callable[[SessionKey], None]) -> None:
        self._advance = advance
        self._left = left
        self._drives: dict[SessionKey, _Drive] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __contains__(self, key: SessionKey) -> bool:
        return key in self._drives

    def __len__(self) -> int:
        return len(self._drives)

    def drive(self, ledger: StoreLedger, begun: list[RecordedEvent]) -> None:
        """Go on with a session whose lease the ledger holds; `begun` is what set it going.

        What was going on there before is over. If it does not know that yet, it is stopped, and nobody waits for its
        farewell; if it does, what it recorded last is shown first.
        """
        before = self._drives.get(ledger.key)
        if before is not None and not before.concludes:
            self.abandon(ledger.key)
            before = None
        task = asyncio.create_task(self._drive(ledger, begun, before))
        self._drives[ledger.key] = _Drive(ledger, task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drive(self, ledger: StoreLedger, begun: list[RecordedEvent], before: _Drive | None) -> None:
        try:
            if before is not None:
                await asyncio.wait([before.task])
            await self._advance(ledger, begun)
        finally:
            drive = self._drives.get(ledger.key)
            if drive is not None and drive.ledger is ledger:
                self._forget(ledger.key)

    def abandon(self, key: SessionKey) -> None:
        """Stop working on a session: a model call is dropped, a late result ignored."""
        drive = self._drives.get(key)
        if drive is not None:
            drive.task.cancel()
            self._forget(key)

    def _forget(self, key: SessionKey) -> None:
        del self._drives[key]
        self._left(key)

    def leases(self) -> dict[SessionKey, Lease]:
        """The leases in hand."""
        return {key: drive.ledger.lease for key, drive in self._drives.items() if drive.ledger.lease is not None}

    def lost(self, key: SessionKey, lease: Lease) -> bool:
        """Stop working on a session whose lease is not this one any more; True if that was news."""
        drive = self._drives.get(key)
        if drive is None or drive.concludes or drive.ledger.lease != lease:
            return False
        self.abandon(key)
        return True

    async def stop(self, seconds: float) -> list[StoreLedger]:
        """Let them end in that time, then stop the others; returns the ledgers of those."""
        if self._drives:
            await asyncio.wait([drive.task for drive in self._drives.values()], timeout=seconds)
        stopped = [drive.ledger for drive in self._drives.values()]
        for ledger in stopped:
            self.abandon(ledger.key)
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=_FAREWELL_SECONDS)
        return stopped
