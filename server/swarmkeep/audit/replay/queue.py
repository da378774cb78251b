"""Replays one after the other, for each has a whole log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from swarmkeep.domain.errors import Overloaded


class ReplayQueue:
    """Lets the replays of each tenant run one at a time, and no more than so many wait for that."""

    def __init__(self, most_waiting: int) -> None:
        self._most = most_waiting
        self._turns: dict[str, asyncio.Lock] = {}
        self._counts: dict[str, int] = {}

    @asynccontextmanager
    async def enter(self, tenant: str) -> AsyncIterator[None]:
        """Raises Overloaded."""
        count = self._counts.get(tenant, 0)
        if count > self._most:
            raise Overloaded(detail="too many replays are waiting; try again")
        self._counts[tenant] = count + 1
        try:
            async with self._turns.setdefault(tenant, asyncio.Lock()):
                yield
        finally:
            self._counts[tenant] -= 1
            if not self._counts[tenant]:
                del self._counts[tenant], self._turns[tenant]
