"""What callers do with sessions, beside running them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from swarmkeep.domain.codec import encode
from swarmkeep.domain.decisions.commands import create_session, refuse_if_busy, update_session
from swarmkeep.domain.decisions.drafts import draft_events
from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.errors import SeqConflict, SeqMismatch, SessionExists
from swarmkeep.domain.events import MessageAdded, SessionEvent, SessionForked, SessionRedacted
from swarmkeep.domain.inputs import check_id, check_messages, check_object
from swarmkeep.domain.request import digest
from swarmkeep.domain.state import SessionStatus, State
from swarmkeep.domain.views import SessionView, view_session
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.attempts import ConflictCounter
from swarmkeep.engine.failpoints import reach
from swarmkeep.engine.idempotency import IdempotentRequest, run_once
from swarmkeep.engine.worker.worker import Worker
from swarmkeep.store.archive import Archive
from swarmkeep.store.ports import AppendResult, IdempotencyRecord, SessionKey, SessionPage

Json = dict[str, Any]


class Sessions:
    """Sessions of every tenant; each call names its own."""

    def __init__(self, store: Archive, registry: Registry, conductor: Worker) -> None:
        self._store = store
        self._registry = registry
        self._worker = conductor

    async def create(
        self,
        tenant: str,
        *,
        session_id: str | None = None,
        agent: str | None = None,
        context_variables: Json | None = None,
        metadata: Json | None = None,
        messages: list[Json] | None = None,
        once: IdempotentRequest | None = None,
    ) -> tuple[SessionView, bool]:
        """Make a session, by default with the first agent; True if it was made by this request.

        Asked again with the same id and the same content, gives the session as it was made, and False.
        Raises SessionExists, AgentNotFound, InvalidRequest, IdempotencyMismatch.
        """
        name = self._registry.get(agent).name if agent is not None else self._registry.default
        key = _choose_key(tenant, session_id, once)
        facts = create_session(
            name,
            check_object(context_variables or {}, "/context_variables"),
            check_object(metadata or {}, "/metadata"),
            check_messages(messages or [], "/messages"),
        )
        drafts = draft_events(name, facts, None)
        mark = None if once is None else once.make_record()
        try:
            made = await run_once(self._store, key, once, lambda: self._store.append(key, State(), drafts, mark=mark))
        except SeqConflict:
            return await self._view_existing(key, facts), False
        return await self._view_after(key, made), True

    async def _view_after(self, key: SessionKey, made: AppendResult | IdempotencyRecord) -> SessionView:
        """The session as a change left it, whether it was made now or before."""
        if isinstance(made, IdempotencyRecord):
            return view_session(key.id, await self._store.state(key, at=made.seq))
        for event in made.events:
            reach(event.type)
        return view_session(key.id, made.state)

    async def _view_existing(self, key: SessionKey, facts: Sequence[SessionEvent]) -> SessionView:
        events = await self._store.read(key, upto=len(facts) + 1)
        made, after = events[: len(facts)], events[len(facts) :]
        same = [encode(event.fact) for event in made] == [encode(fact) for fact in facts]
        longer = bool(after) and isinstance(after[0].fact, MessageAdded) and after[0].run_id is None
        if not same or longer:
            raise SessionExists(key.id)
        return view_session(key.id, await self._store.state(key, at=len(facts)))

    async def get(self, key: SessionKey, *, at: int | None = None) -> SessionView:
        """The session now, or as it was after event `at`."""
        return view_session(key.id, await self.state(key, at=at))

    async def state(self, key: SessionKey, *, at: int | None = None) -> State:
        return await self._store.state(key, at=at)

    async def page(
        self,
        tenant: str,
        *,
        agent: str | None = None,
        status: SessionStatus | None = None,
        metadata: Mapping[str, str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> SessionPage:
        """Newest first."""
        return await self._store.sessions(
            tenant, agent=agent, status=status, metadata=metadata, limit=limit, cursor=cursor
        )

    async def update(
        self,
        key: SessionKey,
        *,
        agent: str | None = None,
        context_variables: Json | None = None,
        metadata: Json | None = None,
        if_match: int | None = None,
        once: IdempotentRequest | None = None,
    ) -> SessionView:
        """Merge patches; writers of different keys do not disturb each other. Raises SeqMismatch for `if_match`."""
        if agent is not None:
            agent = self._registry.get(agent).name
        context = check_object(context_variables or {}, "/context_variables")
        labels = check_object(metadata or {}, "/metadata")

        def decide(state: State) -> Sequence[EventDraft]:
            if if_match is not None and state.seq != if_match:
                raise SeqMismatch(if_match, state.seq)
            facts = update_session(state, agent=agent, context_variables=context, metadata=labels)
            run_id = state.run.id if state.run is not None else None
            return draft_events(state.agent, facts, run_id)

        ledger = self._worker.open_session_log(key, await self._store.state(key))
        mark = None if once is None else once.make_record()
        changed = await run_once(self._store, key, once, lambda: ledger.commit(decide, mark=mark))
        if isinstance(changed, IdempotencyRecord):
            return await self._view_after(key, changed)
        self._worker.publish(key, changed)
        return view_session(key.id, ledger.state)

    async def fork(
        self,
        key: SessionKey,
        *,
        at: int | None = None,
        session_id: str | None = None,
        metadata: Json | None = None,
        agent: str | None = None,
        once: IdempotentRequest | None = None,
    ) -> SessionView:
        """A new session with this one's history up to `at` (by default all of it), its hashes included.

        A run that the copied history ends in does not go on there. `agent` becomes the active one. Raises
        SessionExists, AgentNotFound.
        """
        if agent is not None:
            agent = self._registry.get(agent).name
        target = _choose_key(key.tenant, session_id, once)
        labels = check_object(metadata or {}, "/metadata")
        mark = None if once is None else once.make_record()

        conflicts = ConflictCounter(key.id)

        async def copy() -> AppendResult:
            while True:
                base = await self._store.state(key, at=at)
                hollow = await self._store.read_redacted_payloads(key, upto=base.seq)
                forked = SessionForked(from_session_id=key.id, from_seq=base.seq, from_hash=base.hash)
                facts = [
                    forked,
                    *await self._describe_copied_redactions(key, base, hollow),
                    *update_session(base, agent=agent, metadata=labels),
                ]
                drafts = draft_events(base.agent, facts, None)
                try:
                    return await self._store.fork(key, base, target, drafts, redacted=len(hollow), mark=mark)
                except SeqConflict as conflict:
                    # The source was redacted, or deleted and made anew, while it was looked at.
                    if conflict.session_id != key.id or target == key:
                        raise
                    conflicts.count_conflict(base)

        try:
            made = await run_once(self._store, target, once, copy)
        except SeqConflict:
            raise SessionExists(target.id) from None
        return await self._view_after(target, made)

    async def _describe_copied_redactions(
        self, key: SessionKey, base: State, hollow: Mapping[int, str]
    ) -> list[SessionEvent]:
        """What a fork has to tell of removed payloads in its copy, if the event that tells of them is not copied."""
        if not hollow:
            return []
        told = await self._store.read(key, upto=base.seq, types=["session.redacted"])
        known = {seq for event in told if isinstance(event.fact, SessionRedacted) for seq in event.fact.seqs}
        untold = [seq for seq in hollow if seq not in known]
        if not untold:
            return []
        kept = tuple(digest(hollow[seq]) for seq in untold)
        return [SessionRedacted(seqs=tuple(untold), reason=f"removed in {key.id} before it was forked", kept=kept)]

    async def delete(
        self,
        key: SessionKey,
        *,
        force: bool = False,
        if_match: int | None = None,
        by: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Remove every row of the session; the tenant's audit log tells who did it, and why.

        Raises SessionBusy while a run is active, unless forced, SeqMismatch for `if_match`, and SessionDamaged, unless
        forced.
        """
        conflicts = ConflictCounter(key.id)
        while True:
            state = await self._store.state(key)
            if not force:
                refuse_if_busy(state)
            if if_match is not None and state.seq != if_match:
                raise SeqMismatch(if_match, state.seq)
            expected = None if force and if_match is None else state
            try:
                await self._store.delete(key, expected=expected, by=by, reason=reason)
            except SeqConflict:
                conflicts.count_conflict(state)
                continue
            self._worker.abandon(key)
            return

    async def events(
        self, key: SessionKey, *, after: int = 0, types: Sequence[str] = (), limit: int | None = None
    ) -> list[RecordedEvent]:
        """Events in order. Raises SessionNotFound."""
        events = await self._store.read(key, after=after, types=types, limit=limit)
        if not events:
            await self._store.state(key)
        return events


def _choose_key(tenant: str, session_id: str | None, once: IdempotentRequest | None) -> SessionKey:
    if session_id is not None:
        return SessionKey(tenant, check_id(session_id))
    return SessionKey(tenant, f"sess_{uuid4().hex}" if once is None else once.derive_session_id(tenant))
