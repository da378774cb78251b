"""Commands of a person who speaks in the agent's place: take over, answer, hand back."""

from __future__ import annotations

from collections.abc import Sequence

from swarmkeep.decide.people import answer, hand_back, take_over
from swarmkeep.events.facts import EventDraft
from swarmkeep.events.messages import Entry
from swarmkeep.events.state import State
from swarmkeep.events.views import SessionView, view_session
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.identifiers import list_open_children
from swarmkeep.runs.limits import Limits, check_session_quotas
from swarmkeep.runs.policy import Decide
from swarmkeep.runs.runs import IdempotentRequest, Runs, run_once
from swarmkeep.runs.teams import ChildSessions
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import IdempotencyRecord, SessionKey


class Takeovers:
    """Sessions in which people answer. Each command is recorded before it returns, on any server that receives it."""

    def __init__(
        self, store: SqlStore, registry: Registry, runs: Runs, children: ChildSessions, limits: Limits
    ) -> None:
        self._store = store
        self._registry = registry
        self._runs = runs
        self._children = children
        self._limits = limits

    async def take_over(
        self,
        key: SessionKey,
        *,
        by: str | None,
        note: str | None = None,
        force: bool = False,
        idempotency: IdempotentRequest | None = None,
    ) -> SessionView:
        """Answer in the agent's place from here on; what its model is just saying is dropped.

        Raises SessionNotFound, TakenOverByOther, QuotaExceeded, IdempotencyMismatch.
        """
        seq = await self._commit(key, lambda state: take_over(state, by=by, note=note, force=force), idempotency)
        return view_session(key.id, await self._store.state(key, at=seq))

    async def answer(
        self, key: SessionKey, content: str, *, by: str | None, idempotency: IdempotentRequest | None = None
    ) -> Entry:
        """Say something in the agent's place; gives it as it was recorded. A run that waits is completed by it.

        Raises SessionNotFound, NotTakenOver, TakenOverByOther, SessionBusy, TooLarge, QuotaExceeded,
        IdempotencyMismatch.
        """
        self._limits.sizes.check_content(content, "/content")
        asked: list[SessionKey] = []

        def decide(state: State) -> Sequence[EventDraft]:
            asked[:] = [] if state.run is None else list_open_children(key, state, state.run)
            return answer(state, content, by=by)

        seq = await self._commit(key, decide, idempotency)
        await self._children.cancel_sessions(asked)
        state = await self._store.state(key, at=seq)
        return next(entry for entry in reversed(state.messages) if entry.person is not None)

    async def hand_back(
        self,
        key: SessionKey,
        *,
        by: str | None,
        note: str | None = None,
        force: bool = False,
        idempotency: IdempotentRequest | None = None,
    ) -> SessionView:
        """Have the agent answer again. A run that waits goes on here.

        Raises SessionNotFound, NotTakenOver, TakenOverByOther, AgentUnavailable, Draining, QuotaExceeded,
        IdempotencyMismatch.
        """
        await self._runs.check_capacity(key)

        def decide(state: State) -> Sequence[EventDraft]:
            if state.run is not None:
                self._registry.get_active(state.agent)
            return hand_back(state, by=by, note=note, force=force)

        seq = await self._commit(key, decide, idempotency)
        return view_session(key.id, await self._store.state(key, at=seq))

    async def _commit(self, key: SessionKey, decide: Decide, idempotency: IdempotentRequest | None) -> int | None:
        """Record what is decided, once; gives the seq after it, None if there was nothing to record."""

        def decide_within_limits(state: State) -> Sequence[EventDraft] | None:
            drafts = decide(state)
            if drafts:
                check_session_quotas(state, drafts, self._limits)
            return drafts

        mark = None if idempotency is None else idempotency.make_record()
        done = await run_once(
            self._store,
            key,
            idempotency,
            lambda: self._runs.commit_change(key, decide_within_limits, mark, within_quota=True),
        )
        if isinstance(done, IdempotencyRecord):
            return done.seq
        return done[-1].seq if done else None
