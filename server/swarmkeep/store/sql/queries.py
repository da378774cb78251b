"""What reads the log: each function is one query of a connection."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, bindparam, or_, select, tuple_

from swarmkeep.domain.codec import decode
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import Usage
from swarmkeep.domain.state import SessionStatus
from swarmkeep.domain.views import SessionView
from swarmkeep.store.cursors import encode_cursor
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.labels import label_of
from swarmkeep.store.ports import IdempotencyRecord, SessionKey, SessionPage
from swarmkeep.store.sql.columns import as_bytes, database_now
from swarmkeep.store.sql.prepared import PreparedStatement
from swarmkeep.store.sql.rows import EVENT_COLUMNS, SEALED_COLUMNS, decode_event, decode_sealed
from swarmkeep.store.sql.tables import IS_DUE, IS_RUNNING, blobs, events, idempotency, session_labels, sessions

MAX_BIGINT = 2**63 - 1


def read_events(
    connection: Connection,
    key: SessionKey,
    *,
    after: int = 0,
    upto: int | None = None,
    types: Sequence[str] = (),
    limit: int | None = None,
) -> list[RecordedEvent]:
    """Events with after < seq <= upto, oldest first."""
    bounds = {"after": after, "upto": upto, "limit": limit}
    row = {**_session_parameters(key), **{name: value and min(value, MAX_BIGINT) for name, value in bounds.items()}}
    if types:
        statement = _select_events(upto is not None, limit is not None).where(events.c.type.in_(list(types)))
        used = {name: value for name, value in row.items() if value is not None}
        rows = connection.execute(statement, used).all()
    else:
        rows = _prepare_events_query(upto is not None, limit is not None).execute(connection, row).all()
    # A seq of another type is damage, which `verify` names.
    return [decode_event(key.id, found) for found in rows if found[0].__class__ is int]


@functools.cache
def _prepare_events_query(upto: bool, limit: bool) -> PreparedStatement:
    return PreparedStatement(_select_events(upto, limit))


def _select_events(upto: bool, limit: bool, wanted: tuple[Any, ...] = EVENT_COLUMNS) -> Select[Any]:
    columns = events.c
    statement = select(*wanted).where(
        columns.tenant == bindparam("tenant"),
        columns.session_id == bindparam("session_id"),
        columns.seq > bindparam("after"),
    )
    if upto:
        statement = statement.where(columns.seq <= bindparam("upto"))
    statement = statement.order_by(columns.seq)
    return statement.limit(bindparam("limit", type_=BigInteger())) if limit else statement


_SEALED_QUERY = PreparedStatement(_select_events(True, True, SEALED_COLUMNS))


def _session_parameters(key: SessionKey) -> dict[str, Any]:
    return {"tenant": key.tenant, "session_id": key.id}


def read_sealed(connection: Connection, key: SessionKey, *, after: int, upto: int, limit: int) -> list[SealedEvent]:
    """Events as they are stored, with what their hashes are made of."""
    row = {**_session_parameters(key), "after": after, "upto": upto, "limit": limit}
    return [decode_sealed(key.id, found) for found in _SEALED_QUERY.execute(connection, row).all()]


def read_head_seq(connection: Connection, key: SessionKey) -> int | None:
    """The last seq of a session; None if there is no such session."""
    this = (sessions.c.tenant == key.tenant, sessions.c.id == key.id)
    return connection.scalar(select(sessions.c.head_seq).where(*this))


def list_sessions(
    connection: Connection,
    tenant: str,
    *,
    agent: str | None,
    status: SessionStatus | None,
    metadata: Mapping[str, str],
    limit: int,
    before: tuple[str, str] | None,
) -> SessionPage:
    """One page of a tenant's sessions, newest first; `before` is the last one's time and id on the page before."""
    columns = sessions.c
    statement = select(columns.view, *_LISTED_COLUMNS).where(columns.tenant == tenant)
    if agent is not None:
        statement = statement.where(columns.agent == agent)
    if status is not None:
        statement = statement.where(columns.status == status)
    for name, text in metadata.items():
        statement = statement.where(_has_label(label_of(name, text)))
    if before is not None:
        statement = statement.where(tuple_(columns.created_at, columns.id) < tuple_(*before))
    statement = statement.order_by(columns.created_at.desc(), columns.id.desc()).limit(limit + 1)
    rows = connection.execute(statement).all()
    shown = rows[:limit]
    following = encode_cursor((shown[-1].created_at, shown[-1].id)) if len(rows) > limit and shown else None
    return SessionPage([_decode_view(row) for row in shown], following)


_LISTED_COLUMNS = (
    sessions.c.id,
    sessions.c.status,
    sessions.c.agent,
    sessions.c.head_seq,
    sessions.c.head_hash,
    sessions.c.created_at,
    sessions.c.updated_at,
)


def _decode_view(row: Any) -> SessionView:
    """A session as its head row shows it; as far as the other columns go, if somebody damaged the view."""
    try:
        return decode(row.view, SessionView)
    except (ValueError, TypeError):
        return SessionView(
            id=row.id,
            status=row.status,
            agent=row.agent,
            context_variables={},
            metadata={},
            seq=row.head_seq,
            hash=as_bytes(row.head_hash).hex(),
            active_run_id=None,
            message_count=0,
            usage=Usage(),
            forked_from=None,
            created_at=row.created_at,
            updated_at=row.updated_at,
        )


def _has_label(label: bytes) -> Any:
    labels = session_labels.c
    mine = (labels.tenant == sessions.c.tenant, labels.session_id == sessions.c.id)
    return select(labels.label).where(*mine, labels.label == label).exists()


def find_blobs(connection: Connection, key: SessionKey, hashes: Sequence[str]) -> dict[str, str]:
    """Texts by content hash; those that are not there are left out."""
    mine = (blobs.c.tenant == key.tenant, blobs.c.session_id == key.id)
    found: dict[str, str] = {}
    for start in range(0, len(hashes), 500):
        wanted = blobs.c.hash.in_(list(hashes[start : start + 500]))
        rows = connection.execute(select(blobs.c.hash, blobs.c.text).where(*mine, wanted))
        found |= {row.hash: row.text for row in rows}
    return found


def find_idempotency_record(connection: Connection, key: SessionKey, name: str) -> IdempotencyRecord | None:
    """What an idempotency key was used for on a session."""
    columns = idempotency.c
    statement = select(columns.key, columns.digest, columns.run_id, columns.seq).where(
        columns.tenant == key.tenant, columns.session_id == key.id, columns.key == name
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else IdempotencyRecord(key=row.key, digest=row.digest, run_id=row.run_id, seq=row.seq)


def find_abandoned(connection: Connection, limit: int) -> list[SessionKey]:
    """Running sessions that nobody holds, longest abandoned first, and those that have become due."""
    columns = sessions.c
    free = or_(columns.lease_owner.is_(None), columns.lease_expires_at <= database_now())
    statement = (
        select(columns.tenant, columns.id)
        .where(or_(IS_RUNNING & free, IS_DUE & (columns.due_at <= database_now())))
        .order_by(columns.lease_expires_at.nulls_first(), columns.tenant, columns.id)
        .limit(limit)
    )
    return [SessionKey(row.tenant, row.id) for row in connection.execute(statement)]
