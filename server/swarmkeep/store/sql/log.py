"""Changes of the log: events are sealed and folded here, before the transaction that records them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, TypeVar

from msgspec import UNSET
from sqlalchemy import Connection, update

from swarmkeep.domain.decisions.sizes import is_heavy
from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.errors import HistoryDamaged, InvalidRequest, Overloaded, SeqConflict, SessionNotFound
from swarmkeep.domain.events import SessionRedacted
from swarmkeep.domain.fold import fold
from swarmkeep.domain.state import Damage, State, refuse_damaged
from swarmkeep.domain.timestamps import to_timestamp
from swarmkeep.store.aside import MANY_EVENTS, free_aside, free_state_aside, run_off_loop
from swarmkeep.store.clock import Clock, utc_now
from swarmkeep.store.hashing import SealedEvent, last_hash, seal
from swarmkeep.store.ports import (
    AppendResult,
    Claim,
    IdempotencyRecord,
    Lease,
    OutcomeUnknown,
    Restoration,
    SessionHead,
    SessionKey,
    StoreUnavailable,
)
from swarmkeep.store.ports.audit import AuditAction
from swarmkeep.store.ports.database import Database
from swarmkeep.store.ports.totals import StorageQuota
from swarmkeep.store.sql import writes
from swarmkeep.store.sql.appending.plain import is_plain, render_append
from swarmkeep.store.sql.audit_log import record_audited_events
from swarmkeep.store.sql.columns import escape
from swarmkeep.store.sql.contents import (
    NamedContents,
    collect_named,
    copy_slice,
    delete_copies,
    list_marks,
    plan_slices,
)
from swarmkeep.store.sql.heads import AppendPlan, is_head, plan_append
from swarmkeep.store.sql.reader import SqlEventReader, read_head_seq, read_log
from swarmkeep.store.sql.redacting import find_idempotency_keys, redact, replace_payloads
from swarmkeep.store.sql.restoring.plans import RestorePlan, plan_some
from swarmkeep.store.sql.restoring.writes import restore
from swarmkeep.store.sql.tables import of_session, sessions
from swarmkeep.store.stamps import NO_KEYS, IntegrityKeys

T = TypeVar("T")
OnAppend = Callable[[float, BaseException | None], None]
"""Takes the seconds of an append, and the error that it ended with."""
OnDamage = Callable[[SessionKey, Damage], None]
"""Takes a session that this process was the first to find damaged."""

Stamping = Literal["stamped", "kept", "refused"]

log = logging.getLogger(__name__)

CACHE_BYTES = 64 * 1024 * 1024
# PostgreSQL cannot index a key of more than about 2,700 bytes; refused alike on both.
_MAX_KEY_BYTES = 1000
# While another writes to the same session.
_MOST_TRIES = 5


class SqlEventLog(SqlEventReader):
    """EventLog (see there for what each call promises) on a Database."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock = utc_now,
        cache_bytes: int = CACHE_BYTES,
        on_append: OnAppend | None = None,
        on_damage: OnDamage | None = None,
        integrity_keys: IntegrityKeys = NO_KEYS,
    ) -> None:
        super().__init__(database, cache_bytes=cache_bytes, integrity_keys=integrity_keys)
        self._clock = clock
        self._on_append = on_append
        self._on_damage = on_damage

    async def append(
        self,
        key: SessionKey,
        base: State,
        drafts: Sequence[EventDraft],
        *,
        lease: Lease | Claim | None = None,
        lease_seconds: float = 15.0,
        blobs: Mapping[str, str | bytes] | None = None,
        idempotency: IdempotencyRecord | None = None,
        quota: StorageQuota | None = None,
    ) -> AppendResult:
        with self._report_append():
            _refuse_long_keys(key, idempotency)
            refuse_damaged(key.id, base)
            if base.seq == 0 and not drafts:
                return await self._refuse_empty_append(key)

            def make_plan() -> AppendPlan:
                return plan_append(
                    key,
                    base,
                    self._seal(key, base, drafts),
                    lease=lease,
                    lease_seconds=lease_seconds,
                    blobs=blobs,
                    idempotency=idempotency,
                    quota=quota,
                    keys=self.integrity_keys,
                )

            plan = await run_off_loop(_count_work(drafts), make_plan)
            try:
                return await self._append(plan)
            except SeqConflict:
                # By somebody's later event, or by a log that does not end where the head row says.
                if base.seq:
                    self._doubted.add(key)
                raise
            except HistoryDamaged:
                # Found by another process. It may have been mended since.
                self._cache.drop(key)
                raise

    async def _append(self, plan: AppendPlan) -> AppendResult:
        return await self._finish(plan, self._record(plan))

    async def _finish(self, plan: AppendPlan, recording: Awaitable[Lease | None]) -> AppendResult:
        try:
            granted = await recording
        except OutcomeUnknown as unknown:
            unknown.appended = plan.make_result(None)
            raise
        self._cache_state(plan)
        self.database.notify(plan.key)
        return plan.make_result(granted)

    async def _record(self, plan: AppendPlan) -> Lease | None:
        if is_plain(plan):
            rows = await self.database.write_statement(lambda dialect: render_append(plan, dialect))
            if rows:
                return plan.make_lease(rows[0][0])
        # Where that was refused, this is, too, and says why.
        return await self.database.write(lambda connection: _append_with_audit(connection, plan))

    async def fork(
        self,
        source: SessionKey,
        base: State,
        target: SessionKey,
        drafts: Sequence[EventDraft],
        *,
        redacted: int = 0,
        lease: Claim | None = None,
        blobs: Mapping[str, str | bytes] | None = None,
        idempotency: IdempotencyRecord | None = None,
        quota: StorageQuota | None = None,
    ) -> AppendResult:
        with self._report_append():
            _refuse_long_keys(target, idempotency)
            refuse_damaged(source.id, base)

            def make_plan() -> tuple[AppendPlan, NamedContents]:
                named, sealed = collect_named(base), self._seal(target, base, drafts)
                plan = plan_append(
                    target,
                    base,
                    sealed,
                    lease=lease,
                    blobs=blobs,
                    idempotency=idempotency,
                    quota=quota,
                    keys=self.integrity_keys,
                )
                return plan, named

            plan, named = await run_off_loop(base.seq + _count_work(drafts), make_plan)
            return await self._finish(plan, self._copy(source, plan, redacted, named))

    async def _copy(self, source: SessionKey, plan: AppendPlan, redacted: int, named: NamedContents) -> Lease | None:
        slices = []
        if named.files:
            slices = await self.database.read(lambda connection: plan_slices(connection, source, named.files))
        try:
            # What fits into one goes with the rest.
            for some in slices if len(slices) > 1 else ():
                await self.database.write(partial(copy_slice, source=source, target=plan.key, hashes=some))
            # Nothing for the audit log: a redaction that a fork tells of was made, and is told of, in its source.
            return await self.database.write(lambda connection: writes.fork(connection, source, plan, redacted, named))
        except BaseException:
            if len(slices) > 1:
                await self._remove_copies(plan.key)
            raise

    async def remove_abandoned_copies(self) -> None:
        for key in await self.database.read(list_marks):
            await self._remove_copies(key)

    async def _remove_copies(self, key: SessionKey) -> None:
        """Remove what was copied ahead for a fork that is not made. What cannot be removed now is found by its mark."""
        for _ in range(_MOST_TRIES):
            try:
                state = await self.state(key)
            except SessionNotFound:
                state = None
            with contextlib.suppress(SeqConflict):
                await self.database.write(partial(delete_copies, target=key, state=state), erases=True)
                return

    async def restore(
        self, sessions: Iterable[Restoration], *, action: AuditAction, quota: StorageQuota | None = None
    ) -> list[SessionHead | None]:
        left = map(_refuse_long_key, sessions)
        ends: list[SessionHead | None] = []
        while True:
            # All that takes long comes before a transaction, and off the loop: others write meanwhile.
            plans, error = await asyncio.to_thread(plan_some, left, self._seal, self.integrity_keys)
            if plans:
                ends += await self._restore_some(plans, action, quota)
            if error is not None:
                raise error
            if not plans:
                return ends

    async def _restore_some(
        self, plans: Sequence[RestorePlan], action: AuditAction, quota: StorageQuota | None
    ) -> list[SessionHead | None]:
        for plan in plans:
            self._cache.drop(plan.key)
        try:
            return await restore(self.database, plans, action, to_timestamp(self._clock()), quota)
        finally:
            # Where a quota ends it, too: those before that are recorded.
            for plan in plans:
                self.database.notify(plan.key)

    async def redact(
        self,
        key: SessionKey,
        log: Sequence[SealedEvent],
        stand_ins: Mapping[int, str],
        draft: EventDraft,
        *,
        idempotency: IdempotencyRecord | None = None,
    ) -> AppendResult:
        _refuse_long_keys(key, idempotency)

        def make_plan() -> tuple[AppendPlan, list[RecordedEvent], list[str], NamedContents]:
            events = replace_payloads(log, stand_ins)
            base, redacted = fold(events), [event for event in events if event.seq in stand_ins]
            free_aside(events)
            free_state_aside(base)
            sealed = self._seal(key, base, [draft])
            plan = plan_append(key, base, sealed, idempotency=idempotency, keys=self.integrity_keys)
            fact = draft.fact
            forgotten = fact.texts if isinstance(fact, SessionRedacted) and fact.texts is not UNSET else ()
            return plan, redacted, find_idempotency_keys(log, stand_ins), collect_named(plan.state, forgotten)

        plan, redacted, used_keys, named = await asyncio.to_thread(make_plan)
        self._cache.drop(key)
        self._files.drop(key)

        def job(connection: Connection) -> None:
            redact(connection, plan, redacted, used_keys, named)
            record_audited_events(connection, key, plan.sealed)

        await self.database.write(job, erases=True)
        self._cache.put(key, plan.state)
        self.database.notify(key)
        return plan.make_result(None)

    async def delete(
        self, key: SessionKey, *, expected: State | None = None, by: str | None = None, reason: str | None = None
    ) -> None:
        action = AuditAction(type="session.deleted", by=by, reason=reason)
        at = to_timestamp(self._clock())
        self._cache.drop(key)
        await self.database.write(lambda db: writes.delete_session(db, key, expected, action, at), erases=True)
        self._cache.drop(key)
        self._files.drop(key)
        self.database.notify(key)

    async def _note_damage(self, key: SessionKey, damage: Damage | None) -> None:
        """Tell of it once: whoever finds it first sets the session aside, in the row that all servers see."""
        at = to_timestamp(self._clock())
        try:
            told = await self.database.write(lambda connection: writes.set_aside(connection, key, damage, at))
        except (StoreUnavailable, OutcomeUnknown, Overloaded):
            # A database that is only read, or cannot be written to now. The session is refused all the same.
            told = False
        if damage is None:
            log.warning("session %s: what is stored verifies again, and it can go on", key.id, extra=_name(key))
            return
        if told and self._on_damage is not None:
            self._on_damage(key, damage)
        log.log(
            logging.ERROR if told else logging.DEBUG,
            "session %s: what is stored is not what was recorded, from event %d on (%s): it is set aside",
            key.id, damage.seq, damage.code, extra=_name(key),
        )  # fmt: skip

    async def stamp(self, key: SessionKey, *, unstamped: bool) -> Stamping:
        """Sign a session's head with the first key, if it has a stamp of another one; if it has none, `unstamped` says
        so. `refused`: it does not verify, or its stamp is wrong, or missing."""
        keys = self.integrity_keys
        head, rows = await self.database.read_at_one_moment(lambda connection: read_log(connection, key))
        if head is None:
            return "refused"
        fault = keys.find_fault(head["stamp"], key, head["head_seq"], head["head_hash"])
        if fault is None and keys.is_current(head["stamp"]):
            return "kept"
        if fault is not None and not (unstamped and fault == "stamp_missing"):
            return "refused"
        state = await asyncio.to_thread(self.check_log, key, head, rows, is_stamped=False)
        if state.damage is not None:
            await self._note_damage(key, state.damage)
            return "refused"
        values = {"stamp": keys.sign(key, state.seq, last_hash(state))}
        change = update(sessions).where(*of_session(sessions, key), is_head(state), sessions.c.stamp == head["stamp"])
        if not await self.database.write(lambda connection: connection.execute(change.values(values)).rowcount):
            # Something was recorded meanwhile.
            return await self.stamp(key, unstamped=unstamped)
        if head["damaged_seq"] is not None:
            await self.check(key)
        return "stamped"

    async def _refuse_empty_append(self, key: SessionKey) -> AppendResult:
        last = await self.database.read(lambda connection: read_head_seq(connection, key))
        raise SessionNotFound(key.id) if last is None else SeqConflict(key.id, 0)

    def _cache_state(self, plan: AppendPlan) -> None:
        free_state_aside(plan.state)
        # What a redaction removed may still be in the folded state.
        if any(isinstance(one.event.fact, SessionRedacted) for one in plan.sealed):
            self._cache.drop(plan.key)
        else:
            self._cache.put(plan.key, plan.state)

    def _seal(self, key: SessionKey, base: State, drafts: Sequence[EventDraft]) -> list[SealedEvent]:
        return seal(key.id, base, drafts, at=to_timestamp(self._clock()))

    @contextlib.contextmanager
    def _report_append(self) -> Iterator[None]:
        began, failure = time.perf_counter(), None
        try:
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            if self._on_append is not None:
                self._on_append(time.perf_counter() - began, failure)


def _name(key: SessionKey) -> dict[str, str]:
    return {"tenant": key.tenant, "session_id": key.id}


def _count_work(drafts: Sequence[EventDraft]) -> int:
    """How many events sealing and folding these is worth."""
    return MANY_EVENTS if is_heavy(*(draft.fact for draft in drafts)) else len(drafts)


def _append_with_audit(connection: Connection, plan: AppendPlan) -> Lease | None:
    lease = writes.append(connection, plan)
    record_audited_events(connection, plan.key, plan.sealed)
    return lease


def _refuse_long_key(session: Restoration) -> Restoration:
    _refuse_long_keys(session.key, None)
    return session


def _refuse_long_keys(key: SessionKey, idempotency: IdempotencyRecord | None) -> None:
    parts = [
        ("tenant", key.tenant),
        ("id", key.id),
        ("idempotency key", "" if idempotency is None else idempotency.key),
    ]
    for name, text in parts:
        if len(escape(text).encode()) > _MAX_KEY_BYTES:
            raise InvalidRequest(f"the {name} is longer than {_MAX_KEY_BYTES} bytes")
