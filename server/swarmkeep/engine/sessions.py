"""Commands on sessions: create, update, take messages out, fork, delete."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial

from swarmkeep.domain.checking.files import TakenMessages, take_out_files
from swarmkeep.domain.checking.inputs import check_messages, check_object, refuse_stray_results
from swarmkeep.domain.codec import Json, encode_sorted
from swarmkeep.domain.decisions.commands import add_messages, create_session, update_session
from swarmkeep.domain.decisions.drafts import apply_drafts, draft_events
from swarmkeep.domain.decisions.removing import remove_message
from swarmkeep.domain.decisions.sizes import is_heavy
from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.errors import SeqConflict, SeqMismatch, SessionExists
from swarmkeep.domain.events import MessageAdded, SessionEvent
from swarmkeep.domain.messages import Entry
from swarmkeep.domain.state import State
from swarmkeep.domain.views import SessionView, view_session
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.idempotency import IdempotentRequest, run_once
from swarmkeep.engine.limits import ForkQuota, Limits, check_session_quotas
from swarmkeep.engine.mcp.servers import ToolServers
from swarmkeep.engine.session_plans import SessionPlan, make_plan, plan_fork
from swarmkeep.engine.stored_sessions import choose_keys, delete_session, fork_session, make_session, view_change
from swarmkeep.engine.worker.worker import Worker
from swarmkeep.store.archive import Archive
from swarmkeep.store.ports import AppendResult, IdempotencyRecord, SessionKey


class Sessions:
    """Sessions of every tenant; each call names its own."""

    def __init__(
        self, store: Archive, registry: Registry, worker: Worker, limits: Limits, servers: ToolServers
    ) -> None:
        self._store = store
        self._registry = registry
        self._worker = worker
        self._limits = limits
        self._servers = servers
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
        keys = choose_keys(tenant, session_id, idempotency)
        plan = await self.plan(agent=agent, context_variables=context_variables, metadata=metadata, messages=messages)
        mark = None if idempotency is None else idempotency.make_record()

        async def create(key: SessionKey) -> AppendResult:
            return await plan.record(
                self._store, key, plan.drafts, blobs=plan.files, idempotency=mark, quota=self._quota
            )

        async def make(key: SessionKey) -> tuple[SessionView, bool]:
            try:
                made = await run_once(self._store, key, idempotency, lambda: create(key))
            except SeqConflict:
                return await self._view_existing(key, [draft.fact for draft in plan.drafts]), False
            return await view_change(self._store, key, made), True

        return await make_session(keys, make)

    async def plan(
        self,
        *,
        agent: str | None = None,
        context_variables: Json | None = None,
        metadata: Json | None = None,
        messages: list[Json] | None = None,
    ) -> SessionPlan:
        """What `create` would make, for a run to begin with it. Raises AgentNotFound, InvalidRequest, TooLarge."""
        name = self._registry.get(agent).name if agent is not None else self._registry.default
        history = await self._check_history(messages or [])
        context, labels = await self._check_state(context_variables or {}, metadata or {})
        facts = create_session(name, context, labels, history.messages)
        return await make_plan(draft_events(name, facts, None), files=history.files)

    async def plan_fork(self, key: SessionKey, *, at: int | None = None) -> SessionPlan:
        """What `fork` would make, for a run to begin with it, and counted then. Raises SessionNotFound,
        EventNotFound."""
        count = partial(self._forks.count, key.tenant)
        return await plan_fork(self._store, key, at=at, sizes=self._sizes, count=count)

    async def _check_history(self, messages: list[Json], *, is_whole: bool = True) -> TakenMessages:
        """The messages, if they can be a history, or a part of one. Large ones in a thread: nobody waits for that."""

        def check() -> TakenMessages:
            history = check_messages(messages, "/messages", self._limits.max_messages)
            taken = take_out_files(history, "/messages", self._limits.files)
            self._sizes.check_messages(taken.messages, "/messages")
            if is_whole:
                refuse_stray_results(taken.messages, "/messages")
            return taken

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

        def are_same() -> bool:
            # JSON's objects have no order, and not every caller writes one twice in the same.
            return [encode_sorted(event.fact) for event in made] == [encode_sorted(fact) for fact in facts]

        same = await asyncio.to_thread(are_same) if is_heavy(facts) else are_same()
        longer = bool(after) and isinstance(after[0].fact, MessageAdded) and after[0].run_id is None
        if not same or longer:
            raise SessionExists(key.id)
        return view_session(key.id, await self._store.state(key, at=len(facts)))

    async def add_messages(
        self, key: SessionKey, messages: list[Json], *, idempotency: IdempotentRequest | None = None
    ) -> list[Entry]:
        """Add to the history without a run; gives the messages as they were recorded.

        Raises SessionNotFound, SessionBusy, InvalidRequest, TooLarge, IdempotencyMismatch, QuotaExceeded.
        """
        known = await self._store.sound_state(key)
        added = await self._check_history(messages, is_whole=False)

        def decide(state: State) -> Sequence[EventDraft]:
            drafts = draft_events(state.agent, add_messages(state, added.messages), None)
            check_session_quotas(state, drafts, self._limits)
            return drafts

        session_log = self._worker.open_session_log(key, known)
        mark = None if idempotency is None else idempotency.make_record()

        async def add() -> list[RecordedEvent]:
            return await session_log.commit(
                decide, added.files, mark=mark, within_quota=True, aside=is_heavy(added.messages)
            )

        changed = await run_once(self._store, key, idempotency, add)
        if isinstance(changed, IdempotencyRecord):
            return await self._read_added(key, changed.seq, len(added.messages))
        state = session_log.state
        self._worker.publish(key, changed, state)
        return list(state.messages[len(state.messages) - len(added.messages) :])

    async def _read_added(self, key: SessionKey, seq: int, count: int) -> list[Entry]:
        """So many messages, of which the last is this event, as they were then."""
        state = await self._store.state(key)
        if state.last_change > seq:
            state = await self._store.state(key, at=seq)
        end = bisect_right(state.messages, seq, key=lambda entry: entry.seq)
        return list(state.messages[end - count : end])

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

        session_log = self._worker.open_session_log(key, await self._store.sound_state(key))
        mark = None if idempotency is None else idempotency.make_record()

        async def change() -> list[RecordedEvent]:
            return await session_log.commit(decide, mark=mark, within_quota=True, aside=aside)

        changed = await run_once(self._store, key, idempotency, change)
        if isinstance(changed, IdempotencyRecord):
            return await view_change(self._store, key, changed)
        state = session_log.state
        # What waits in the queue may have begun with it, and then it is this process's to advance.
        self._worker.continue_session(session_log, changed)
        return view_session(key.id, state)

    async def remove_message(
        self,
        key: SessionKey,
        seq: int,
        tool_call_id: str | None = None,
        *,
        content_only: bool = False,
        by: str | None = None,
    ) -> None:
        """Take a message, or one call of it with its result, out of what models are sent and lists show; with
        `content_only` what it says, and not its calls.

        The log keeps it. Done again, it changes nothing. Raises SessionNotFound, EventNotFound, and SessionBusy for
        what belongs to the active run.
        """
        session_log = self._worker.open_session_log(key, await self._store.sound_state(key))
        changed = await session_log.commit(
            lambda state: remove_message(state, seq, tool_call_id, by, content_only=content_only)
        )
        self._worker.continue_session(session_log, changed)

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
            count=partial(self._forks.count, key.tenant),
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
        gone = await delete_session(self._store, key, force=force, if_match=if_match, by=by, reason=reason)
        for each in gone:
            self._worker.abandon(each)
            self._servers.close_session(each)


def check_objects(context_variables: Json, metadata: Json) -> tuple[Json, Json]:
    return check_object(context_variables, "/context_variables"), check_object(metadata, "/metadata")
