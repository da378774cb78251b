"""Changes of the log: each function is one job, which one transaction holds as a whole.

Appends, forks, deletions and redactions, the idempotency records that come with them, and sessions that were recorded
elsewhere, several in one transaction.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import UNSET
from sqlalchemy import Connection, Insert, bindparam, delete, func, insert, null, select, update

from swarmkeep.events.errors import IdempotencyMismatch, QuotaExceeded, SeqConflict, SessionNotFound
from swarmkeep.events.facts import EventDraft, RecordedEvent, RunQueued, RunStarted, SessionCreated, SessionForked
from swarmkeep.events.fold import fold
from swarmkeep.events.state import Damage, State
from swarmkeep.store.audit import record_action, record_actions
from swarmkeep.store.automations import delete_owned
from swarmkeep.store.contents import (
    NamedContents,
    copy_named,
    delete_unnamed,
    discard_copies,
    insert_file,
    insert_mark,
)
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.heads import AppendPlan, advance_head, insert_head, plan_append
from swarmkeep.store.integrity import NO_KEYS, IntegrityKeys
from swarmkeep.store.people import encrypt_batch, encrypt_plan, hold_plan_key
from swarmkeep.store.person_keys import PersonKey
from swarmkeep.store.reading import upcast
from swarmkeep.store.records import (
    AuditAction,
    IdempotencyRecord,
    IdempotencyRecordExists,
    Lease,
    Restoration,
    SealedBatch,
    SessionHead,
    SessionKey,
    StorageQuota,
    labels_of,
)
from swarmkeep.store.runs import insert_runs, make_run_rows, name_rows, record_runs, rewrite_runs
from swarmkeep.store.search import set_mark, set_marks, void_words
from swarmkeep.store.statements import Database, PreparedStatement, prepare_insert_if_absent
from swarmkeep.store.tables import (
    IS_DAMAGED,
    IS_SOUND,
    SEARCH_TABLES,
    SESSION_TABLES,
    as_bytes,
    blobs,
    creations,
    escape,
    events,
    feed,
    files,
    idempotency,
    of_bound_session,
    of_session,
    session_columns,
    session_labels,
    sessions,
    webhook_deliveries,
)
from swarmkeep.store.threads import free_aside, free_state_aside
from swarmkeep.store.usage import (
    Growth,
    Row,
    add_sums,
    change_days,
    count_change,
    count_changes,
    count_tokens,
    insert_usage,
    make_usage_row,
    measure_events,
    measure_session,
    read_session_sums,
    record_usage,
    rewrite_usage,
    sum_rows,
)

SLICE_EVENTS = 200


def append(connection: Connection, plan: AppendPlan) -> Lease | None:
    """Record what is planned, and grant, renew or end the lease. Raises QuotaExceeded if the plan has a quota."""
    lease, text_bytes, calls = insert_append(connection, plan)
    # Always in this order: a writer of two rows that others change, too, would wait for them for ever otherwise.
    count_change(connection, plan.key, measure_growth(plan, calls, text_bytes), plan.quota)
    change_days(connection, plan.key, {}, sum_rows(calls))
    return lease


def measure_growth(plan: AppendPlan, calls: Sequence[Row], text_bytes: int = 0) -> Growth:
    """By how much the tenant's totals change, if these are the rows of usage, and the bytes of new texts."""
    day, tokens = count_tokens(calls)
    size = measure_events(plan.sealed) + text_bytes
    return Growth(sessions=int(plan.base.seq == 0), bytes=size, day=day, tokens=tokens)


def insert_append(connection: Connection, plan: AppendPlan) -> tuple[Lease | None, int, list[Row]]:
    """`append`, but for the tenant's totals and sums; gives the bytes of new texts and the rows of usage, too."""
    is_new = plan.base.seq == 0
    _insert_record(connection, plan, is_new)
    lease = insert_head(connection, plan) if is_new else advance_head(connection, plan)
    calls, text_bytes = _insert_batches(connection, plan.key, cut(plan.sealed, plan.blobs))
    record_runs(connection, plan.key, plan.base, plan.state)
    # One that is made is to be found, though its first run has just begun.
    if is_new or plan.changes_index:
        set_mark(connection, plan.key, plan.state.seq)
    if plan.state.metadata is not plan.base.metadata:
        replace_labels(connection, plan)
    return lease, text_bytes, calls


def _insert_record(connection: Connection, plan: AppendPlan, is_new: bool) -> None:
    """Write the plan's idempotency record, if it has one.

    A tenant makes one session with a key. One that a run begins with is used for that session alone.
    """
    record = plan.idempotency
    if record is not None:
        if plan.base.forgot_keys:
            refuse_forgotten_key(connection, plan.key, record.key)
        insert = insert_creation_record if is_new and record.run_id is None else insert_idempotency_record
        insert(connection, plan.key, record, plan.state.seq)


def fork(
    connection: Connection, source: SessionKey, plan: AppendPlan, redacted: int, named: NamedContents
) -> Lease | None:
    """Copy what `plan.base` is made of to a new session, and go on there, with a lease if the plan claims it."""
    _insert_record(connection, plan, is_new=True)
    lease = insert_head(connection, plan)
    # A redaction of the source meanwhile waits until this copy can be seen, or was quicker, which is checked below.
    lock = select(sessions.c.head_seq).where(*of_session(sessions, source))
    connection.execute(lock.with_for_update(read=True))
    copy_named(connection, source, plan.key, named)
    base = plan.base
    copied = connection.execute(
        _build_event_copy(),
        {**session_columns(plan.key), "from_tenant": source.tenant, "from_id": source.id, "upto": base.seq},
    )
    copy = of_session(events, plan.key)
    last = connection.scalar(select(events.c.hash).where(*copy, events.c.seq == base.seq))
    # Checked after the copy, blobs first: if this event is the one meant, the source was whole all the while.
    if copied.rowcount != base.seq or last is None or last.hex() != base.hash:
        raise SeqConflict(source.id, base.seq)
    if connection.scalar(select(func.count()).where(*copy, events.c.salt.is_(None))) != redacted:
        raise SeqConflict(source.id, base.seq)
    _insert_batches(connection, plan.key, cut(plan.sealed, plan.blobs))
    record_runs(connection, plan.key, base, plan.state)
    set_mark(connection, plan.key, plan.state.seq)
    replace_labels(connection, plan)
    _count_new_session(connection, plan.key, plan.quota)
    return lease


def _count_new_session(connection: Connection, key: SessionKey, quota: StorageQuota | None) -> None:
    count_change(connection, key, Growth(sessions=1, bytes=measure_session(connection, key)), quota)


def set_aside(connection: Connection, key: SessionKey, damage: Damage | None, at: str) -> bool:
    """Remember that a session was found damaged, or, with None, that it verifies again; and record that. False if it
    was remembered before."""
    was = IS_DAMAGED if damage is None else IS_SOUND
    change = update(sessions).where(*of_session(sessions, key), was)
    if not connection.execute(change.values(damaged_seq=None if damage is None else damage.seq)).rowcount:
        return False
    found = {"session_id": key.id} if damage is None else {"session_id": key.id, "seq": damage.seq, "code": damage.code}
    action = AuditAction(type="session.mended" if damage is None else "session.damaged")
    record_action(connection, key.tenant, action, found, at)
    return True


def delete_session(
    connection: Connection, key: SessionKey, expected: State | None, action: AuditAction, at: str, *, keeps_files: bool
) -> None:
    """Delete every row of a session, and what tells it something; and record that.

    With `keeps_files` its files are left to be deleted in slices.
    """
    row = session_columns(key)
    if expected is None:
        last = _DELETE_HEAD.fetch_all(connection, row)
    else:
        at_end = {"base_seq": expected.seq, "base_hash": bytes.fromhex(expected.hash)}
        last = _DELETE_EXPECTED_HEAD.fetch_all(connection, row | at_end)
    if not last:
        this = of_session(sessions, key)
        if expected is None or connection.scalar(select(sessions.c.head_seq).where(*this)) is None:
            raise SessionNotFound(key.id)
        raise SeqConflict(key.id, expected.seq)
    [[seq, digest]] = last
    freed, used = measure_session(connection, key), read_session_sums(connection, key)
    if keeps_files:
        insert_mark(connection, key)
    for table, statement in _DELETE_ROWS.items():
        if table is not files or not keeps_files:
            statement.execute(connection, row)
    delete_owned(connection, key.tenant, session_id=key.id)
    discard_copies(connection, key)
    count_change(connection, key, Growth(sessions=-1, bytes=-freed))
    change_days(connection, key, used, {})
    deleted = {"session_id": key.id, "seq": seq, "hash": as_bytes(digest).hex()}
    record_action(connection, key.tenant, action, deleted, at)


_HEAD = delete(sessions).where(*of_bound_session(sessions)).returning(sessions.c.head_seq, sessions.c.head_hash)
_DELETE_HEAD = PreparedStatement(_HEAD)
_DELETE_EXPECTED_HEAD = PreparedStatement(
    _HEAD.where(sessions.c.head_seq == bindparam("base_seq"), sessions.c.head_hash == bindparam("base_hash"))
)
_DELETE_ROWS = {
    table: PreparedStatement(delete(table).where(*of_bound_session(table)))
    for table in (*SESSION_TABLES, *SEARCH_TABLES, feed, webhook_deliveries)
}


def cut(sealed: Sequence[SealedEvent], texts: Mapping[str, str | bytes] | None = None) -> list[SealedBatch]:
    """The events a few at a time, with the texts before them: between two inserts others have the event loop."""
    rest = [SealedBatch(sealed[start : start + SLICE_EVENTS]) for start in range(0, len(sealed), SLICE_EVENTS)]
    if not texts:
        return rest
    files = {name: text for name, text in texts.items() if isinstance(text, bytes)}
    return [SealedBatch((), {name: text for name, text in texts.items() if isinstance(text, str)}, files), *rest]


def _insert_batches(connection: Connection, key: SessionKey, batches: Iterable[SealedBatch]) -> tuple[list[Row], int]:
    """Events, their usage, and what they name; gives the rows of usage, and the bytes of new texts and files."""
    calls: list[Row] = []
    text_bytes = 0
    statement = prepare_insert_if_absent(blobs, connection.dialect.name)
    for batch in batches:
        insert_event_rows(connection, make_event_rows(key, batch.events))
        calls += record_usage(connection, key, [one.event for one in batch.events])
        for name, content in batch.files.items():
            text_bytes += insert_file(connection, key, name, content)
        for name, text in batch.blobs.items():
            row = {**session_columns(key), "hash": name, "text": text}
            if statement.execute(connection, row):
                text_bytes += len(escape(text).encode())
    return calls, text_bytes


def insert_event_rows(connection: Connection, rows: Sequence[Row]) -> None:
    if rows:
        _INSERT_EVENT.insert_many(connection, rows)


def make_event_rows(key: SessionKey, sealed: Sequence[SealedEvent]) -> list[Row]:
    columns = session_columns(key)
    return [
        {
            **columns,
            "seq": one.event.seq,
            "run_id": one.event.run_id,
            "type": one.event.type,
            "version": one.event.version,
            "agent": one.event.agent,
            "recorded_at": one.event.at,
            "payload": one.event.payload if one.encrypted is None else one.encrypted,
            "salt": one.salt if one.encrypted is None else b"",
            "commitment": one.commitment,
            "hash": bytes.fromhex(one.event.hash),
        }
        for one in sealed
    ]


_INSERT_EVENT = PreparedStatement.of_rows(insert(events))
_INSERT_LABEL = PreparedStatement.of_rows(insert(session_labels))


def replace_labels(connection: Connection, plan: AppendPlan) -> None:
    """Make a session's labels those of the plan's metadata."""
    if plan.base.seq:
        connection.execute(delete(session_labels).where(*of_session(session_labels, plan.key)))
    insert_labels(connection, make_label_rows(plan))


def make_label_rows(plan: AppendPlan) -> list[Row]:
    made = {**session_columns(plan.key), "created_at": plan.state.created_at}
    return [{**made, "label": label} for label in labels_of(plan.state.metadata)]


def insert_labels(connection: Connection, rows: Sequence[Row]) -> None:
    if rows:
        _INSERT_LABEL.insert_many(connection, rows)


@functools.cache
def _build_event_copy() -> Insert:
    names = [column.name for column in events.c if column.name not in ("tenant", "session_id")]
    source = select(
        bindparam("tenant", type_=events.c.tenant.type),
        bindparam("session_id", type_=events.c.session_id.type),
        *(events.c[name] for name in names),
    ).where(
        events.c.tenant == bindparam("from_tenant"),
        events.c.session_id == bindparam("from_id"),
        events.c.seq <= bindparam("upto"),
    )
    return insert(events).from_select(["tenant", "session_id", *names], source)


# Redaction: payloads removed in one transaction, with every other copy of them in the session.


def replace_payloads(log: Sequence[SealedEvent], stand_ins: Mapping[int, str]) -> list[RecordedEvent]:
    """The events of a log with these texts in the place of payloads."""
    return [
        msgspec.structs.replace(event, payload=text, fact=upcast(event.type, event.version, text))
        if (text := stand_ins.get(event.seq)) is not None
        else event
        for event in (one.event for one in log)
    ]


def find_idempotency_keys(log: Sequence[SealedEvent], seqs: Collection[int]) -> list[str]:
    """The idempotency keys that stand in the payloads of these events."""
    facts = [one.event.fact for one in log if one.event.seq in seqs]
    keys = [fact.idempotency_key for fact in facts if isinstance(fact, RunStarted | RunQueued)]
    return [key for key in keys if key is not None]


def redact(
    connection: Connection,
    plan: AppendPlan,
    redacted: Sequence[RecordedEvent],
    used_keys: Sequence[str],
    named: NamedContents,
) -> None:
    """Give events their new payloads, and remove every other copy in this session, and what is not `named` any more;
    and record that."""
    before = measure_session(connection, plan.key)
    insert_append(connection, plan)
    used = read_session_sums(connection, plan.key)
    replace_labels(connection, plan)
    for event in redacted:
        row = {**session_columns(plan.key), "at_seq": event.seq, "stand_in": event.payload}
        if _REPLACE_PAYLOAD.execute(connection, row) != 1:
            raise SeqConflict(plan.key.id, plan.base.seq)
    rewrite_usage(connection, plan.key, redacted)
    rewrite_runs(connection, plan.key, plan.state)
    void_words(connection, plan.key)
    discard_copies(connection, plan.key)
    delete_unnamed(connection, blobs, plan.key, named.texts)
    delete_unnamed(connection, files, plan.key, named.files)
    for used_key in {*used_keys}:
        forget_key(connection, plan.key, used_key)
    connection.execute(delete(creations).where(*of_session(creations, plan.key), creations.c.key.in_(used_keys)))
    # Digests of requests, of which any may have held what was removed: a short text can be guessed from one. A key
    # without its digest matches no request any more.
    records = of_session(idempotency, plan.key)
    own = "" if plan.idempotency is None else plan.idempotency.key
    connection.execute(update(idempotency).where(*records, idempotency.c.key != own).values(digest=""))
    count_change(connection, plan.key, Growth(bytes=measure_session(connection, plan.key) - before))
    change_days(connection, plan.key, used, read_session_sums(connection, plan.key))


# A payload cannot be guessed from its commitment without the salt.
_REPLACE_PAYLOAD = PreparedStatement(
    update(events)
    .where(*of_bound_session(events), events.c.seq == bindparam("at_seq"))
    .values(payload=bindparam("stand_in"), salt=null())
)


# Idempotency records: written with the events that a request led to, and found by its key.


def find_idempotency_record(connection: Connection, key: SessionKey, name: str) -> IdempotencyRecord | None:
    """The record of what an idempotency key was used for on a session."""
    columns = idempotency.c
    statement = select(columns.key, columns.digest, columns.run_id, columns.seq).where(
        *of_session(idempotency, key), columns.key == name
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else IdempotencyRecord(key=row.key, digest=row.digest, run_id=row.run_id, seq=row.seq)


def insert_creation_record(connection: Connection, key: SessionKey, record: IdempotencyRecord, seq: int) -> None:
    """Write the record of a session's making, unless its key has made a session of this tenant before.

    Raises IdempotencyRecordExists, and IdempotencyMismatch if that was another session or another request.
    """
    row = {**session_columns(key), "key": record.key}
    insert = prepare_insert_if_absent(creations, connection.dialect.name)
    where = (creations.c.tenant == key.tenant, creations.c.key == record.key)
    while not insert.execute(connection, row):
        # None if it was deleted with its session between the two statements.
        if (made := connection.scalar(select(creations.c.session_id).where(*where))) is not None:
            if made != key.id:
                raise IdempotencyMismatch(record.key)
            break
    insert_idempotency_record(connection, key, record, seq)


def insert_idempotency_record(connection: Connection, key: SessionKey, record: IdempotencyRecord, seq: int) -> None:
    """Write a record, unless its key was used before.

    Raises IdempotencyRecordExists, and IdempotencyMismatch if that was for another request.
    """
    row = {**session_columns(key), "key": record.key, "digest": record.digest, "run_id": record.run_id, "seq": seq}
    if prepare_insert_if_absent(idempotency, connection.dialect.name).execute(connection, row):
        return
    earlier = find_idempotency_record(connection, key, record.key)
    if earlier is None:
        # Deleted with its session between the two statements: the append's own check would have failed as well.
        raise SeqConflict(key.id, seq)
    raise IdempotencyRecordExists(earlier) if earlier.digest == record.digest else IdempotencyMismatch(record.key)


def forget_key(connection: Connection, key: SessionKey, name: str) -> None:
    """Leave of a key that was redacted no more than what it is told by: it is carried out for nothing else."""
    used = update(idempotency).where(*of_session(idempotency, key), idempotency.c.key == name)
    connection.execute(used.values(key=_derive_forgotten(key, name)))


def refuse_forgotten_key(connection: Connection, key: SessionKey, name: str) -> None:
    """Raise IdempotencyMismatch for a key that was redacted: it is unknown by now what it came with."""
    if find_idempotency_record(connection, key, _derive_forgotten(key, name)) is not None:
        raise IdempotencyMismatch(name)


def _derive_forgotten(key: SessionKey, name: str) -> str:
    # Of this session alone: the same key looks otherwise elsewhere.
    parts = "\n".join((key.tenant, key.id, name))
    return f"forgotten {hashlib.sha256(parts.encode(errors='surrogatepass')).hexdigest()}"


# Sessions that were recorded elsewhere, worked out before any transaction begins.

Seal = Callable[[SessionKey, State, Sequence[EventDraft]], list[SealedEvent]]

# Of one transaction: a commit for each small session would take most of the time, and on SQLite all other writes wait
# for a transaction.
_MAX_SESSIONS = 64
_MAX_BYTES = 256 * 1024


class RestorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is to be recorded: `head` is where it ends.

    `slices` are all of its events, a few at a time: while the database takes one, others have the event loop. `bytes`
    are those of its payloads and texts, `calls` the rows of its usage, `runs` those of its runs.
    """

    head: AppendPlan
    slices: list[SealedBatch]
    bytes: int
    calls: list[Row]
    runs: list[Row]

    @property
    def key(self) -> SessionKey:
        return self.head.key

    @property
    def parent(self) -> str | None:
        """The id of the session whose agent asked this one, by its first event: a state forgets it with an import."""
        first = next((batch.events[0].event.fact for batch in self.slices if batch.events), None)
        if not isinstance(first, SessionCreated) or first.parent is UNSET:
            return None
        return first.parent.session_id

    @property
    def end(self) -> SessionHead:
        return SessionHead(self.head.state.seq, self.head.state.hash)


def plan_some(
    sessions: Iterator[Restoration], seal: Seal, keys: IntegrityKeys = NO_KEYS
) -> tuple[list[RestorePlan], Exception | None]:
    """The next sessions, as many as one transaction may record, none when all are planned; and what ended that."""
    plans: list[RestorePlan] = []
    size = 0
    try:
        while len(plans) < _MAX_SESSIONS and size < _MAX_BYTES and (session := next(sessions, None)) is not None:
            plans.append(_plan_session(session, seal, keys))
            size += plans[-1].bytes + sum(len(content) for one in plans[-1].slices for content in one.files.values())
    except Exception as error:
        # For those before it is too early to be lost.
        return plans, error
    return plans, None


def _plan_session(session: Restoration, seal: Seal, keys: IntegrityKeys) -> RestorePlan:
    """Read a session's batches and fold them, then what `finish` makes of the state."""
    key, state = session.key, State()
    slices: list[SealedBatch] = []
    for batch in session.batches():
        state = fold((one.event for one in batch.events), state)
        slices.append(batch)
    free_state_aside(state)
    added = seal(key, state, session.finish(state))
    slices += cut(added)
    free_aside(slices, events_in_each=SLICE_EVENTS)
    head = msgspec.structs.replace(plan_append(key, state, added, keys=keys), base=State())
    calls = _list_calls(key, slices)
    runs = name_rows(key, make_run_rows(head.state))
    free_aside(calls)
    free_aside(runs)
    return RestorePlan(head=head, slices=slices, bytes=_measure(slices), calls=calls, runs=runs)


def encrypt_restored(plan: RestorePlan, key: PersonKey) -> RestorePlan:
    """The same session, with all that it says encrypted."""
    slices = [encrypt_batch(batch, key) for batch in plan.slices]
    return msgspec.structs.replace(plan, head=encrypt_plan(plan.head, key), slices=slices, bytes=_measure(slices))


def _list_calls(key: SessionKey, slices: Iterable[SealedBatch]) -> list[Row]:
    """The rows of usage. What came before the last fork was used elsewhere."""
    calls: list[Row] = []
    for batch in slices:
        for event in (one.event for one in batch.events):
            if isinstance(event.fact, SessionForked):
                calls.clear()
            elif (row := make_usage_row(event)) is not None:
                calls.append({**session_columns(key), **row})
    return calls


def _measure(slices: Sequence[SealedBatch]) -> int:
    texts = {name: text for batch in slices for name, text in batch.blobs.items()}
    size = sum(measure_events(batch.events) for batch in slices)
    return size + sum(len(escape(text).encode()) for text in texts.values())


async def restore(
    database: Database, plans: Sequence[RestorePlan], action: AuditAction, at: str, quota: StorageQuota | None
) -> list[SessionHead | None]:
    """Record planned sessions at once; gives where each ends, None for one that is there already.

    Raises QuotaExceeded for the first that is too much: those before it are recorded then.
    """
    try:
        new = await database.write(lambda connection: _restore_together(connection, plans, action, at, quota))
    except QuotaExceeded:
        if len(plans) == 1:
            raise
        return [end for plan in plans for end in await restore(database, [plan], action, at, quota)]
    return [plan.end if plan.key in new else None for plan in plans]


def _restore_together(
    connection: Connection, plans: Sequence[RestorePlan], action: AuditAction, at: str, quota: StorageQuota | None
) -> set[SessionKey]:
    """Record those of these sessions that are not there yet; gives which ones.

    Tables beside the sessions' own come last: until then no writer to the tenant's sums or to the audit log has to
    wait. All rows that others change, too, are taken in one order, or two would wait for one another.
    """
    began = {plan.key for plan in sorted(plans, key=lambda plan: plan.key.id) if _begin(connection, plan)}
    new = [plan for plan in plans if plan.key in began]
    if not new:
        return began
    for plan in new:
        hold_plan_key(connection, plan.head)
    _insert_restored_events(connection, new)
    sizes = [plan.bytes + _insert_restored_contents(connection, plan) for plan in new]
    set_marks(connection, [(plan.key, plan.head.state.seq) for plan in new])
    insert_labels(connection, [row for plan in new for row in make_label_rows(plan.head)])
    growths = [(plan.key, Growth(sessions=1, bytes=size)) for plan, size in zip(new, sizes, strict=True)]
    count_changes(connection, growths, quota)
    add_sums(connection, [(plan.key, sum_rows(plan.calls)) for plan in new])
    told = [{"session_id": plan.key.id, "seq": plan.end.seq, "hash": plan.end.hash} for plan in new]
    record_actions(connection, new[0].key.tenant, action, told, at)
    return began


def _begin(connection: Connection, plan: RestorePlan) -> bool:
    try:
        insert_head(connection, plan.head)
    except SeqConflict:
        return False
    return True


def _insert_restored_events(connection: Connection, plans: Sequence[RestorePlan]) -> None:
    """The events of all of them, their usage and runs, a few at a time: between two inserts others have the event
    loop."""
    events: list[Row] = []
    for plan in plans:
        for batch in plan.slices:
            events += make_event_rows(plan.key, batch.events)
            if len(events) >= SLICE_EVENTS:
                insert_event_rows(connection, events)
                events = []
    insert_event_rows(connection, events)
    calls = [row for plan in plans for row in plan.calls]
    for start in range(0, len(calls), SLICE_EVENTS):
        insert_usage(connection, calls[start : start + SLICE_EVENTS])
    runs = [row for plan in plans for row in plan.runs]
    for start in range(0, len(runs), SLICE_EVENTS):
        insert_runs(connection, runs[start : start + SLICE_EVENTS])


def _insert_restored_contents(connection: Connection, plan: RestorePlan) -> int:
    """Insert the contents that its events name by a hash; gives the bytes of the files."""
    statement = prepare_insert_if_absent(blobs, connection.dialect.name)
    size = 0
    for batch in plan.slices:
        if batch.blobs:
            rows = [{**session_columns(plan.key), "hash": name, "text": text} for name, text in batch.blobs.items()]
            statement.insert_many(connection, rows)
        size += sum(insert_file(connection, plan.key, name, content) for name, content in batch.files.items())
    return size
