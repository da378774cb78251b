"""Reads for auditors: every row of a session but its events, exactly as stored. `verify` trusts none of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Column, Connection, Table, Text, func, select, tuple_, type_coerce

from swarmkeep.domain.events import SessionForked
from swarmkeep.domain.request import digest
from swarmkeep.store.ports.audit import SessionRows
from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.sql.columns import Verbatim, as_bytes, as_text, unescape
from swarmkeep.store.sql.database import OnDatabase
from swarmkeep.store.sql.prepared import MAX_PARAMETERS, Row
from swarmkeep.store.sql.tables import (
    IS_FIRST,
    SESSION_TABLES,
    blobs,
    events,
    idempotency,
    of_session,
    session_labels,
    sessions,
    usage,
)
from swarmkeep.store.sql.usage import read_usage_rows

_PAGE_ROWS = 50


class SqlAuditReader(OnDatabase):
    """AuditReader on a Database."""

    async def read_session_rows(self, key: SessionKey) -> SessionRows:
        return await self.database.read(lambda connection: read_session_rows(connection, key))

    async def read_usage_rows(self, key: SessionKey, *, after: int, upto: int) -> dict[int, dict[str, Any]]:
        return await self.database.read(lambda connection: read_usage_rows(connection, key, after, upto))

    async def list_session_keys(
        self, tenant: str | None = None, *, after: SessionKey | None = None, limit: int = 500
    ) -> list[SessionKey]:
        return await self.database.read(lambda connection: list_session_keys(connection, tenant, after, limit))

    async def find_copies(self, key: SessionKey, events: Mapping[int, bytes]) -> dict[SessionKey, list[int]]:
        return await self.database.read(lambda connection: find_copies(connection, key, events))


def read_session_rows(connection: Connection, key: SessionKey) -> SessionRows:
    # First, so that an append meanwhile does not look like an event beyond the head.
    last = connection.scalar(select(func.max(events.c.seq)).where(*of_session(events, key)))
    forked = connection.scalar(
        select(func.max(events.c.seq)).where(*of_session(events, key), events.c.type == SessionForked.type)
    )
    return SessionRows(
        head=read_head_row(connection, key),
        last_seq=last if isinstance(last, int) else 0 if last is None else -1,
        forked_at=forked if isinstance(forked, int) else 0,
        labels=frozenset(
            as_bytes(row.label)
            for row in connection.execute(select(session_labels.c.label).where(*of_session(session_labels, key)))
        ),
        blobs=dict(_check_blobs(connection, key)),
        idempotency_rows=tuple(_read_rows(connection, idempotency, key)),
        usage_row_count=connection.scalar(select(func.count()).where(*of_session(usage, key))) or 0,
    )


def read_head_row(connection: Connection, key: SessionKey) -> Row | None:
    """A session's head row, column by column; None if there is none."""
    return next(_read_rows(connection, sessions, key), None)


def _read_rows(connection: Connection, table: Table, key: SessionKey) -> Iterator[Row]:
    for row in connection.execute(select(*map(_select_raw, table.c)).where(*of_session(table, key))):
        yield {column.name: _decode_value(column, value) for column, value in zip(table.c, row, strict=True)}


def _select_raw(column: Column[Any]) -> Any:
    # Read without a conversion, which would fail on what is damaged.
    return type_coerce(column, Text) if isinstance(column.type, Verbatim) else column


def _decode_value(column: Column[Any], value: Any) -> Any:
    return unescape(as_text(value)) if isinstance(column.type, Verbatim) and value is not None else value


def _check_blobs(connection: Connection, key: SessionKey) -> Iterator[tuple[str, bool]]:
    # Page by page: one driver fetches all that a statement finds before it gives the first row.
    after: str | None = None
    while True:
        page = (
            select(blobs.c.hash, _select_raw(blobs.c.text))
            .where(*of_session(blobs, key))
            .order_by(blobs.c.hash)
            .limit(_PAGE_ROWS)
        )
        rows = connection.execute(page if after is None else page.where(blobs.c.hash > after)).all()
        for name, text in rows:
            yield name, digest(unescape(as_text(text))) == name
        if len(rows) < _PAGE_ROWS:
            return
        after = rows[-1][0]


def list_session_keys(
    connection: Connection, tenant: str | None, after: SessionKey | None, limit: int
) -> list[SessionKey]:
    """Every session that has a row of any kind, by tenant and id: also those whose head row is gone."""
    found: set[SessionKey] = set()
    for table in (sessions, *SESSION_TABLES):
        name = table.c.id if table is sessions else table.c.session_id
        page = select(table.c.tenant, name).distinct().order_by(table.c.tenant, name).limit(limit)
        if tenant is not None:
            page = page.where(table.c.tenant == tenant)
        if after is not None:
            page = page.where(tuple_(table.c.tenant, name) > tuple_(after.tenant, after.id))
        found.update(SessionKey(*row) for row in connection.execute(page))
    return sorted(found, key=lambda key: (key.tenant, key.id))[:limit]


def find_copies(connection: Connection, key: SessionKey, copied: Mapping[int, bytes]) -> dict[SessionKey, list[int]]:
    """Which other sessions that begin with the same event hold these events (hashes by seq) with their payload."""
    first = connection.scalar(select(events.c.hash).where(*of_session(events, key), events.c.seq == 1))
    family = select(events.c.session_id).where(events.c.tenant == key.tenant, IS_FIRST, events.c.hash == first)
    found: dict[SessionKey, list[int]] = {}
    for name in sorted(set(connection.scalars(family)) - {key.id}):
        other = SessionKey(key.tenant, name)
        theirs = (*of_session(events, other), events.c.salt.is_not(None))
        for start in range(0, len(copied), MAX_PARAMETERS):
            seqs = sorted(copied)[start : start + MAX_PARAMETERS]
            rows = connection.execute(select(events.c.seq, events.c.hash).where(*theirs, events.c.seq.in_(seqs)))
            kept = [row.seq for row in rows if row.hash == copied[row.seq]]
            if kept:
                found.setdefault(other, []).extend(sorted(kept))
    return found
