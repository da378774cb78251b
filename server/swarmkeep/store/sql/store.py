"""The event store on SQL: SQLite and PostgreSQL run the same statements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from swarmkeep.domain.codec import encode_text
from swarmkeep.domain.envelope import EventDraft
from swarmkeep.domain.errors import EventNotFound, InvalidRequest, SeqConflict, SessionNotFound
from swarmkeep.domain.events import SessionRedacted
from swarmkeep.domain.fold import fold
from swarmkeep.domain.state import State
from swarmkeep.domain.timestamps import to_timestamp
from swarmkeep.domain.views import view_session
from swarmkeep.store.archive import Archive, AuditAction
from swarmkeep.store.hashing import SealedEvent, seal
from swarmkeep.store.ports import AppendResult, Claim, IdempotencyRecord, Lease, OutcomeUnknown, SealedBatch, SessionKey
from swarmkeep.store.sql import queries, writes
from swarmkeep.store.sql.audit_log import AuditLogConflict
from swarmkeep.store.sql.columns import escape
from swarmkeep.store.sql.database import Database
from swarmkeep.store.sql.heads import AppendPlan, renew_leases
from swarmkeep.store.sql.reader import SqlReader
from swarmkeep.store.sql.redacting import find_idempotency_keys, redact, replace_payloads
from swarmkeep.store.sql.restoring import restore
from swarmkeep.store.sqlite.database import SqliteDatabase
from swarmkeep.store.state_cache import StateCache, can_continue
from swarmkeep.store.urls import SqliteFile, locate

Clock = Callable[[], datetime]

CACHE_BYTES = 64 * 1024 * 1024
# PostgreSQL cannot index a key of more than about 2,700 bytes; refused alike on both.
_MAX_KEY_BYTES = 1000


def utc_now() -> datetime:
    return datetime.now(UTC)


def open_store(
    url: str,
    *,
    clock: Clock = utc_now,
    cache_bytes: int = CACHE_BYTES,
    read_only: bool = False,
    max_waiting: int = 1000,
) -> SqlStore:
    """The store in the database that `url` names. Nothing is opened before the first call, and nothing ever created.

    `clock` gives the events' times. `cache_bytes` bounds the memory of folded states. `read_only` refuses writes and
    leaves a SQLite file's directory as it is. Above `max_waiting` writes at once, more are Overloaded.

    Raises BadDatabaseUrl.
    """
    location = locate(url)
    database: Database
    if isinstance(location, SqliteFile):
        database = SqliteDatabase(location, read_only=read_only, max_waiting=max_waiting)
    else:
        # Its half of SQLAlchemy takes longer to load than all the rest.
        from swarmkeep.store.postgres.database import PostgresDatabase

        database = PostgresDatabase(location, read_only=read_only, max_waiting=max_waiting)
    return SqlStore(database, display=location.display, clock=clock, cache_bytes=cache_bytes)


class SqlStore(SqlReader):
    """An Archive (see there for what each call promises) on a Database."""

    def __init__(
        self, database: Database, *, display: str, clock: Clock = utc_now, cache_bytes: int = CACHE_BYTES
    ) -> None:
        super().__init__(database, display=display)
        self._clock = clock
        self._cache = StateCache(cache_bytes)

    async def append(
        self,
        key: SessionKey,
        base: State,
        drafts: Sequence[EventDraft],
        *,
        lease: Lease | Claim | None = None,
        lease_seconds: float = 15.0,
        blobs: Mapping[str, str] | None = None,
        mark: IdempotencyRecord | None = None,
    ) -> AppendResult:
        _refuse_long_keys(key, mark)
        if base.seq == 0 and not drafts:
            return await self._refuse_empty_append(key)
        sealed, state = self._seal(key, base, drafts)
        step = AppendPlan(
            key=key,
            base=base,
            state=state,
            sealed=sealed,
            view=encode_text(view_session(key.id, state)),
            lease=lease,
            lease_seconds=lease_seconds,
            blobs=blobs or {},
            mark=mark,
        )
        try:
            granted = await self.database.write(lambda connection: writes.append(connection, step))
        except OutcomeUnknown as unknown:
            unknown.appended = AppendResult([one.event for one in sealed], state, None)
            raise
        self._remember(key, step)
        self.database.tell(key)
        return AppendResult([one.event for one in sealed], state, granted)

    async def fork(
        self,
        source: SessionKey,
        base: State,
        target: SessionKey,
        drafts: Sequence[EventDraft],
        *,
        redacted: int = 0,
        mark: IdempotencyRecord | None = None,
    ) -> AppendResult:
        _refuse_long_keys(target, mark)
        sealed, state = self._seal(target, base, drafts)
        view = encode_text(view_session(target.id, state))
        step = AppendPlan(key=target, base=base, state=state, sealed=sealed, view=view, mark=mark)
        await self.database.write(lambda connection: writes.fork(connection, source, step, redacted))
        self._remember(target, step)
        return AppendResult([one.event for one in sealed], state, None)

    async def restore(
        self,
        key: SessionKey,
        chunks: Callable[[], Iterable[SealedBatch]],
        *,
        closing: Callable[[State], Sequence[EventDraft]],
    ) -> State:
        _refuse_long_keys(key, None)

        def close(state: State) -> SealedBatch:
            return SealedBatch(seal(key.id, state, closing(state), at=self._now()))

        self._cache.drop(key)
        state = await self.database.write(lambda connection: restore(connection, key, chunks(), close))
        self.database.tell(key)
        return state

    async def redact(
        self,
        key: SessionKey,
        log: Sequence[SealedEvent],
        stand_ins: Mapping[int, str],
        draft: EventDraft,
        *,
        mark: IdempotencyRecord | None = None,
    ) -> AppendResult:
        _refuse_long_keys(key, mark)
        events = replace_payloads(log, stand_ins)
        base, emptied = fold(events), [event for event in events if event.seq in stand_ins]
        sealed, state = self._seal(key, base, [draft])
        view = encode_text(view_session(key.id, state))
        step = AppendPlan(key=key, base=base, state=state, sealed=sealed, view=view, mark=mark)
        gone = find_idempotency_keys(log, stand_ins)
        self._cache.drop(key)
        await self.database.write(lambda connection: redact(connection, step, emptied, gone), erases=True)
        self._cache.put(key, state)
        self.database.tell(key)
        return AppendResult([one.event for one in sealed], state, None)

    async def delete(
        self, key: SessionKey, *, expected: State | None = None, by: str | None = None, reason: str | None = None
    ) -> None:
        act = AuditAction(type="session.deleted", by=by, reason=reason)
        at = self._now()
        self._cache.drop(key)
        while True:
            try:
                await self.database.write(lambda db: writes.delete_session(db, key, expected, act, at), erases=True)
            except AuditLogConflict:
                continue
            break
        self._cache.drop(key)
        self.database.tell(key)

    async def renew(self, leases: Mapping[SessionKey, Lease], *, lease_seconds: float) -> set[SessionKey]:
        await self.database.write(lambda connection: renew_leases(connection, leases, lease_seconds))
        heads = await self.heads(leases)
        return {key for key, lease in leases.items() if key not in heads or heads[key].lease != lease}

    async def state(self, key: SessionKey, *, at: int | None = None, fresh: bool = True) -> State:
        known = self._cache.get(key)
        if known is not None and not fresh and at in (None, known.seq):
            return known
        if at is not None:
            return await self._read_state_at(key, at, known)
        state = await self._read_current(key, known)
        if state is None:
            raise SessionNotFound(key.id)
        return state

    async def _read_current(self, key: SessionKey, known: State | None) -> State | None:
        """The last state, from the events since the known one where that is still part of the session."""
        if known is not None:
            tail = await self.read(key, after=known.seq - 1)
            if can_continue(known, tail):
                state = fold(tail[1:], known)
                self._cache.put(key, state)
                return state
            self._cache.drop(key)
        events = await self.read(key)
        if not events:
            return None
        state = fold(events)
        self._cache.put(key, state)
        return state

    async def _read_state_at(self, key: SessionKey, at: int, known: State | None) -> State:
        if known is not None and at == known.seq:
            state = await self._read_current(key, known)
            if state is not None and state.seq == at:
                return state
        events = await self.read(key, upto=at) if at > 0 else []
        # One that is missing before it is damage, which `verify` names; the rest can be shown.
        if events and events[-1].seq == at:
            return fold(events)
        last = await self.database.read(lambda connection: queries.read_head_seq(connection, key))
        if last is None:
            raise SessionNotFound(key.id)
        raise EventNotFound.out_of_range(key.id, last, at)

    def _seal(self, key: SessionKey, base: State, drafts: Sequence[EventDraft]) -> tuple[list[SealedEvent], State]:
        sealed = seal(key.id, base, drafts, at=self._now())
        return sealed, fold((one.event for one in sealed), base)

    def _now(self) -> str:
        return to_timestamp(self._clock())

    async def _refuse_empty_append(self, key: SessionKey) -> AppendResult:
        last = await self.database.read(lambda connection: queries.read_head_seq(connection, key))
        raise SessionNotFound(key.id) if last is None else SeqConflict(key.id, 0)

    def _remember(self, key: SessionKey, step: AppendPlan) -> None:
        # What a redaction removed may still be in the folded state.
        if any(isinstance(one.event.fact, SessionRedacted) for one in step.sealed):
            self._cache.drop(key)
        else:
            self._cache.put(key, step.state)


if TYPE_CHECKING:
    _: type[Archive] = SqlStore


def _refuse_long_keys(key: SessionKey, mark: IdempotencyRecord | None) -> None:
    parts = [("tenant", key.tenant), ("id", key.id), ("idempotency key", "" if mark is None else mark.key)]
    for name, text in parts:
        if len(escape(text).encode()) > _MAX_KEY_BYTES:
            raise InvalidRequest(f"the {name} is longer than {_MAX_KEY_BYTES} bytes")
