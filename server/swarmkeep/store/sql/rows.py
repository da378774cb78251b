"""Decodes rows of the log. Total: a damaged row is read as far as it goes, and `verify` reports it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Column, Connection, Table, Text, select, type_coerce

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.sql.columns import Verbatim, as_bytes, as_text, is_as_written, unescape
from swarmkeep.store.sql.prepared import PreparedStatement, Row
from swarmkeep.store.sql.tables import events, of_bound_session, session_columns, sessions
from swarmkeep.store.upcast import READERS, UNREADABLE, upcast

# The texts come as they are stored: a conversion by SQLAlchemy costs more than all else for a row.
EVENT_COLUMNS = (
    events.c.seq,
    type_coerce(events.c.type, Text),
    events.c.version,
    type_coerce(events.c.run_id, Text),
    type_coerce(events.c.agent, Text),
    events.c.recorded_at,
    events.c.hash,
    events.c.payload,
)
SEALED_COLUMNS = (*EVENT_COLUMNS, events.c.salt, events.c.commitment)


def decode_event(session_id: str, row: Sequence[Any]) -> RecordedEvent:
    """An event from a row of EVENT_COLUMNS."""
    seq, type_, version, run_id, agent, at, digest, payload = row
    reader = READERS[type_]
    # `type` of a value costs less than its `__class__`, and this is asked for each row.
    if (
        reader is not None
        and type(agent) is type(at) is type(payload) is str
        and (run_id is None or (type(run_id) is str and '"' not in run_id))
        and type(version) is int
        and type(digest) is bytes
        and '"' not in agent
        and version >= reader[0]
    ):
        try:
            fact = reader[1](payload)
            return RecordedEvent(session_id, seq, type_, version, run_id, agent, at, digest.hex(), payload, fact)
        except UNREADABLE:
            pass
    return _decode_any_event(session_id, row)


def _decode_any_event(session_id: str, row: Sequence[Any]) -> RecordedEvent:
    """An event with text that is escaped, or a payload that is not read as it is, or damage.

    SQLite holds a value of any type in any column.
    """
    seq, type_, version, run_id, agent, at, digest, payload = row
    type_, payload = as_text(type_), as_text(payload)
    version = version if isinstance(version, int) else 0
    return RecordedEvent(
        session_id=session_id,
        seq=seq,
        type=unescape(type_),
        version=version,
        run_id=None if run_id is None else unescape(as_text(run_id)),
        agent=unescape(as_text(agent)),
        at=as_text(at),
        hash=as_bytes(digest).hex(),
        payload=payload,
        # By the type as it is stored, for that is how `verify` reads it.
        fact=upcast(type_, version, payload),
    )


def decode_sealed(session_id: str, row: Sequence[Any]) -> SealedEvent:
    """An event from a row of SEALED_COLUMNS."""
    salt, commitment = row[-2:]
    salt = salt if salt is None or isinstance(salt, bytes) else as_bytes(salt)
    return SealedEvent(decode_event(session_id, row[:-2]), salt, as_bytes(commitment), _is_row_as_written(row))


def _is_row_as_written(row: Sequence[Any]) -> bool:
    seq, type_, version, run_id, agent, at, digest, payload, salt, commitment = row
    return (
        type(seq) is type(version) is int
        and type(at) is type(payload) is str
        and type(digest) is type(commitment) is bytes
        and (salt is None or type(salt) is bytes)
        and (run_id is None or is_as_written(run_id))
        and is_as_written(type_)
        and is_as_written(agent)
    )


class RawRows:
    """The rows of a session in a table, without the conversions that would fail on what is damaged."""

    def __init__(self, table: Table, *conditions: Any) -> None:
        self.columns = list(table.c)
        raw = [type_coerce(one, Text) if isinstance(one.type, Verbatim) else one for one in self.columns]
        self.statement = PreparedStatement(select(*raw).where(*of_bound_session(table), *conditions))


def read_raw_rows(connection: Connection, rows: RawRows, key: SessionKey, **bounds: int) -> Iterator[Row]:
    for row in rows.statement.fetch_all(connection, {**session_columns(key), **bounds}):
        yield {column.name: _decode_value(column, value) for column, value in zip(rows.columns, row, strict=True)}


def _decode_value(column: Column[Any], value: Any) -> Any:
    # What is not written as a server writes it stays as it is: it would read the same, but a query would not find it.
    return unescape(value) if isinstance(column.type, Verbatim) and is_as_written(value) else value


_HEAD = RawRows(sessions)


def read_head_row(connection: Connection, key: SessionKey) -> Row | None:
    """A session's head row, column by column; None if there is none."""
    return next(read_raw_rows(connection, _HEAD, key), None)
