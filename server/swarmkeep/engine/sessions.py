"""Commands on sessions: create, update, fork, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from swarmkeep.domain.codec import Json, encode
from swarmkeep.domain.decisions.commands import create_session, update_session
from swarmkeep.domain.decisions.drafts import apply_drafts, draft_events
from swarmkeep.domain.decisions.sizes import is_heavy
from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.errors import SeqConflict, SeqMismatch, SessionExists
from swarmkeep.domain.events import MessageAdded, SessionEvent
from swarmkeep.domain.inputs import check_messages, check_object, refuse_stray_results
from swarmkeep.domain.state import State
from swarmkeep.domain.views import SessionView, view_session
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.idempotency import IdempotentRequest, run_once
from swarmkeep.engine.limits import ForkQuota, Limits, check_session_quotas
from swarmkeep.engine.stored_sessions import choose_key, delete_session, fork_session, view_change
from swarmkeep.engine.worker.worker import Worker
from swarmkeep.store.archive import Archive
from swarmkeep.store.ports import AppendResult, IdempotencyRecord, SessionKey


class Sessions:
    """Sessions of every tenant; each call names its own."""

    def __init__(self, store: Archive, registry: Registry, worker: Worker, limits: Limits) -> None:
        self._store = store
        self._registry = registry
        self._worker = worker
        self._limits = limits
        self._sizes = limits.sizes
        self._quota = limits.storage_quota
        self._forks = ForkQuota(limits.max_forks_per_minute)

    async def create(
        self,
        tenant: str,
        *,
        session_id: str | None = None,
        agent: str | None = None,
        context_variables: Json | None = None,
        metadata: Json | None = None,
        messages: list[Json] | None = None,
        idempotency: IdempotentRequest | None = None,
    ) -> tuple[SessionView, bool]:
        """Make a session, by default with the first agent; True if it was made by this request.

        Asked again with the same id and the same content, gives the session as it was made, and False.
        Raises SessionExists, AgentNotFound, InvalidRequest, TooLarge, IdempotencyMismatch, QuotaExceeded.
        """
        name = self._registry.get(agent).name if agent is not None else self._registry.default
        key = choose_key(tenant, session_id, idempotency)
        history = await self._check_history(messages or [])
        context, labels = await self._check_state(context_variables or {}, metadata or {})
        facts = create_session(name, context, labels, history)
        drafts = draft_events(name, facts, None)
        mark = None if idempotency is None else idempotency.make_record()

        async def create() -> AppendResult:
            return await self._store.append(key, State(), drafts, idempotency=mark, quota=self._quota)

        try:
            made = await run_once(self._store, key, idempotency, create)
        except SeqConflict:
            return await self._view_existing(key, facts), False
        return await view_change(self._store, key, made), True

    async def _check_history(self, messages: list[Json]) -> tuple[Json, ...]:
        """The messages, if they can be a history. Large ones in a thread: others do not wait for that."""

        def check() -> tuple[Json, ...]:
            history = check_messages(messages, "/messages", self._limits.max_messages)
            self._sizes.check_messages(history, "/messages")
            refuse_stray_results(history, "/messages")
            return history

        return await asyncio.to_thread(check) if is_heavy(messages) else check()

    async def _check_state(self, context_variables: Json, metadata: Json) -> tuple[Json, Json]:
        def check() -> tuple[Json, Json]:
            context, labels = check_objects(context_variables, metadata)
            self._sizes.check_context(context)
            self._sizes.check_metadata(labels)
            return context, labels

        return await asyncio.to_thread(check) if is_heavy(context_variables, metadata) else check()

    async def _view_existing(self, key: SessionKey, facts: Sequence[SessionEvent]) -> SessionView:
        events = await self._store.read(key, upto=len(facts) + 1)
        made, after = events[: len(facts)], events[len(facts) :]
        same = [encode(event.fact) for event in made] == [encode(fact) for fact in facts]
        longer = bool(after) and isinstance(after[0].fact, MessageAdded) and after[0].run_id is None
        if not same or longer:
            raise SessionExists(key.id)
        return view_session(key.id, await self._store.state(key, at=len(facts)))

    async def update(
        self,
        key: SessionKey,
        *,
        agent: str | None = None,
        context_variables: Json | None = None,
        metadata: Json | None = None,
        if_match: int | None = None,
        idempotency: IdempotentRequest | None = None,
    ) -> SessionView:
        """Merge patches; writers of different keys do not disturb each other.

        Raises SeqMismatch for `if_match`, TooLarge and QuotaExceeded.
        """
        if agent is not None:
            agent = self._registry.get(agent).name
        check = partial(check_objects, context_variables or {}, metadata or {})
        aside = is_heavy(context_variables, metadata)
        context, labels = await asyncio.to_thread(check) if aside else check()

        def decide(state: State) -> Sequence[EventDraft]:
            if if_match is not None and state.seq != if_match:
                raise SeqMismatch(if_match, state.seq)
            facts = update_session(state, agent=agent, context_variables=context, metadata=labels)
            run_id = state.run.id if state.run is not None else None
            drafts = draft_events(state.agent, facts, run_id)
            check_session_quotas(state, drafts, self._limits)
            self._sizes.check_change(state, apply_drafts(state, drafts))
            return drafts

        session_log = self._worker.open_session_log(key, await self._store.state(key))
        mark = None if idempotency is None else idempotency.make_record()

        async def change() -> list[RecordedEvent]:
            return await session_log.commit(decide, mark=mark, quota=self._quota, aside=aside)

        changed = await run_once(self._store, key, idempotency, change)
        if isinstance(changed, IdempotencyRecord):
            return await view_change(self._store, key, changed)
        state = session_log.state
        # What waits in the queue may have begun with it, and then it is this process's to advance.
        self._worker.continue_session(session_log, changed)
        return view_session(key.id, state)

    async def fork(
        self,
        key: SessionKey,
        *,
        at: int | None = None,
        session_id: str | None = None,
        metadata: Json | None = None,
        agent: str | None = None,
        idempotency: IdempotentRequest | None = None,
    ) -> SessionView:
        """See `fork_session`. Raises AgentNotFound, TooLarge and QuotaExceeded, too."""
        if agent is not None:
            agent = self._registry.get(agent).name
        self._forks.count(key.tenant)
        return await fork_session(
            self._store,
            key,
            at=at,
            session_id=session_id,
            metadata=metadata,
            agent=agent,
            idempotency=idempotency,
            sizes=self._sizes,
            quota=self._quota,
        )

    async def delete(
        self,
        key: SessionKey,
        *,
        force: bool = False,
        if_match: int | None = None,
        by: str | None = None,
        reason: str | None = None,
    ) -> None:
        """See `delete_session`."""
        await delete_session(self._store, key, force=force, if_match=if_match, by=by, reason=reason)
        self._worker.abandon(key)


def check_objects(context_variables: Json, metadata: Json) -> tuple[Json, Json]:
    return check_object(context_variables, "/context_variables"), check_object(metadata, "/metadata")
