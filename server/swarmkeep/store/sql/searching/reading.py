"""Reads what there is to index next: events of a few sessions, as they are stored."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Connection, Select, Text, bindparam, literal_column, select, text, type_coerce

from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.sql.columns import as_text
from swarmkeep.store.sql.prepared import PreparedStatement
from swarmkeep.store.sql.searching.marks import Mark, find_marks, read_mark
from swarmkeep.store.sql.tables import events, of_bound_session, search_marks, session_columns, sessions

_EVENTS_AT_ONCE = 500
_BYTES_OF_SESSION = 1_000_000
_BYTES_AT_ONCE = 4_000_000
_SESSIONS_AT_ONCE = 50
_MARK_COLUMNS = len(search_marks.c)


class Part(msgspec.Struct, frozen=True):
    """What is to be indexed of a session next: events as they are stored, oldest first.

    `view`: how lists show it, if that is to be indexed, too.
    """

    mark: Mark
    rows: Sequence[Any]
    upto: int
    view: str | None


def read_parts(connection: Connection) -> list[Part]:
    """What is to be indexed next. What does not fit in is read the next time."""
    read = _read_together if connection.dialect.name == "postgresql" else _read_each
    return [_make_part(connection, mark, rows) for mark, rows in read(connection)]


def _make_part(connection: Connection, mark: Mark, rows: Sequence[Any]) -> Part:
    # What is not read now is read next. A seq of another type is damage, which `verify` names.
    upto = rows[-1][0] if rows and isinstance(rows[-1][0], int) else mark.seq
    is_labelled = mark.done == 0 or any(as_text(row[1]).startswith("session.") for row in rows)
    return Part(mark, rows, upto, _read_view(connection, mark.key) if is_labelled else None)


def _read_view(connection: Connection, key: SessionKey) -> str:
    found = _VIEW.fetch_all(connection, session_columns(key))
    return as_text(found[0][0]) if found else "{}"


def _read_each(connection: Connection) -> Iterator[tuple[Mark, list[Any]]]:
    """One session after the other: SQLite gives each row as it is asked for, and no statement costs a round trip."""
    left = _BYTES_AT_ONCE
    for mark in find_marks(connection, _SESSIONS_AT_ONCE):
        rows: list[Any] = []
        size = 0
        given = {**session_columns(mark.key), "after": mark.done, "upto": mark.seq}
        for row in _EACH.iterate(connection, given):
            rows.append(row)
            size += len(as_text(row[3]))
            if size >= _BYTES_OF_SESSION:
                break
        yield mark, rows
        left -= size
        if left <= 0:
            break


def _read_together(connection: Connection) -> Iterator[tuple[Mark, list[Any]]]:
    """All by one statement, within which PostgreSQL adds up what it gives."""
    found = _TOGETHER.fetch_all(connection, {"most": _SESSIONS_AT_ONCE})
    for mark, rows in itertools.groupby(found, lambda row: tuple(row[:_MARK_COLUMNS])):
        events_of_it = [row[_MARK_COLUMNS:] for row in rows]
        yield read_mark(mark), [row for row in events_of_it if row[0] is not None]


def _select_rows() -> Select[Any]:
    columns = events.c
    page = (columns.seq > bindparam("after"), columns.seq <= bindparam("upto"))
    wanted = (columns.seq, type_coerce(columns.type, Text).label("type"), columns.version, columns.payload)
    some = select(*wanted, columns.salt, columns.hash).where(*of_bound_session(events), *page).order_by(columns.seq)
    return some.limit(literal_column(str(_EVENTS_AT_ONCE)))


_EACH = PreparedStatement(_select_rows())
# What a session has beyond its limit takes no room from the others. One without any event is a row of its mark.
_TOGETHER = PreparedStatement(
    text(
        "WITH behind AS (SELECT tenant, session_id, seq AS upto, done, round FROM search_marks WHERE done < seq"
        " ORDER BY tenant, session_id LIMIT :most),"
        " found AS (SELECT behind.*, event.*, coalesce(octet_length(payload), 0) AS size FROM behind LEFT JOIN LATERAL"
        " (SELECT seq, type, version, payload, salt, hash FROM events WHERE events.tenant = behind.tenant"
        " AND events.session_id = behind.session_id AND events.seq > done AND events.seq <= upto"
        f" ORDER BY seq LIMIT {_EVENTS_AT_ONCE}) AS event ON true),"
        " of_session AS (SELECT *, sum(size) OVER (PARTITION BY tenant, session_id ORDER BY seq) - size AS before"
        " FROM found),"
        " of_all AS (SELECT *, sum(size) OVER (ORDER BY tenant, session_id, seq) - size AS before_it FROM of_session"
        f" WHERE before < {_BYTES_OF_SESSION})"
        " SELECT tenant, session_id, upto, done, round, seq, type, version, payload, salt, hash FROM of_all"
        f" WHERE before_it < {_BYTES_AT_ONCE} ORDER BY tenant, session_id, seq"
    ).bindparams(bindparam("most", type_=BigInteger()))
)
_VIEW = PreparedStatement(select(sessions.c.view).where(*of_bound_session(sessions)))
