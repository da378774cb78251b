"""Changes of the log: events are sealed and folded here, before the transaction that records them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET
from sqlalchemy import (
    BigInteger,
    Connection,
    Dialect,
    Insert,
    Table,
    bindparam,
    column,
    func,
    insert,
    select,
    true,
    update,
    values,
)
from sqlalchemy.sql.selectable import CTE

from swarmkeep.events.codec import to_timestamp
from swarmkeep.events.errors import (
    HistoryDamaged,
    InvalidRequest,
    Overloaded,
    SeqConflict,
    SessionNotFound,
)
from swarmkeep.events.facts import EventDraft, RecordedEvent, SessionForked, SessionRedacted
from swarmkeep.events.fold import fold
from swarmkeep.events.sizes import is_heavy
from swarmkeep.events.state import Damage, State, refuse_damaged
from swarmkeep.store import writes
from swarmkeep.store.audit import AUDITED, record_audited_events
from swarmkeep.store.contents import (
    NamedContents,
    collect_named,
    copy_slice,
    delete_copies,
    delete_slice,
    list_marks,
    plan_deletion,
    plan_slices,
)
from swarmkeep.store.hashing import SealedEvent, last_hash, seal
from swarmkeep.store.heads import AppendPlan, LeaseMode, build_head_update, is_head, make_advance_row, plan_append
from swarmkeep.store.integrity import NO_KEYS, IntegrityKeys
from swarmkeep.store.people import SqlPeople, encrypt_plan, hold_plan_key
from swarmkeep.store.person_keys import Keyring
from swarmkeep.store.reading import SqlEventReader, read_head_seq, read_log
from swarmkeep.store.records import (
    AppendResult,
    AuditAction,
    Claim,
    Clock,
    IdempotencyRecord,
    Lease,
    OutcomeUnknown,
    Restoration,
    SessionHead,
    SessionKey,
    StorageQuota,
    StoreUnavailable,
    utc_now,
)
from swarmkeep.store.runs import find_reopened, make_run_rows
from swarmkeep.store.search import build_marks, move_mark
from swarmkeep.store.statements import Database, PreparedStatement, build_insert, build_insert_if_absent
from swarmkeep.store.tables import (
    blobs,
    escape,
    events,
    idempotency,
    of_session,
    runs,
    sessions,
    stored_bytes,
    totals,
    usage,
    usage_days,
)
from swarmkeep.store.threads import FEW_EVENTS, MANY_EVENTS, free_aside, free_state_aside, run_off_loop
from swarmkeep.store.usage import add_to_days, add_to_totals, make_day_rows, make_totals_row, make_usage_row, sum_rows
from swarmkeep.store.writes import (
    RestorePlan,
    encrypt_restored,
    find_idempotency_keys,
    make_event_rows,
    measure_growth,
    plan_some,
    redact,
    replace_payloads,
    restore,
)

# A plain append as one statement, for a database that changes several tables with one: PostgreSQL.

_DIALECT = "postgresql"
_OF_SESSION = ("tenant", "session_id")


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a plain append. Parts that it does not have cost nothing."""

    mode: LeaseMode
    running: bool
    event_count: int
    call_count: int
    run_count: int
    day_count: int
    text_count: int
    has_record: bool
    has_quota: bool
    changes_index: bool


@functools.cache
def prepare_append(shape: Shape) -> PreparedStatement:
    """The statement: a row with the lease's epoch, or none if it was refused."""
    head = _build_head(shape)
    parts: list[CTE] = [_build_inserts(insert(events), head, shape.event_count).cte("new_events")]
    if shape.call_count:
        parts.append(_build_inserts(insert(usage), head, shape.call_count).cte("new_usage"))
    if shape.run_count:
        parts.append(_build_inserts(insert(runs), head, shape.run_count).cte("new_runs"))
    texts = _build_texts(head, shape.text_count) if shape.text_count else None
    if texts is not None:
        parts.append(texts)
    if shape.changes_index:
        parts.append(_build_mark(head).cte("new_mark"))
    if shape.has_record:
        parts.append(_build_record(head).cte("new_record"))
    totals_changed = _build_totals(head, texts).cte("new_totals")
    parts.append(totals_changed)
    if shape.day_count:
        parts.append(_build_days(head, totals_changed, shape.day_count).cte("new_days"))
    return PreparedStatement(select(head.c.lease_epoch).add_cte(*parts))


def name_parameters(table: Table, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The parameters of rows that the statement inserts into a table."""
    names = _name_columns(table)
    return {f"{table.name}_{number}_{name}": row[name] for number, row in enumerate(rows) for name in names}


@functools.cache
def _name_columns(table: Table) -> list[str]:
    """Those that do not name the session, which the head row gives."""
    return [each.name for each in table.c if each.name not in _OF_SESSION]


def _build_head(shape: Shape) -> CTE:
    statement = build_head_update(shape.mode, shape.running)
    if shape.has_quota:
        stored = select(func.coalesce(func.sum(totals.c.bytes), 0)).where(totals.c.tenant == bindparam("tenant_"))
        statement = statement.where(stored.scalar_subquery() <= bindparam("spare_bytes", type_=BigInteger()))
    moved = sessions.c
    return statement.returning(moved.tenant, moved.id, moved.head_seq, moved.lease_epoch).cte("head")


def _build_inserts(into: Any, head: CTE, count: int) -> Any:
    rows = _build_rows(into.table, count)
    source = select(head.c.tenant, head.c.id, *rows.c).select_from(head.join(rows, true()))
    return into.from_select([*_OF_SESSION, *rows.c.keys()], source)


def _build_rows(table: Table, count: int) -> Any:
    # Arrays would do for any number of rows, but the driver examines every item of one by itself: 4 % of a turn.
    types = {name: table.c[name].type for name in _name_columns(table)}
    return values(*(column(name, of) for name, of in types.items()), name=f"{table.name}_rows").data(
        [
            tuple(bindparam(f"{table.name}_{number}_{name}", type_=of) for name, of in types.items())
            for number in range(count)
        ]
    )


def _build_texts(head: CTE, count: int) -> CTE:
    absent = _build_inserts(build_insert_if_absent(blobs, _DIALECT), head, count)
    texts: CTE = absent.returning(stored_bytes(blobs.c.text).label("size")).cte("new_texts")
    return texts


def _build_record(head: CTE) -> Insert:
    # A key that was used before is an error here, because the head has moved by then. It undoes the whole statement.
    names = ("key", "digest", "run_id")
    given = [bindparam(f"record_{name}", type_=idempotency.c[name].type) for name in names]
    source = select(head.c.tenant, head.c.id, *given, head.c.head_seq)
    return insert(idempotency).from_select([*_OF_SESSION, *names, "seq"], source)


def _build_mark(head: CTE) -> Any:
    return move_mark(build_marks(_DIALECT, head))


def _build_totals(head: CTE, texts: CTE | None) -> Any:
    given = {name: bindparam(f"totals_{name}", type_=each.type) for name, each in totals.c.items()}
    row: dict[str, Any] = {**given, "tenant": head.c.tenant}
    if texts is not None:
        row["bytes"] = given["bytes"] + select(func.coalesce(func.sum(texts.c.size), 0)).scalar_subquery()
    source = select(*row.values()).select_from(head)
    return add_to_totals(build_insert(totals, _DIALECT).from_select(list(row), source)).returning(totals.c.tenant)


def _build_days(head: CTE, totals_changed: CTE, count: int) -> Any:
    rows = _build_rows(usage_days, count)
    # Behind the totals, as in `writes`: a writer that changes both the other way round may wait for ever.
    source = select(head.c.tenant, *rows.c).select_from(head.join(totals_changed, true()).join(rows, true()))
    return add_to_days(build_insert(usage_days, _DIALECT).from_select(["tenant", *rows.c.keys()], source))


# Plain appends: which they are, and the parameters of the one statement that does them.

Row = dict[str, Any]

# Each number of rows is a statement of its own, which every connection prepares.
_MAX_EVENTS = 8
_MAX_TEXTS = 4
# The most that a quota is compared with: more than anybody has, and an integer of the database's.
_MANY_BYTES = 2**62


def is_plain(plan: AppendPlan) -> bool:
    """Tell if an append is of the usual kind: to a session that is there, changing no labels, no audit log and no run
    that was over."""
    return (
        plan.base.seq > 0
        and plan.state.person_key is None
        and 0 < len(plan.sealed) <= _MAX_EVENTS
        and len(plan.blobs) <= _MAX_TEXTS
        and not any(isinstance(text, bytes) for text in plan.blobs.values())
        and plan.state.metadata is plan.base.metadata
        and SessionForked not in plan.kinds
        and plan.kinds.isdisjoint(AUDITED)
        and not (plan.idempotency is not None and plan.base.forgot_keys)
        and find_reopened(plan.base, plan.state) is None
    )


def render_append(plan: AppendPlan, dialect: Dialect) -> tuple[str, Sequence[Any]]:
    """The statement of a plain append, and its parameters."""
    calls = [row for row in (make_usage_row(one.event) for one in plan.sealed) if row is not None]
    days = make_day_rows(plan.key, sum_rows(calls))
    ended = [] if plan.state.finished is plan.base.finished else make_run_rows(plan.state, plan.base.seq)
    shape = Shape(
        mode=plan.lease_mode,
        running=plan.is_running,
        changes_index=plan.changes_index,
        event_count=len(plan.sealed),
        call_count=len(calls),
        run_count=len(ended),
        day_count=len(days),
        text_count=len(plan.blobs),
        has_record=plan.idempotency is not None,
        has_quota=plan.quota is not None,
    )
    row = make_advance_row(plan)
    row |= name_parameters(events, make_event_rows(plan.key, plan.sealed))
    row |= name_parameters(usage, calls)
    row |= name_parameters(runs, ended)
    row |= name_parameters(usage_days, days)
    row |= name_parameters(blobs, [{"hash": name, "text": text} for name, text in plan.blobs.items()])
    return prepare_append(shape).render(dialect, row | _make_record_row(plan) | _make_totals_row(plan, calls))


def _make_record_row(plan: AppendPlan) -> Row:
    record = plan.idempotency
    if record is None:
        return {}
    return {"record_key": record.key, "record_digest": record.digest, "record_run_id": record.run_id}


def _make_totals_row(plan: AppendPlan, calls: Sequence[Row]) -> Row:
    growth = measure_growth(plan, calls)
    row = {f"totals_{name}": value for name, value in make_totals_row(plan.key, growth).items()}
    if plan.quota is not None:
        # As if all texts were new: where that makes the difference, the quota is checked by the general way.
        texts = sum(len(escape(text).encode()) for text in plan.blobs.values() if isinstance(text, str))
        row["spare_bytes"] = min(plan.quota.max_bytes - growth.bytes - texts, _MANY_BYTES)
    return row


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
# In whatever form so many characters are written, none of which takes more than 12 bytes: no longer than that.
_SHORT_KEY = 80
_BYTES_PER_EVENT = 4096
# While another writes to the same session.
_MOST_TRIES = 5


class SqlEventLog(SqlEventReader, SqlPeople):
    """The log. Each call is atomic and, once it returns, durable; nothing is held open between calls."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock = utc_now,
        cache_bytes: int = CACHE_BYTES,
        on_append: OnAppend | None = None,
        on_damage: OnDamage | None = None,
        integrity_keys: IntegrityKeys = NO_KEYS,
        person: str | None = None,
        keyring: Keyring | None = None,
    ) -> None:
        super().__init__(database, cache_bytes=cache_bytes, integrity_keys=integrity_keys)
        SqlPeople.__init__(self, database, clock=clock, person=person, keyring=keyring)
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
        """Record events at the end of a session: all of them, with everything below, or none.

        `base` is the state they were decided on: its seq and hash must still be the session's last (seq 0: there must
        be no such session yet). Times are UTC and set here; hashes continue the chain. `blobs` are texts, and files as
        bytes, by content hash; those already there are left. `idempotency` is kept with the seq of the last event; one
        without a run that makes a session makes no other one of that tenant.

        A Lease must still be the session's, and is renewed; a Claim takes it, with the next epoch. A lease is for its
        holder's runs, one after the other: a claim with which another run than that of `base` becomes the active one is
        granted over any holder of the lease, one that goes on with the same run only if there is none. An append after
        which no run is running gives the lease up and moves the epoch on, by any process. Without a lease given, the
        lease is left as it is otherwise. Empty `drafts` are allowed (for a claim or an idempotency record) and obey the
        same rules.

        With a `quota` the tenant may have no more than that afterwards: else QuotaExceeded, and nothing is recorded.

        Raises HistoryDamaged, SeqConflict (also when the session is gone), LeaseLost, IdempotencyMismatch or
        IdempotencyRecordExists when `idempotency.key` was used before, and OutcomeUnknown when the connection broke as
        it was committed.
        """
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

            is_long = _count_work(drafts) > FEW_EVENTS
            plan = await self._encrypt(await asyncio.to_thread(make_plan) if is_long else make_plan())
            try:
                return await self._finish(plan, self._record(plan))
            except SeqConflict:
                # By a later event, or by a log that does not end where the head row says.
                if base.seq:
                    self._doubted.add(key)
                raise
            except HistoryDamaged:
                # Found by another process. It may have been mended since.
                self._cache.drop(key)
                raise

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
        """Copy the source's events 1..base.seq (and their blobs), hashes included, and append `drafts`: atomically.

        The rest is the target's, as in an append. Raises SeqConflict, which names the session, if the target exists,
        or the source no longer has the event that `base` ends with, or not `redacted` of the events have lost their
        payload; QuotaExceeded, IdempotencyMismatch, IdempotencyRecordExists and OutcomeUnknown as `append` does.

        Large files are copied before, in several transactions: others write meanwhile.
        """
        with self._report_append():
            _refuse_long_keys(target, idempotency)
            refuse_damaged(source.id, base)
            await self.bring_back(source)
            base = msgspec.structs.replace(base, person_key=await self.find_person_key(source))

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
            plan = await self._encrypt(plan)
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
            return await self.database.write(lambda connection: _fork(connection, source, plan, redacted, named))
        except BaseException:
            if len(slices) > 1:
                await self._remove_copies(plan.key)
            raise

    async def remove_abandoned_copies(self) -> None:
        """Remove the files that were copied for forks that were never recorded, because their process died. A fork that
        is being made loses what it has copied so far, too, and copies it again.
        """
        for key in await self.database.read(list_marks):
            await self._remove_copies(key)

    async def _remove_copies(self, key: SessionKey) -> None:
        """Remove what was copied ahead for a fork that is not made, or left by a session that is gone.

        What cannot be removed now is found by its mark."""
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
        """Record sessions that were recorded elsewhere, each of them whole or not at all, in the order given.

        They are of one tenant, and each is named once.
        A few share a transaction, which is short: others write meanwhile. `action` is recorded in the tenant's audit
        log for each. Gives where each ends, None for one that is here already, which is left as it is. What is raised
        ends it: of the sessions before that none is lost, and those after it are not recorded.

        Raises QuotaExceeded, and what `sessions`, `batches` and `finish` raise.
        """
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
        plans = await self._encrypt_restored(plans)
        try:
            return await restore(self.database, plans, action, to_timestamp(self._clock()), quota)
        finally:
            # Where a quota ends it, too: those before that are recorded.
            for plan in plans:
                self.database.notify(plan.key)

    async def find_idempotency_record(self, key: SessionKey, idempotency_key: str) -> IdempotencyRecord | None:
        """The record of what an idempotency key was used for on a session, if it was."""
        return await self.database.read(
            lambda connection: writes.find_idempotency_record(connection, key, idempotency_key)
        )

    async def redact(
        self,
        key: SessionKey,
        log: Sequence[SealedEvent],
        stand_ins: Mapping[int, str],
        draft: EventDraft,
        *,
        idempotency: IdempotencyRecord | None = None,
        erases: bool = False,
    ) -> AppendResult:
        """Put texts in the place of payloads, for good, and append `draft`, which says so: atomically.

        `log` is the whole session, as it was decided on. What else holds a copy in it goes too: salts, texts that no
        event names any more, digests of requests. With `erases` nothing is left that is encrypted, so that its key can
        go, too. Raises SeqConflict if the session has moved on.
        """
        _refuse_long_keys(key, idempotency)
        person_key = await self.find_person_key(key)

        def make_plan() -> tuple[AppendPlan, list[RecordedEvent], list[str], NamedContents]:
            events = replace_payloads(log, stand_ins)
            base = msgspec.structs.replace(fold(events), person_key=person_key)
            redacted = [event for event in events if event.seq in stand_ins]
            free_aside(events)
            free_state_aside(base)
            sealed = self._seal(key, base, [draft])
            plan = plan_append(key, base, sealed, idempotency=idempotency, keys=self.integrity_keys)
            fact = draft.fact
            forgotten = fact.texts if isinstance(fact, SessionRedacted) and fact.texts is not UNSET else ()
            named = NamedContents((), ()) if erases else collect_named(plan.state, forgotten)
            return plan, redacted, find_idempotency_keys(log, stand_ins), named

        plan, redacted, used_keys, named = await asyncio.to_thread(make_plan)
        plan = plan if erases else await self._encrypt(plan)
        self._cache.drop(key)
        self._files.drop(key)

        def job(connection: Connection) -> None:
            if not erases:
                hold_plan_key(connection, plan)
            redact(connection, plan, redacted, used_keys, named)
            record_audited_events(connection, key, plan.sealed)

        await self.database.write(job, erases=True)
        self._cache.put(key, plan.state)
        self.database.notify(key)
        return plan.make_result(None)

    async def delete(
        self, key: SessionKey, *, expected: State | None = None, by: str | None = None, reason: str | None = None
    ) -> None:
        """Remove every row of a session. With `expected`, only if that is still its last state (else SeqConflict).

        That it was done, and by whom, is recorded in the tenant's audit log at once. Raises SessionNotFound.
        """
        action = AuditAction(type="session.deleted", by=by, reason=reason)
        at = to_timestamp(self._clock())
        self._cache.drop(key)
        slices = await self.database.read(lambda connection: plan_deletion(connection, key))
        job = partial(writes.delete_session, key=key, expected=expected, action=action, at=at, keeps_files=bool(slices))
        await self.database.write(job, erases=True)
        self._cache.drop(key)
        self._files.drop(key)
        self.database.notify(key)
        for some in slices:
            await self.database.write(partial(delete_slice, target=key, hashes=some), erases=True)
        if slices:
            await self._remove_copies(key)

    async def note_damage(self, key: SessionKey, damage: Damage | None) -> None:
        """Tell of it once: the server that finds it first sets the session aside, in the row that all servers see."""
        at = to_timestamp(self._clock())
        try:
            told = await self.database.write(lambda connection: writes.set_aside(connection, key, damage, at))
        except (StoreUnavailable, OutcomeUnknown, Overloaded):
            # A database that is only read, or cannot be written to now. The session is refused all the same.
            told = False
        # Another read may have put back meanwhile what it had begun from.
        self._cache.drop(key)
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
        head, rows = await self.read_present(key, lambda connection: read_log(connection, key), at_one_moment=True)
        if head is None:
            return "refused"
        fault = keys.find_fault(head["stamp"], key, head["head_seq"], head["head_hash"])
        if fault is None and keys.is_current(head["stamp"]):
            return "kept"
        if fault is not None and not (unstamped and fault == "stamp_missing"):
            return "refused"
        state = await asyncio.to_thread(self.check_log, key, head, rows, is_stamped=False)
        if state.damage is not None:
            await self.note_damage(key, state.damage)
            return "refused"
        values = {"stamp": keys.sign(key, state.seq, last_hash(state))}
        change = update(sessions).where(*of_session(sessions, key), is_head(state), sessions.c.stamp == head["stamp"])
        if not await self.database.write(lambda connection: connection.execute(change.values(values)).rowcount):
            # Something was recorded meanwhile.
            return await self.stamp(key, unstamped=unstamped)
        if head["damaged_seq"] is not None:
            await self.check(key)
        return "stamped"

    async def _encrypt(self, plan: AppendPlan) -> AppendPlan:
        """The plan with all that it records encrypted, if its session belongs to a person with a key.

        Raises PersonErased, and InvalidRequest if it would make the session another person's.
        """
        id = plan.base.person_key
        if plan.base.seq == 0:
            id = id or await self.find_key_of_new(plan.key, plan.state)
        elif plan.state.metadata is not plan.base.metadata:
            self._refuse_other_person(plan)
        return plan if id is None else await self._encrypt_by(plan, id)

    async def _encrypt_by(self, plan: AppendPlan, id: str) -> AppendPlan:
        key = await self.read_person_key(id, plan.key.id)
        return await run_off_loop(_count_encrypted(plan), lambda: encrypt_plan(plan, key))

    def _refuse_other_person(self, plan: AppendPlan) -> None:
        name, before, after = self.person, plan.base.metadata, plan.state.metadata
        is_redaction = any(isinstance(one.event.fact, SessionRedacted) for one in plan.sealed)
        if name is None or is_redaction or before.get(name) == after.get(name):
            return
        raise InvalidRequest(
            f"metadata {name!r} names the person whose key encrypts the session: it is set when that is made",
            "/metadata",
        )

    async def _encrypt_restored(self, plans: Sequence[RestorePlan]) -> list[RestorePlan]:
        """The sessions as they are to be stored; each asked one by the key of the session that asked it."""
        ids: dict[str, str | None] = {}
        encrypted: list[RestorePlan] = []
        for plan in plans:
            parent = plan.parent
            id = ids[parent] if parent in ids else await self.find_key_of_new(plan.key, plan.head.state, parent)
            ids[plan.key.id] = id
            if id is None:
                encrypted.append(plan)
                continue
            key = await self.read_person_key(id, plan.key.id)
            encrypted.append(await asyncio.to_thread(encrypt_restored, plan, key))
        return encrypted

    async def _refuse_empty_append(self, key: SessionKey) -> AppendResult:
        last = await self.database.read(lambda connection: read_head_seq(connection, key))
        raise SessionNotFound(key.id) if last is None else SeqConflict(key.id, 0)

    def _cache_state(self, plan: AppendPlan) -> None:
        free_state_aside(plan.state)
        # What a redaction removed may still be in the folded state.
        if SessionRedacted in plan.kinds:
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
    """Count the events that sealing and folding these is worth."""
    return MANY_EVENTS if is_heavy(*[draft.fact for draft in drafts]) else len(drafts)


def _append_with_audit(connection: Connection, plan: AppendPlan) -> Lease | None:
    hold_plan_key(connection, plan)
    lease = writes.append(connection, plan)
    if not plan.kinds.isdisjoint(AUDITED):
        record_audited_events(connection, plan.key, plan.sealed)
    return lease


def _fork(
    connection: Connection, source: SessionKey, plan: AppendPlan, redacted: int, named: NamedContents
) -> Lease | None:
    hold_plan_key(connection, plan)
    return writes.fork(connection, source, plan, redacted, named)


def _count_encrypted(plan: AppendPlan) -> int:
    """Count the events that encrypting an append is worth."""
    size = len(plan.view) + sum(map(len, plan.blobs.values())) + sum(len(one.event.payload) for one in plan.sealed)
    return len(plan.sealed) + size // _BYTES_PER_EVENT


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
        if len(text) > _SHORT_KEY and len(escape(text).encode()) > _MAX_KEY_BYTES:
            raise InvalidRequest(f"the {name} is longer than {_MAX_KEY_BYTES} bytes")
