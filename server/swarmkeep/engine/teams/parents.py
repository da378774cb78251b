"""Sessions above those in which agents are asked: told that these go on, and asked whether they are still wanted."""

from __future__ import annotations

import logging
from functools import partial

from swarmkeep.domain.decisions.commands import cancel_run
from swarmkeep.domain.decisions.drafts import apply_drafts, draft_events
from swarmkeep.domain.decisions.steps import list_needed_agents
from swarmkeep.domain.decisions.teams import go_on_with_session
from swarmkeep.domain.decisions.turns import ToolOutcome, record_result
from swarmkeep.domain.envelope import EventDraft
from swarmkeep.domain.errors import DomainError, SessionNotFound
from swarmkeep.domain.redaction import REDACTED
from swarmkeep.domain.state import State
from swarmkeep.domain.views import find_run
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.policy import Decide
from swarmkeep.engine.teams.links import derive_child, derive_child_run
from swarmkeep.engine.worker.worker import Worker
from swarmkeep.store.archive import Archive
from swarmkeep.store.ports import SessionKey

log = logging.getLogger(__name__)


def _find_awaited(state: State) -> tuple[str, tuple[str, ...]]:
    """The active run, and its calls whose sessions it waits for."""
    return ("", ()) if state.run is None else (state.run.id, state.run.awaited_calls)


def _give_up(state: State, run_id: str, call_id: str) -> list[EventDraft] | None:
    """Go on without the answer of a session that was deleted: to ask anew would be to do all of it twice."""
    drafts = go_on_with_session(state, run_id, call_id)
    if drafts is None:
        return None
    after = apply_drafts(state, drafts)
    run = after.run
    call = None if run is None else next((open_call for open_call in run.open_calls if open_call.id == call_id), None)
    if run is None or call is None:
        return drafts
    text = f"Error: {call.name} has no answer: the session in which it was asked was deleted."
    facts = record_result(after, run, call, ToolOutcome(status="error", content=text, session_id=call.session_id))
    return [*drafts, *draft_events(after.agent, facts, run_id)]


class Parents:
    """Reads and wakes the sessions that ask."""

    def __init__(self, store: Archive, registry: Registry, worker: Worker) -> None:
        self._store = store
        self._registry = registry
        self._worker = worker

    async def wake(self, key: SessionKey, state: State) -> None:
        """Have the session above go on, if it waits for this one; and those above it.

        If that fails, recovery does it: a session that waits for another is due all the time.
        """
        parent = state.parent
        if parent is None or parent.session_id == REDACTED:
            return
        above = SessionKey(key.tenant, parent.session_id)
        # It may be just about to wait: then it is found at the next look.
        self._worker.recovery.look_soon(above)
        try:
            if self._worker.is_advancing(above):
                return
            found = await self._store.state(above)
            run_id, calls = _find_awaited(found)
            awaited = next((call for call in calls if derive_child(above, found, run_id, call) == key), None)
            if awaited is None or not all(name in self._registry for name in list_needed_agents(found)):
                return
            session_log = self._worker.open_session_log(above, found)
            events = await session_log.commit(lambda state: go_on_with_session(state, run_id, awaited))
            self._worker.continue_session(session_log, events)
        except Exception as error:
            log.info("session %s: the run that waits for it could not continue yet: %s", key.id, error)
            return
        await self.wake(above, session_log.state)

    async def find_take_over(self, key: SessionKey, state: State) -> Decide | None:
        """What is to be decided on a session that was found with nobody who advances it, if asking concerns it."""
        run_id, calls = _find_awaited(state)
        for awaited in calls:
            is_waiting = await self._is_child_waiting(derive_child(key, state, run_id, awaited))
            if is_waiting is None:
                return partial(_give_up, run_id=run_id, call_id=awaited)
            if not is_waiting:
                return partial(go_on_with_session, run_id=run_id, call_id=awaited)
        if await self.is_orphan(key, state):
            return lambda state: cancel_run(state, derive_child_run(key))
        return None

    async def _is_child_waiting(self, child: SessionKey) -> bool | None:
        """None if there is no such session any more."""
        try:
            run = find_run(await self._store.state(child), derive_child_run(child))
        except SessionNotFound:
            return None
        return run is not None and run.status == "waiting"

    async def is_orphan(self, key: SessionKey, state: State) -> bool:
        """Whether a run that was asked for is active, and nobody waits for its answer any more, now or once another run
        is resumed."""
        parent = state.parent
        if parent is None or parent.session_id == REDACTED:
            return False
        if state.run is None or state.run.id != derive_child_run(key):
            return False
        above = SessionKey(key.tenant, parent.session_id)
        try:
            found = await self._store.state(above)
        except SessionNotFound:
            return True
        except DomainError:
            return False
        run = find_run(found, parent.run_id)
        if run is None or derive_child(above, found, run.id, parent.tool_call_id) != key:
            return True
        if run.status == "interrupted" and (found.run is not None or found.finished[-1].id != run.id):
            return True
        asked = any(call.id == parent.tool_call_id for call in run.open_calls)
        return not asked or run.status in ("completed", "failed", "cancelled")
