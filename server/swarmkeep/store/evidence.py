"""What stands beside a session's events, exactly as it is stored: for `verify`, which trusts none of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Column, Connection, Table, Text, func, select, tuple_, type_coerce

from swarmkeep.domain.events import SessionForked
from swarmkeep.domain.request import digest
from swarmkeep.store.archive import Evidence
from swarmkeep.store.columns import Verbatim, as_bytes, as_text, unescape
from swarmkeep.store.port import SessionKey
from swarmkeep.store.tables import SESSION_TABLES, blobs, events, idempotency, session_labels, sessions, usage

_PAGE = 50

Row = Mapping[str, Any]


def read_evidence(connection: Connection, key: SessionKey) -> Evidence:
    # First, so that an append meanwhile does not look like an event beyond the head.
    last = connection.scalar(select(func.max(events.c.seq)).where(*_mine(events, key)))
    forked = connection.scalar(
        select(func.max(events.c.seq)).where(*_mine(events, key), events.c.type == SessionForked.type)
    )
    return Evidence(
        head=read_head(connection, key),
        last_seq=last if isinstance(last, int) else 0 if last is None else -1,
        forked_at=forked if isinstance(forked, int) else 0,
        labels=frozenset(
            as_bytes(row.label)
            for row in connection.execute(select(session_labels.c.label).where(*_mine(session_labels, key)))
        ),
        blobs=dict(_checked_blobs(connection, key)),
        marks=tuple(_rows(connection, idempotency, key)),
        calls=connection.scalar(select(func.count()).where(*_mine(usage, key))) or 0,
    )


def read_head(connection: Connection, key: SessionKey) -> Row | None:
    """A session's head row, column by column; None if there is none."""
    return next(_rows(connection, sessions, key), None)


def _mine(table: Table, key: SessionKey) -> tuple[Any, Any]:
    name = table.c.id if table is sessions else table.c.session_id
    return table.c.tenant == key.tenant, name == key.id


def _rows(connection: Connection, table: Table, key: SessionKey) -> Iterator[Row]:
    for row in connection.execute(select(*map(_raw, table.c)).where(*_mine(table, key))):
        yield {column.name: _plain(column, value) for column, value in zip(table.c, row, strict=True)}


def _raw(column: Column[Any]) -> Any:
    # Read without a conversion, which would fail on what is damaged.
    return type_coerce(column, Text) if isinstance(column.type, Verbatim) else column


def _plain(column: Column[Any], value: Any) -> Any:
    return unescape(as_text(value)) if isinstance(column.type, Verbatim) and value is not None else value


def _checked_blobs(connection: Connection, key: SessionKey) -> Iterator[tuple[str, bool]]:
    # Page by page: one driver fetches all that a statement finds before it gives the first row.
    after: str | None = None
    while True:
        page = select(blobs.c.hash, _raw(blobs.c.text)).where(*_mine(blobs, key)).order_by(blobs.c.hash).limit(_PAGE)
        rows = connection.execute(page if after is None else page.where(blobs.c.hash > after)).all()
        for name, text in rows:
            yield name, digest(unescape(as_text(text))) == name
        if len(rows) < _PAGE:
            return
        after = rows[-1][0]


def all_keys(connection: Connection, tenant: str | None, after: SessionKey | None, limit: int) -> list[SessionKey]:
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
