"""The sessions that this process advances, each by a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

import msgspec

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import RunStarted
from swarmkeep.domain.facts.takeovers import SessionTakenOver
from swarmkeep.domain.state import STATUS_BY_ENDING, State
from swarmkeep.engine.session_log import StoreSessionLog
from swarmkeep.store.ports import Lease, SessionKey

# How long what was stopped may take to tidy up before nobody waits for it any more.
_CLEANUP_SECONDS = 2.0

Advance = Callable[[StoreSessionLog, list[RecordedEvent]], Awaitable[None]]


class _SessionTask(msgspec.Struct, frozen=True):
    session_log: StoreSessionLog
    task: asyncio.Task[None]

    @property
    def is_concluding(self) -> bool:
        """Whether it is about to end by itself: its run is over, or it is just finding out."""
        return self.session_log.lease is None or self.session_log.is_committing


class SessionTasks:
    """Begins, replaces and stops the tasks. `advance` is what they do; `on_end` is told which session has none now."""

    def __init__(self, advance: Advance, on_end: Callable[[SessionKey], None]) -> None:
        self._advance = advance
        self._on_task_end = on_end
        self._by_session: dict[SessionKey, _SessionTask] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __contains__(self, key: SessionKey) -> bool:
        return key in self._by_session

    def __len__(self) -> int:
        return len(self._by_session)

    def count_tenant(self, tenant: str) -> int:
        """How many runs of a tenant are active here; one that is over counts no more."""
        active = (key for key, current in self._by_session.items() if current.session_log.lease is not None)
        return sum(key.tenant == tenant for key in active)

    def start_task(self, session_log: StoreSessionLog, begun: list[RecordedEvent]) -> None:
        """Go on with a session whose lease the log holds; `begun` is what set it going.

        What was going on there before is over. If it does not know that yet, it is stopped, and nobody waits for its
        farewell; if it does, what it recorded last is shown first.
        """
        before = self._by_session.get(session_log.key)
        if before is not None and not before.is_concluding:
            self.abandon(session_log.key)
            before = None
        task = asyncio.create_task(self._run_task(session_log, begun, before))
        self._by_session[session_log.key] = _SessionTask(session_log, task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_task(
        self, session_log: StoreSessionLog, begun: list[RecordedEvent], before: _SessionTask | None
    ) -> None:
        try:
            if before is not None:
                await asyncio.wait([before.task])
            await self._advance(session_log, begun)
        finally:
            current = self._by_session.get(session_log.key)
            if current is not None and current.session_log is session_log:
                self._forget(session_log.key)

    def abandon(self, key: SessionKey) -> None:
        """Stop working on a session: a model call is dropped, a late result ignored."""
        current = self._by_session.get(key)
        if current is not None:
            current.task.cancel()
            self._forget(key)

    def _forget(self, key: SessionKey) -> None:
        del self._by_session[key]
        self._on_task_end(key)

    def list_keys(self) -> Collection[SessionKey]:
        return self._by_session

    def list_leases(self, keys: Iterable[SessionKey] | None = None) -> dict[SessionKey, Lease]:
        """The leases in hand, of these sessions or of all."""
        found = self._by_session.items() if keys is None else [(key, self._by_session.get(key)) for key in keys]
        return {
            key: current.session_log.lease
            for key, current in found
            if current is not None and current.session_log.lease is not None
        }

    def drop_lost(self, key: SessionKey, lease: Lease) -> bool:
        """Stop working on a session whose lease is not this one any more; True if that was news."""
        current = self._by_session.get(key)
        if current is None or current.is_concluding or current.session_log.lease != lease:
            return False
        self.abandon(key)
        return True

    async def stop(self, seconds: float) -> list[StoreSessionLog]:
        """Let them end in that time, then stop the others; returns the logs of those."""
        if self._by_session:
            await asyncio.wait([current.task for current in self._by_session.values()], timeout=seconds)
        stopped = [current.session_log for current in self._by_session.values()]
        for session_log in stopped:
            self.abandon(session_log.key)
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=_CLEANUP_SECONDS)
        return stopped


def has_stopped_run(events: Sequence[RecordedEvent], state: State) -> bool:
    """Whether the active run was ended by these events, after which `state` holds, or has to wait because somebody has
    taken over; not so if a queued one was ended."""
    kinds = {type(event.fact) for event in events}
    if SessionTakenOver in kinds:
        return state.status == "waiting"
    return not kinds.isdisjoint(STATUS_BY_ENDING) and (state.run is None or RunStarted in kinds)
