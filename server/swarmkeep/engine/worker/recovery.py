"""Taking over what nobody advances: fold, and go on with what comes next."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Protocol

from swarmkeep.domain.decisions.drafts import draft_events
from swarmkeep.domain.decisions.resuming import expire_approvals
from swarmkeep.domain.decisions.turns import end_run
from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.errors import HistoryDamaged, LeaseLost, SessionNotFound
from swarmkeep.domain.events import RunError, RunInterrupted, RunResumed
from swarmkeep.domain.state import Run, State
from swarmkeep.domain.wording import pluralize
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.attempts import log_failure
from swarmkeep.engine.session_log import StoreSessionLog
from swarmkeep.engine.worker.log_context import describe_session
from swarmkeep.engine.worker.set_aside import SetAside
from swarmkeep.engine.worker.teams import Teams
from swarmkeep.engine.worker.unserved import UnservedRuns
from swarmkeep.logs.outages import outage_log
from swarmkeep.store.ports import EventStore, SessionKey

log = logging.getLogger(__name__)

# After a server's death there may be hundreds. So many at a time leave connections for everything else.
_MAX_CONCURRENT = 4
# In one go. What is left then is found again in a moment.
_MAX_PAGES = 100


class Find(Protocol):
    """A query for sessions that are to be looked at."""

    def __call__(self, *, limit: int) -> Awaitable[list[SessionKey]]: ...


class Recovery:
    """Finds the sessions that have something to run and nobody who does it, and begins with what there is to do.

    `continue_session` is given the log that then holds the lease, and what was recorded. `get_teams` gives
    what knows better what is to be decided on a session that another one has to do with.
    """

    def __init__(
        self,
        store: EventStore,
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
        """Take over whatever is found, page after page while that gets on."""
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
        """Take over a session that somebody here waits for, if nobody advances it."""
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
            # One that cannot be read keeps nobody from the others. It is said once.
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
