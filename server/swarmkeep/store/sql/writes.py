"""Changes of the log: each function is one job, which one transaction holds as a whole."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Insert, Table, bindparam, delete, func, insert, literal, select

from swarmkeep.domain.errors import IdempotencyMismatch, SeqConflict, SessionNotFound
from swarmkeep.domain.state import State
from swarmkeep.store.archive import AuditAction
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.labels import labels_of
from swarmkeep.store.ports import IdempotencyRecord, IdempotencyRecordExists, Lease, SessionKey
from swarmkeep.store.sql import usage
from swarmkeep.store.sql.audit_log import record_action
from swarmkeep.store.sql.columns import as_bytes
from swarmkeep.store.sql.heads import AppendPlan, advance_head, build_insert_if_absent, insert_head, is_head
from swarmkeep.store.sql.prepared import PreparedStatement
from swarmkeep.store.sql.queries import find_idempotency_record
from swarmkeep.store.sql.tables import SESSION_TABLES, blobs, events, idempotency, session_labels, sessions

Row = dict[str, Any]


def append(connection: Connection, plan: AppendPlan) -> Lease | None:
    """Record what is planned, and grant, renew or end the lease."""
    if plan.idempotency is not None:
        _insert_idempotency_record(connection, plan.key, plan.idempotency, plan.state.seq)
    lease = insert_head(connection, plan) if plan.base.seq == 0 else advance_head(connection, plan)
    _insert_events(connection, plan.key, plan.sealed)
    usage.record_usage(connection, plan.key, (one.event for one in plan.sealed))
    if plan.blobs:
        rows = [{**_session_parameters(plan.key), "hash": name, "text": text} for name, text in plan.blobs.items()]
        _get_insert(blobs, connection).execute_many(connection, rows)
    if plan.state.metadata is not plan.base.metadata:
        replace_labels(connection, plan)
    return lease


def fork(connection: Connection, source: SessionKey, plan: AppendPlan, redacted: int) -> None:
    """Copy what `plan.base` is made of to a new session, and go on there."""
    if plan.idempotency is not None:
        _insert_idempotency_record(connection, plan.key, plan.idempotency, plan.state.seq)
    insert_head(connection, plan)
    # Whoever redacts the source meanwhile waits until this copy can be seen, or was quicker, which is checked below.
    lock = select(sessions.c.head_seq).where(sessions.c.tenant == source.tenant, sessions.c.id == source.id)
    connection.execute(lock.with_for_update(read=True))
    _copy_blobs(connection, source, plan.key, plan.base)
    base = plan.base
    copied = connection.execute(
        _build_event_copy(),
        {**_session_parameters(plan.key), "from_tenant": source.tenant, "from_id": source.id, "upto": base.seq},
    )
    events_of = (events.c.tenant == plan.key.tenant, events.c.session_id == plan.key.id)
    last = connection.scalar(select(events.c.hash).where(*events_of, events.c.seq == base.seq))
    # Checked after the copy, blobs first: if this event is the one meant, the source was whole all the while.
    if copied.rowcount != base.seq or last is None or last.hex() != base.hash:
        raise SeqConflict(source.id, base.seq)
    if connection.scalar(select(func.count()).where(*events_of, events.c.salt.is_(None))) != redacted:
        raise SeqConflict(source.id, base.seq)
    _insert_events(connection, plan.key, plan.sealed)
    replace_labels(connection, plan)


def delete_session(
    connection: Connection, key: SessionKey, expected: State | None, action: AuditAction, at: str
) -> None:
    """Delete every row of a session, and record that."""
    this = (sessions.c.tenant == key.tenant, sessions.c.id == key.id)
    where = this if expected is None else (*this, is_head(expected))
    last = connection.execute(
        delete(sessions).where(*where).returning(sessions.c.head_seq, sessions.c.head_hash)
    ).one_or_none()
    if last is None:
        if expected is None or connection.scalar(select(sessions.c.head_seq).where(*this)) is None:
            raise SessionNotFound(key.id)
        raise SeqConflict(key.id, expected.seq)
    for table in SESSION_TABLES:
        connection.execute(delete(table).where(table.c.tenant == key.tenant, table.c.session_id == key.id))
    deleted = {"session_id": key.id, "seq": last.head_seq, "hash": as_bytes(last.head_hash).hex()}
    record_action(connection, key.tenant, action, deleted, at)


def _session_parameters(key: SessionKey) -> Row:
    return {"tenant": key.tenant, "session_id": key.id}


def _get_insert(table: Table, connection: Connection) -> PreparedStatement:
    return _prepare_insert(table, connection.dialect.name)


@functools.cache
def _prepare_insert(table: Table, dialect: str) -> PreparedStatement:
    return PreparedStatement(build_insert_if_absent(table, dialect), [column.name for column in table.c])


def _insert_idempotency_record(connection: Connection, key: SessionKey, record: IdempotencyRecord, seq: int) -> None:
    row = {**_session_parameters(key), "key": record.key, "digest": record.digest, "run_id": record.run_id, "seq": seq}
    if _get_insert(idempotency, connection).execute(connection, row).rowcount:
        return
    earlier = find_idempotency_record(connection, key, record.key)
    if earlier is None:
        # Deleted with its session between the two statements: the append's own check would have failed as well.
        raise SeqConflict(key.id, seq)
    raise IdempotencyRecordExists(earlier) if earlier.digest == record.digest else IdempotencyMismatch(record.key)


def _insert_events(connection: Connection, key: SessionKey, sealed: Sequence[SealedEvent]) -> None:
    rows = [
        {
            "tenant": key.tenant,
            "session_id": key.id,
            "seq": one.event.seq,
            "run_id": one.event.run_id,
            "type": one.event.type,
            "version": one.event.version,
            "agent": one.event.agent,
            "recorded_at": one.event.at,
            "payload": one.event.payload,
            "salt": one.salt,
            "commitment": one.commitment,
            "hash": bytes.fromhex(one.event.hash),
        }
        for one in sealed
    ]
    if rows:
        _INSERT_EVENT.execute_many(connection, rows)


_INSERT_EVENT = PreparedStatement(insert(events), [column.name for column in events.c])
_INSERT_LABEL = insert(session_labels)


def replace_labels(connection: Connection, plan: AppendPlan) -> None:
    """Make a session's labels those of the plan's metadata."""
    labels = session_labels.c
    if plan.base.seq:
        mine = (labels.tenant == plan.key.tenant, labels.session_id == plan.key.id)
        connection.execute(delete(session_labels).where(*mine))
    rows = [{**_session_parameters(plan.key), "label": label} for label in labels_of(plan.state.metadata)]
    if rows:
        connection.execute(_INSERT_LABEL, rows)


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


def _copy_blobs(connection: Connection, source: SessionKey, target: SessionKey, base: State) -> None:
    records = [entry.completion.request for entry in base.messages if entry.completion is not None]
    hashes = {name for record in records if record is not None for name in (record.instructions, record.tools)}
    names = sorted(name for name in hashes if name is not None)
    for start in range(0, len(names), _NAMES_PER_STATEMENT):
        rows = select(
            literal(target.tenant, blobs.c.tenant.type),
            literal(target.id, blobs.c.session_id.type),
            blobs.c.hash,
            blobs.c.text,
        ).where(
            blobs.c.tenant == source.tenant,
            blobs.c.session_id == source.id,
            blobs.c.hash.in_(names[start : start + _NAMES_PER_STATEMENT]),
        )
        connection.execute(insert(blobs).from_select(["tenant", "session_id", "hash", "text"], rows))


# Below every database's limit of parameters in one statement.
_NAMES_PER_STATEMENT = 500
