"""Compares this machine's clock with the database's: leases go by that one, the times of events by this one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import datetime

from swarmkeep.engine.attempts import UNAVAILABLE
from swarmkeep.store.clock import Clock, utc_now
from swarmkeep.store.ports.leases import Leases

log = logging.getLogger(__name__)

# Clocks that are kept in order differ by much less; lists, usage and quotas bear it.
TOLERATED_SECONDS = 5.0


class ClockWatch:
    """Says once when the clocks differ, once when they agree again, and each time that this one jumps.

    `ahead_seconds` is by how much this clock was ahead of the database's when it looked last; behind, if negative.
    """

    def __init__(
        self,
        store: Leases,
        *,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
        pause_seconds: float = 60.0,
    ) -> None:
        self._store = store
        self._clock = clock
        self._monotonic = monotonic
        self._pause_seconds = pause_seconds
        self._last: tuple[datetime, float] | None = None
        self._has_told = False
        self._task: asyncio.Task[None] | None = None
        self.ahead_seconds = 0.0

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
                await self.compare()
            except Exception:
                log.exception("the clocks could not be compared; trying again")
            await asyncio.sleep(self._pause_seconds)

    async def compare(self) -> None:
        """Look at both clocks. While the database is away there is nothing to compare."""
        self._notice_jump()
        before = self._clock()
        try:
            theirs = await self._store.read_clock()
        except UNAVAILABLE:
            return
        self.ahead_seconds = subtract_clocks(before, theirs, self._clock())
        differs = abs(self.ahead_seconds) > TOLERATED_SECONDS
        if differs and not self._has_told:
            log.warning("%s", describe_difference(self.ahead_seconds))
        elif self._has_told and not differs:
            log.warning("this machine's clock agrees with the database's again")
        self._has_told = differs

    def _notice_jump(self) -> None:
        now = self._clock(), self._monotonic()
        last, self._last = self._last, now
        if last is None:
            return
        jump = (now[0] - last[0]).total_seconds() - (now[1] - last[1])
        if abs(jump) > TOLERATED_SECONDS:
            how = "set back" if jump < 0 else "set ahead, or the machine slept,"
            log.warning("this machine's clock was %s by %.0f s; the times of events go by it", how, abs(jump))


def subtract_clocks(before: datetime, theirs: datetime, after: datetime) -> float:
    """By how many seconds one clock, read before and after another one, is ahead of it: at least, as it went on
    meanwhile."""
    if before > theirs:
        return (before - theirs).total_seconds()
    return min(0.0, (after - theirs).total_seconds())


def describe_difference(ahead_seconds: float) -> str:
    where = "ahead of" if ahead_seconds > 0 else "behind"
    return (
        f"this machine's clock is {abs(ahead_seconds):.0f} s {where} the database's: the times of events, the days of "
        "usage, what `prune` takes for old, and the expiry of API keys go by it; have both machines set their clocks "
        "by NTP"
    )
