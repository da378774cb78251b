"""What callers do with sessions, beside running them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from swarmkeep.domain.codec import encode
from swarmkeep.domain.commands import create_session, drafted, update_session
from swarmkeep.domain.errors import SeqConflict, SeqMismatch, SessionBusy, SessionExists
from swarmkeep.domain.events import Draft, MessageAdded, Recorded, SessionEvent, SessionForked
from swarmkeep.domain.state import SessionStatus, State
from swarmkeep.domain.views import SessionView, session_view
from swarmkeep.engine.conductor import Conductor
from swarmkeep.engine.inputs import checked_id, checked_messages, checked_object
from swarmkeep.engine.registry import Registry
from swarmkeep.store.port import EventStore, SessionKey, SessionPage

Json = dict[str, Any]


class Sessions:
    """Sessions of every tenant; each call names its own."""

    def __init__(self, store: EventStore, registry: Registry, conductor: Conductor) -> None:
        self._store = store
        self._registry = registry
        self._conductor = conductor

    async def create(
        self,
        tenant: str,
        *,
        session_id: str | None = None,
        agent: str | None = None,
        context_variables: Json | None = None,
        metadata: Json | None = None,
        messages: list[Json] | None = None,
    ) -> tuple[SessionView, bool]:
        """Make a session, by default with the first agent; True if it was made now.

        Asked again with the same id and the same content, gives the session as it was made, and False.
        Raises SessionExists, AgentNotFound, InvalidRequest.
        """
        name = self._registry.get(agent).name if agent is not None else self._registry.default
        key = SessionKey(tenant, checked_id(session_id) if session_id is not None else f"sess_{uuid4().hex}")
        facts = create_session(
            name,
            checked_object(context_variables or {}, "/context_variables"),
            checked_object(metadata or {}, "/metadata"),
            checked_messages(messages or [], "/messages"),
        )
        try:
            appended = await self._store.append(key, State(), drafted(name, facts, None))
        except SeqConflict:
            return await self._made_before(key, facts), False
        return session_view(key.id, appended.state), True

    async def _made_before(self, key: SessionKey, facts: Sequence[SessionEvent]) -> SessionView:
        events = await self._store.read(key, upto=len(facts) + 1)
        made, after = events[: len(facts)], events[len(facts) :]
        same = [encode(event.fact) for event in made] == [encode(fact) for fact in facts]
        longer = bool(after) and isinstance(after[0].fact, MessageAdded) and after[0].run_id is None
        if not same or longer:
            raise SessionExists(key.id)
        return session_view(key.id, await self._store.state(key, at=len(facts)))

    async def get(self, key: SessionKey, *, at: int | None = None) -> SessionView:
        """The session now, or as it was after event `at`."""
        return session_view(key.id, await self.state(key, at=at))

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
    ) -> SessionView:
        """Merge patches; writers of different keys do not disturb each other. Raises SeqMismatch for `if_match`."""
        if agent is not None:
            self._registry.get(agent)
        context = checked_object(context_variables or {}, "/context_variables")
        labels = checked_object(metadata or {}, "/metadata")

        def decide(state: State) -> Sequence[Draft]:
            if if_match is not None and state.seq != if_match:
                raise SeqMismatch(if_match, state.seq)
            facts = update_session(state, agent=agent, context_variables=context, metadata=labels)
            run_id = state.run.id if state.run is not None else None
            return drafted(state.agent, facts, run_id)

        ledger = self._conductor.ledger(key, await self._store.state(key))
        self._conductor.publish(key, await ledger.commit(decide))
        return session_view(key.id, ledger.state)

    async def fork(
        self,
        key: SessionKey,
        *,
        at: int | None = None,
        session_id: str | None = None,
        metadata: Json | None = None,
    ) -> SessionView:
        """A new session with this one's history up to `at` (by default all of it), its hashes included.

        A run that the copied history ends in does not go on there. Raises SessionExists.
        """
        base = await self._store.state(key, at=at)
        target = SessionKey(key.tenant, checked_id(session_id) if session_id is not None else f"sess_{uuid4().hex}")
        forked = SessionForked(from_session_id=key.id, from_seq=base.seq, from_hash=base.hash)
        labels = checked_object(metadata or {}, "/metadata")
        facts: list[SessionEvent] = [forked, *update_session(base, metadata=labels)]
        try:
            appended = await self._store.fork(key, base, target, drafted(base.agent, facts, None))
        except SeqConflict:
            raise SessionExists(target.id) from None
        return session_view(target.id, appended.state)

    async def delete(self, key: SessionKey, *, force: bool = False) -> None:
        """Remove every row of the session. Raises SessionBusy while a run is active, unless forced."""
        while True:
            state = await self._store.state(key)
            if state.run is not None and not force:
                raise SessionBusy(state.run.id, state.run.status)
            try:
                await self._store.delete(key, expected=None if force else state)
            except SeqConflict:
                continue
            self._conductor.abandon(key)
            return

    async def events(
        self, key: SessionKey, *, after: int = 0, types: Sequence[str] = (), limit: int | None = None
    ) -> list[Recorded]:
        """Events in order. Raises SessionNotFound."""
        events = await self._store.read(key, after=after, types=types, limit=limit)
        if not events:
            await self._store.state(key)
        return events
