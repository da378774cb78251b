"""Take over sessions that no process advances: fold, and go on with what comes next."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from datetime import datetime
from typing import Generic, Protocol, TypeVar

import msgspec

from swarmkeep.decide.commands import expire_approvals
from swarmkeep.decide.drafts import draft_events
from swarmkeep.decide.steps import list_needed_agents
from swarmkeep.decide.turns import end_run
from swarmkeep.events.errors import HistoryDamaged, LeaseLost, SessionNotFound
from swarmkeep.events.facts import EventDraft, RecordedEvent, RunError, RunInterrupted, RunResumed
from swarmkeep.events.state import Run, State
from swarmkeep.events.wording import pluralize
from swarmkeep.logs import outage_log
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.loop import log_failure
from swarmkeep.runs.policy import Teams, describe_session
from swarmkeep.runs.session_log import StoreSessionLog
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import Lease, SessionKey

# Set aside a subject that was looked at in vain, for a while that grows each time.

K = TypeVar("K", bound=Hashable)


class _Pause(msgspec.Struct, frozen=True):
    ends_at: float
    seconds: float


class SetAside(Generic[K]):
    """Keys with the pause that each has got to. `clock` gives seconds; of more than `limit` the oldest is forgotten."""

    def __init__(
        self, *, clock: Callable[[], float], first_seconds: float = 1.0, last_seconds: float = 60.0, limit: int = 10_000
    ) -> None:
        self._clock = clock
        self._first_seconds = first_seconds
        self._last_seconds = last_seconds
        self._limit = limit
        self._pauses: dict[K, _Pause] = {}

    def __len__(self) -> int:
        return len(self._pauses)

    def __contains__(self, key: K) -> bool:
        return key in self._pauses

    def is_waiting(self, key: K) -> bool:
        pause = self._pauses.get(key)
        return pause is not None and self._clock() < pause.ends_at

    def add(self, key: K) -> None:
        """It was looked at in vain, perhaps not for the first time."""
        before = self._pauses.pop(key, None)
        seconds = self._first_seconds if before is None else min(2 * before.seconds, self._last_seconds)
        self._pauses[key] = _Pause(self._clock() + seconds, seconds)
        if len(self._pauses) > self._limit:
            del self._pauses[next(iter(self._pauses))]

    def discard(self, key: K) -> None:
        self._pauses.pop(key, None)

    def keep_only(self, keys: Iterable[K]) -> None:
        """Keep only these keys; the others need no further look."""
        kept = set(keys)
        self._pauses = {key: pause for key, pause in self._pauses.items() if key in kept}


# Runs whose agents are not served here: other servers may have them, and come first.

# A session that was not looked at for so long was taken over meanwhile: if it is found again, that is another matter.
_FORGET_SECONDS = 60.0


class _Look(msgspec.Struct, frozen=True):
    first: float
    last: float


class UnservedRuns:
    """Leaves runs to servers that have their agents, for `seconds` from when each was first found here.

    A server that has them takes over within the time between two looks. After that there is no server to hope for.
    """

    def __init__(self, registry: Registry, seconds: float, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._seconds = seconds
        self._clock = clock
        # In the order in which they were last looked at.
        self._looks: dict[SessionKey, _Look] = {}

    def is_left_to_others(self, key: SessionKey, state: State) -> bool:
        """Tell if others are to take this over, which was found with no process that advances it."""
        now = self._clock()
        self._forget_before(now - _FORGET_SECONDS)
        look = self._looks.pop(key, None)
        if all(name in self._registry for name in list_needed_agents(state)):
            return False
        first = now if look is None else look.first
        if now - first >= self._seconds:
            return False
        self._looks[key] = _Look(first, now)
        return True

    def _forget_before(self, time: float) -> None:
        while self._looks:
            key = next(iter(self._looks))
            if self._looks[key].last >= time:
                break
            del self._looks[key]


log = logging.getLogger(__name__)

# After a server's death there may be hundreds. So many at a time leave connections for everything else.
_MAX_CONCURRENT = 4
# In one go. What is left then is found again in a moment.
_MAX_PAGES = 100


class Find(Protocol):
    """A query for sessions that are to be looked at."""

    def __call__(self, *, limit: int) -> Awaitable[list[SessionKey]]: ...


class Recovery:
    """Finds the sessions that have something to run and no process that does it, and begins with the work.

    `continue_session` is given the log that then holds the lease, and what was recorded. `get_teams` gives
    what knows better what is to be decided on a session that another one has to do with.
    """

    def __init__(
        self,
        store: SqlStore,
        registry: Registry,
        max_recoveries: int,
        page_sessions: int,
        unserved_seconds: float,
        *,
        open_log: Callable[[SessionKey, State], StoreSessionLog],
        is_advancing: Callable[[SessionKey], bool],
        continue_session: Callable[[StoreSessionLog, list[RecordedEvent]], None],
        get_teams: Callable[[], Teams],
    ) -> None:
        self._store = store
        self._registry = registry
        self._max_recoveries = max_recoveries
        self._page_sessions = page_sessions
        self._open_session_log = open_log
        self._is_advancing = is_advancing
        self._continue_session = continue_session
        self._get_teams = get_teams
        self._abandoned_aside = SetAside[SessionKey](clock=time.monotonic)
        self._due_aside = SetAside[SessionKey](clock=time.monotonic)
        self._unserved = UnservedRuns(registry, unserved_seconds, time.monotonic)

    async def recover(self) -> None:
        """Take over all that is found, page after page while that gets on."""
        await self._recover_pages(self._store.find_abandoned, self._abandoned_aside)
        await self._recover_pages(self._store.find_due, self._due_aside)
        outage_log.note_answer()

    async def _recover_pages(self, find: Find, aside: SetAside[SessionKey]) -> None:
        for _ in range(_MAX_PAGES):
            if not await self._recover_page(find, aside):
                return

    async def _recover_page(self, find: Find, aside: SetAside[SessionKey]) -> bool:
        """Take over a page of what is found; True if it is worth looking for more."""
        # Those set aside are found again, each time and first: they must not fill the page.
        limit = self._page_sessions + len(aside)
        found = await find(limit=limit)
        if len(found) < limit:
            aside.keep_only(found)
        keys = [key for key in found if not (self._is_advancing(key) or aside.is_waiting(key))][: self._page_sessions]
        # Other servers find the same ones: in another order, so that each gets a share.
        random.shuffle(keys)
        gate = asyncio.Semaphore(_MAX_CONCURRENT)
        await asyncio.gather(*(self._recover_limited(gate, key, aside) for key in keys))
        return bool(keys) and len(found) == limit

    async def _recover_limited(self, gate: asyncio.Semaphore, key: SessionKey, aside: SetAside[SessionKey]) -> None:
        async with gate:
            # A task of its own: see `gather` above.
            describe_session(key)
            if await self._try_take_over(key, aside):
                aside.discard(key)
            else:
                aside.add(key)

    async def take_over(self, key: SessionKey) -> None:
        """Take over a session that a caller here waits for, if no process advances it."""
        if not self._is_advancing(key):
            await self._try_take_over(key, self._abandoned_aside)

    def look_soon(self, key: SessionKey) -> None:
        """Something has happened that a session waits for, or is about to."""
        self._due_aside.discard(key)

    async def _try_take_over(self, key: SessionKey, aside: SetAside[SessionKey]) -> bool:
        try:
            return await self._take_over(key)
        except (LeaseLost, SessionNotFound, HistoryDamaged):
            # Another process was quicker, or the session was deleted; or it is not found again until it is mended.
            return False
        except Exception as error:
            # One that cannot be read keeps no task from the others. It is said once.
            if key not in aside:
                log_failure(log, error, f"session {key.id}: its run could not be taken over")
            return False

    async def _take_over(self, key: SessionKey) -> bool:
        state = await self._store.sound_state(key)
        if self._unserved.is_left_to_others(key, state):
            return False
        session_log = self._open_session_log(key, state)
        now = await self._store.read_clock()
        decide = await self._get_teams().find_take_over(key, state)
        events = await session_log.commit(decide or (lambda state: self._decide_take_over(state, now)))
        run = session_log.state.run
        describe_session(key, session_log.state)
        if session_log.lease is not None and run is not None:
            log.info("session %s: took over run %s", key.id, run.id)
        self._continue_session(session_log, events)
        await self._get_teams().follow_change(key, session_log.state, events)
        return bool(events)

    def _decide_take_over(self, state: State, now: datetime) -> list[EventDraft] | None:
        run = state.run
        if run is None:
            # What waits in the queue follows by itself.
            return [] if state.queue else None
        if run.status != "running":
            return expire_approvals(state, now)
        error = self._find_final_error(state, run)
        if error is not None:
            return draft_events(state.agent, end_run(state, run, RunInterrupted, "interrupted", error), run.id)
        return draft_events(state.agent, [RunResumed(reason="recovery")], run.id)

    def _find_final_error(self, state: State, run: Run) -> RunError | None:
        if state.agent not in self._registry:
            return RunError(code="agent_unavailable", message=f"agent {state.agent!r} is not served here")
        if run.recoveries >= self._max_recoveries:
            times = pluralize(run.recoveries, "time")
            return RunError(code="too_many_recoveries", message=f"the run was taken over {times} in vain")
        return None


# Keeps leases while the event loop stands still: a tool or a large value may hold it up for longer than one lasts.

# A loop that has not moved for so long will not: others take over what it held.
PATIENCE_SECONDS = 60.0


class LeaseKeeper:
    """Renews leases from a thread of its own when the loop, which says `beat` now and then, has not done so in time.

    As long as the loop moves, the thread does nothing but look at the clock.
    """

    def __init__(
        self,
        store: SqlStore,
        list_leases: Callable[[], Mapping[SessionKey, Lease]],
        lease_seconds: float,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._store = store
        self._list_leases = list_leases
        self._lease_seconds = lease_seconds
        self._patience_seconds = patience_seconds
        self._moved_at = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="swarmkeep-leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def beat_regularly(self) -> None:
        """Say that the loop moves."""
        while True:
            self._moved_at = time.monotonic()
            await asyncio.sleep(self._lease_seconds / 6)

    def stop(self) -> None:
        """Renew nothing any more. Returns at once; what is being renewed just now may be."""
        self._stopped.set()

    def _keep(self) -> None:
        while not self._stopped.wait(self._lease_seconds / 6):
            still = time.monotonic() - self._moved_at
            if self._lease_seconds / 2 <= still < self._patience_seconds:
                self._renew(still)

    def _renew(self, still: float) -> None:
        try:
            leases = dict(self._list_leases())
            if leases:
                asyncio.run(self._store.renew_from_anywhere(leases, lease_seconds=self._lease_seconds))
                log.warning("the event loop was blocked for %.1f s; another thread renewed its leases", still)
        except Exception as error:
            log.warning("the event loop is blocked, and its leases could not be renewed: %s", error)
