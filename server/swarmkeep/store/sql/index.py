"""The session list: head rows as lists show them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, select, tuple_

from swarmkeep.domain.codec import decode, encode
from swarmkeep.domain.events import Usage
from swarmkeep.domain.state import SessionStatus
from swarmkeep.domain.views import ListedSession, SessionSummary
from swarmkeep.store.cursors import encode_cursor, parse_session_cursor
from swarmkeep.store.labels import label_of
from swarmkeep.store.ports.index import SessionPage
from swarmkeep.store.sql.columns import as_bytes, stored_bytes
from swarmkeep.store.sql.database import OnDatabase
from swarmkeep.store.sql.tables import session_labels, sessions


class SqlSessionIndex(OnDatabase):
    """SessionIndex on a Database."""

    async def list_sessions(
        self,
        tenant: str,
        *,
        agent: str | None = None,
        status: SessionStatus | None = None,
        metadata: Mapping[str, str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
        include_context: bool = False,
        max_bytes: int | None = None,
    ) -> SessionPage:
        query = functools.partial(
            list_sessions,
            tenant=tenant,
            agent=agent,
            status=status,
            metadata=metadata or {},
            limit=limit,
            before=None if cursor is None else parse_session_cursor(cursor),
            include_context=include_context,
            max_bytes=sys.maxsize if max_bytes is None else max_bytes,
        )
        return await self.database.read(query, seconds=self.read_seconds)


def list_sessions(
    connection: Connection,
    tenant: str,
    *,
    agent: str | None,
    status: SessionStatus | None,
    metadata: Mapping[str, str],
    limit: int,
    before: tuple[str, str] | None,
    include_context: bool,
    max_bytes: int,
) -> SessionPage:
    """One page of a tenant's sessions, newest first; `before` is the last one's time and id on the page before."""
    columns = sessions.c
    statement = select(columns.id, columns.created_at, stored_bytes(columns.view).label("size")).where(
        columns.tenant == tenant
    )
    if agent is not None:
        statement = statement.where(columns.agent == agent)
    if status is not None:
        statement = statement.where(columns.status == status)
    for name, text in metadata.items():
        statement = statement.where(_has_label(label_of(name, text)))
    if before is not None:
        statement = statement.where(tuple_(columns.created_at, columns.id) < tuple_(*before))
    statement = statement.order_by(columns.created_at.desc(), columns.id.desc()).limit(limit + 1)
    found = connection.execute(statement).all()
    shown: list[ListedSession] = []
    size = 0
    last = found[:limit][-1] if found else None
    for row, listed in _read_views(connection, tenant, found[:limit], include_context, max_bytes):
        shown.append(listed)
        size += len(encode(listed))
        if size >= max_bytes:
            last = row
            break
    has_more = last is not None and last is not found[-1]
    return SessionPage(shown, encode_cursor((last.created_at, last.id)) if last is not None and has_more else None)


def _read_views(
    connection: Connection, tenant: str, found: Sequence[Any], include_context: bool, max_bytes: int
) -> Iterator[tuple[Any, ListedSession]]:
    """The sessions that were found, of whose stored views no more than `max_bytes` or one are in memory at a time."""
    for part in _divide(found, max_bytes):
        chosen = select(sessions.c.view, *_LISTED_COLUMNS).where(
            sessions.c.tenant == tenant, sessions.c.id.in_([row.id for row in part])
        )
        rows = {row.id: row for row in connection.execute(chosen)}
        for row in part:
            # One that is not there any more was deleted at this very moment.
            if row.id in rows:
                yield row, _decode_view(rows[row.id], include_context)


def _divide(found: Sequence[Any], max_bytes: int) -> Iterator[list[Any]]:
    part: list[Any] = []
    size = 0
    for row in found:
        if part and size + row.size > max_bytes:
            yield part
            part, size = [], 0
        part.append(row)
        size += row.size
    if part:
        yield part


_LISTED_COLUMNS = (
    sessions.c.id,
    sessions.c.status,
    sessions.c.agent,
    sessions.c.head_seq,
    sessions.c.head_hash,
    sessions.c.created_at,
    sessions.c.updated_at,
)


def _decode_view(row: Any, include_context: bool) -> ListedSession:
    """A session as its head row shows it; as far as the other columns go, if somebody damaged the view."""
    try:
        if include_context:
            return decode(row.view, ListedSession)
        return msgspec.convert(decode(row.view, SessionSummary), ListedSession, from_attributes=True)
    except (ValueError, TypeError):
        return ListedSession(
            id=row.id,
            status=row.status,
            agent=row.agent,
            context_variables={} if include_context else msgspec.UNSET,
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
