"""Decodes rows of the log. Total: a damaged row is read as far as it goes, and `verify` reports it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Text, type_coerce

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.sql.columns import as_bytes, as_text, is_as_written, unescape
from swarmkeep.store.sql.tables import events
from swarmkeep.store.upcast import upcast

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


def decode_event(session_id: str, row: Iterable[Any]) -> RecordedEvent:
    """An event from a row of EVENT_COLUMNS."""
    seq, type_, version, run_id, agent, at, digest, payload = row
    if not (
        type_.__class__ is agent.__class__ is at.__class__ is payload.__class__ is str
        and (run_id is None or run_id.__class__ is str)
        and version.__class__ is int
        and digest.__class__ is bytes
    ):
        # SQLite holds a value of any type in any column.
        type_, agent, at, payload = as_text(type_), as_text(agent), as_text(at), as_text(payload)
        run_id = None if run_id is None else as_text(run_id)
        version, digest = version if isinstance(version, int) else 0, as_bytes(digest)
    fact = upcast(type_, version, payload)
    if '"' in type_ or '"' in agent or (run_id is not None and '"' in run_id):
        # Looked at here, because nearly all are as they were given, and there are three of them in each row.
        type_, agent = unescape(type_), unescape(agent)
        run_id = None if run_id is None else unescape(run_id)
    return RecordedEvent(
        session_id=session_id,
        seq=seq,
        type=type_,
        version=version,
        run_id=run_id,
        agent=agent,
        at=at,
        hash=digest.hex(),
        payload=payload,
        fact=fact,
    )


def decode_sealed(session_id: str, row: Iterable[Any]) -> SealedEvent:
    """An event from a row of SEALED_COLUMNS."""
    values = tuple(row)
    *event, salt, commitment = values
    salt = salt if salt is None or isinstance(salt, bytes) else as_bytes(salt)
    return SealedEvent(decode_event(session_id, event), salt, as_bytes(commitment), _is_row_as_written(values))


def _is_row_as_written(row: tuple[Any, ...]) -> bool:
    seq, type_, version, run_id, agent, at, digest, payload, salt, commitment = row
    classes = (
        seq.__class__,
        version.__class__,
        at.__class__,
        payload.__class__,
        digest.__class__,
        commitment.__class__,
    )
    return (
        classes == (int, int, str, str, bytes, bytes)
        and (salt is None or isinstance(salt, bytes))
        and (run_id is None or is_as_written(run_id))
        and is_as_written(type_)
        and is_as_written(agent)
    )
