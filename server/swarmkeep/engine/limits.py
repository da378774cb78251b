"""How long things may take, and how much: what a server tells the loop of each session."""

from __future__ import annotations

from asyncio import timeout
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import msgspec

from swarmkeep.domain.state import Run
from swarmkeep.domain.times import format_time
from swarmkeep.engine.policy import RunTimedOut
from swarmkeep.engine.streaming import Hub
from swarmkeep.store.ports import SessionKey


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds. `max_recoveries`: take-overs of one turn before a run is given up as interrupted.

    `loop_turns` and `history_turns` are written into each run's options.
    """

    lease_seconds: float = 15.0
    grace_seconds: float = 10.0
    run_seconds: float | None = None
    tool_seconds: float | None = 300.0
    approval_seconds: float | None = None
    poll_seconds: float = 0.5
    max_recoveries: int = 5
    loop_turns: int | None = None
    history_turns: int | None = None


class SessionPolicy:
    """What the loop of one session is told."""

    shortens_history = True

    def __init__(self, limits: Limits, hub: Hub, key: SessionKey) -> None:
        self._limits = limits
        self._hub = hub
        self._key = key
        self.tool_seconds = limits.tool_seconds

    def should_stream(self, run: Run) -> bool:
        return run.options.stream or self._hub.has_readers(self._key)

    def approval_expires_at(self) -> str | None:
        if self._limits.approval_seconds is None:
            return None
        at = datetime.now(UTC) + timedelta(seconds=self._limits.approval_seconds)
        return format_time(at)

    @asynccontextmanager
    async def time_limit(self, run: Run) -> AsyncGenerator[None]:
        if self._limits.run_seconds is None:
            yield
            return
        spent = datetime.now(UTC) - datetime.fromisoformat(run.active_since)
        try:
            async with timeout(self._limits.run_seconds - spent.total_seconds()) as limit:
                yield
        except TimeoutError:
            if limit.expired():
                raise RunTimedOut(self._limits.run_seconds) from None
            raise
