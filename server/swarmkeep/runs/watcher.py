"""Watches for what other processes record."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime

from swarmkeep.events.facts import RecordedEvent
from swarmkeep.events.state import State
from swarmkeep.events.wording import pluralize
from swarmkeep.runs.loop import UNAVAILABLE, log_failure
from swarmkeep.store.heads import SqlLeases
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import Clock, SessionKey, utc_now
from swarmkeep.store.search import SqlSearchIndexer

log = logging.getLogger(__name__)

# The end of a session: its last seq, and that event's hash, because one that is recreated has the same seqs.
_Head = tuple[int, str]
_NOWHERE: _Head = (0, "")


class Watcher:
    """Looks where the sessions end that have readers here: all of them with one query, at each poll, and at once those
    of which the database says that they have moved.

    `list_keys` gives the sessions, and `is_watched` says of one whether it is among them. `on_moved` is given those
    that end elsewhere than when last seen, or of which another process wants to know what a model is just saying.
    `on_hint` is given each session of which the database says that it has moved, of interest or not.
    """

    def __init__(
        self,
        store: SqlStore,
        list_keys: Callable[[], set[SessionKey]],
        is_watched: Callable[[SessionKey], bool],
        on_moved: Callable[[set[SessionKey]], Awaitable[None]],
        poll_seconds: float,
        on_hint: Callable[[SessionKey], None] | None = None,
    ) -> None:
        self._store = store
        self._on_hint = on_hint
        self._list_watched_keys = list_keys
        self._is_watched = is_watched
        self._on_sessions_moved = on_moved
        self._poll_seconds = poll_seconds
        self._seen_heads: dict[SessionKey, _Head] = {}
        self._hinted_keys: set[SessionKey] = set()
        self._hint_arrived = asyncio.Event()

    def note_seen(self, key: SessionKey, event: RecordedEvent) -> None:
        """This process has shown by itself what the session holds up to there."""
        self._seen_heads[key] = max((event.seq, event.hash), self._seen_heads.get(key, _NOWHERE))

    def was_seen(self, key: SessionKey) -> bool:
        """Tell if a session was there when last looked at."""
        return self._seen_heads.get(key, _NOWHERE) != _NOWHERE

    async def run(self) -> None:
        """Look until cancelled."""
        hearing = asyncio.create_task(self._store.listen(self._note_hint))
        try:
            await self._poll()
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    def _note_hint(self, key: SessionKey) -> None:
        self._hinted_keys.add(key)
        if self._on_hint is not None:
            self._on_hint(key)
        self._hint_arrived.set()

    async def _poll(self) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            if clock() >= due:
                keys = self._list_watched_keys()
                for key in self._seen_heads.keys() - keys:
                    del self._seen_heads[key]
                due = clock() + self._poll_seconds
            else:
                # Others' hints come often: they are not to cost more, the more is watched.
                keys = {key for key in self._hinted_keys if self._is_watched(key)}
            self._hinted_keys.clear()
            self._hint_arrived.clear()
            await self._check_heads(keys)
            try:
                async with asyncio.timeout_at(due):
                    await self._hint_arrived.wait()
            except TimeoutError:
                continue

    async def _check_heads(self, keys: set[SessionKey]) -> None:
        if not keys:
            return
        moved: set[SessionKey] = set()
        try:
            heads = await self._store.read_heads(keys)
            moved |= {key for key, head in heads.items() if self._is_news(key, (head.seq, head.hash))}
            moved |= {key for key in keys.difference(heads) if self._is_news(key, _NOWHERE)}
            moved |= {key for key, head in heads.items() if head.is_partial_wanted}
            if moved:
                await self._on_sessions_moved(moved)
        except Exception as error:
            # Commands that use the database notice by themselves; here the next poll does: untold news is news again.
            for key in moved:
                self._seen_heads.pop(key, None)
            log.debug("could not check %s: %s", pluralize(len(keys), "session"), error)

    def _is_news(self, key: SessionKey, head: _Head) -> bool:
        """Tell if a session ends elsewhere than when last seen; from now on it is seen there."""
        if self._seen_heads.get(key) == head:
            return False
        self._seen_heads[key] = head
        return True


# Work in the background of a server.


class Background(ABC):
    """Work that goes on from `start` to `stop`."""

    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    @abstractmethod
    async def _run(self) -> None: ...


# Compares this machine's clock with the database's: leases go by that one, the times of events by this one.

# Clocks that are kept in order differ by much less; lists, usage and quotas bear it.
TOLERATED_SECONDS = 5.0


class ClockWatch(Background):
    """Says once when the clocks differ, once when they agree again, and each time that this one jumps.

    `ahead_seconds` is by how much this clock was ahead of the database's when it looked last; behind, if negative.
    """

    def __init__(
        self,
        store: SqlLeases,
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
        self.ahead_seconds = 0.0

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


# The server's task that keeps the index of words: behind what is recorded, and never in its way.

# How long others may have to wait for what is recorded here, so that many turns are indexed in one go.
_GATHER_SECONDS = 0.3
# The interval of looks for what other processes have recorded: the recording process is likely to be first.
_POLL_SECONDS = 3.0
# Of a long backlog: for each second of work so many are left to all else.
_REST = 3.0


class SearchIndexing(Background):
    """Indexes what was recorded, here and elsewhere, until it is stopped. `sessions_behind`: how many were to be done
    when it looked last."""

    def __init__(self, store: SqlSearchIndexer) -> None:
        self._store = store
        self._recorded = asyncio.Event()
        self._has_failed = False
        self.sessions_behind = 0

    def observe_event(self, event: RecordedEvent) -> None:
        """Note what was recorded in this process."""
        if event.type.startswith(("run.", "session.")):
            self._recorded.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._index_all()
                self._has_failed = False
            except Exception as error:
                # Said once: commands that need the database notice by themselves.
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


# Futures of those in this process who wait for a run to end.


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

        If this process recorded that, it gives the session's state after it, so that no waiter reads what was just
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
        """Have all look a last time: no one will be told of anything any more."""
        self.is_closed = True
        for key in self._waiting:
            self.wake(key)
