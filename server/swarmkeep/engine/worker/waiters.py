"""Futures of those in this process who wait for a run to end."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from swarmkeep.domain.state import State
from swarmkeep.store.ports import SessionKey


class Waiters:
    """Futures that are done when there is reason to look at a run again."""

    def __init__(self) -> None:
        self._waiting: dict[SessionKey, dict[str, set[asyncio.Future[State | None]]]] = {}
        self.is_closed = False

    def __len__(self) -> int:
        return sum(len(waiting) for runs in self._waiting.values() for waiting in runs.values())

    def __contains__(self, key: SessionKey) -> bool:
        return key in self._waiting

    def list_keys(self) -> Collection[SessionKey]:
        return self._waiting

    @contextmanager
    def add_waiter(self, key: SessionKey, run_id: str) -> Iterator[asyncio.Future[State | None]]:
        """A future that is done when the run ends or waits, or its session moved elsewhere.

        Where this process recorded that, it gives the session's state after it, so that nobody reads what was just
        written.
        """
        waiter: asyncio.Future[State | None] = asyncio.get_running_loop().create_future()
        runs = self._waiting.setdefault(key, {})
        waiting = runs.setdefault(run_id, set())
        waiting.add(waiter)
        try:
            yield waiter
        finally:
            waiting.discard(waiter)
            if not waiting:
                runs.pop(run_id, None)
            if not runs:
                self._waiting.pop(key, None)

    def wake(self, key: SessionKey, run_id: str | None = None, state: State | None = None) -> None:
        """Have those look again who wait for a run of this session, or for this run; in `state`, if it is known."""
        for name, waiting in self._waiting.get(key, {}).items():
            if run_id in (None, name):
                for waiter in waiting:
                    if not waiter.done():
                        waiter.set_result(state)

    def close(self) -> None:
        """Have all look a last time: nobody will be told of anything any more."""
        self.is_closed = True
        for key in self._waiting:
            self.wake(key)
