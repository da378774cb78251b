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


_USUAL_CLASSES = (str, str, int, bytes)


def decode_event(session_id: str, row: Iterable[Any]) -> RecordedEvent:
    """An event from a row of EVENT_COLUMNS."""
    seq, type_, version, run_id, agent, at, digest, payload = row
    if (payload.__class__, at.__class__, version.__class__, digest.__class__) == _USUAL_CLASSES:
        try:
            return _make_event(session_id, seq, type_, version, run_id, agent, at, digest.hex(), payload)
        except (AttributeError, TypeError):
            pass
    # SQLite holds a value of any type in any column.
    run = None if run_id is None else as_text(run_id)
    number = version if isinstance(version, int) else 0
    kept = (as_text(type_), number, run, as_text(agent), as_text(at), as_bytes(digest).hex(), as_text(payload))
    return _make_event(session_id, seq, *kept)


def _make_event(
    session_id: str,
    seq: int,
    type_: str,
    version: int,
    run_id: str | None,
    agent: str,
    at: str,
    digest: str,
    payload: str,
) -> RecordedEvent:
    return RecordedEvent(
        session_id=session_id,
        seq=seq,
        # Looked at here, because nearly all are as they were given, and there are three of them in each row.
        type=unescape(type_) if type_.startswith('"') else type_,
        version=version,
        run_id=unescape(run_id) if run_id is not None and run_id.startswith('"') else run_id,
        agent=unescape(agent) if agent.startswith('"') else agent,
        at=at,
        hash=digest,
        payload=payload,
        fact=upcast(type_, version, payload),
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
