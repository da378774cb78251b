"""Idempotency records: written with the events that a request led to, and found by its key."""

from __future__ import annotations

import hashlib

from sqlalchemy import Connection, select, update

from swarmkeep.events.errors import IdempotencyMismatch, SeqConflict
from swarmkeep.store.records import IdempotencyRecord, IdempotencyRecordExists, SessionKey
from swarmkeep.store.statements import OnDatabase, prepare_insert_if_absent
from swarmkeep.store.tables import creations, idempotency, of_session, session_columns


class SqlIdempotencyRecords(OnDatabase):
    """The idempotency records of all sessions."""

    async def find_idempotency_record(self, key: SessionKey, idempotency_key: str) -> IdempotencyRecord | None:
        """The record of what an idempotency key was used for, if it was."""
        return await self.database.read(lambda connection: find_idempotency_record(connection, key, idempotency_key))


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
