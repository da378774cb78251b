"""A tenant's audit log: what was done to whole sessions, so that it is told of those that are gone as well.

Its entries are chained as events are (see `hashing`), with whoever did it in the place of the agent and no run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, Text, bindparam, select, type_coerce

from swarmkeep.domain.codec import encode_text
from swarmkeep.domain.events import ApprovalDecided, SessionRedacted
from swarmkeep.domain.timestamps import to_timestamp
from swarmkeep.store.clock import utc_now
from swarmkeep.store.hashing import AUDIT_LOG, GENESIS, SealedEvent, commitment_of, header_of, link, random_salts
from swarmkeep.store.ports.api_keys import find_key_id
from swarmkeep.store.ports.audit import AuditAction, AuditLogEntry
from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.sql.columns import as_bytes, as_text, is_as_written
from swarmkeep.store.sql.database import OnDatabase
from swarmkeep.store.sql.prepared import PreparedStatement, prepare_insert_if_absent
from swarmkeep.store.sql.tables import audit_log

T = TypeVar("T")

ENTRY_VERSION = 1
_NAMES = (audit_log.c.type, audit_log.c.actor)


class SqlAuditLog(OnDatabase):
    """AuditLog on a Database."""

    async def read_audit_log(self, tenant: str, *, after: int = 0, limit: int = 200) -> list[AuditLogEntry]:
        return await self.database.read(
            lambda connection: read_audit_log(connection, tenant, after, limit), seconds=self.read_seconds
        )

    async def list_audit_log_tenants(self) -> list[str]:
        return await self.database.read(list_audit_log_tenants)

    async def record_action(self, tenant: str, action: AuditAction) -> None:
        at = to_timestamp(utc_now())
        await self.database.write(lambda connection: record_action(connection, tenant, action, {}, at))


def record_action(connection: Connection, tenant: str, action: AuditAction, data: dict[str, Any], at: str) -> None:
    """Add an entry, in the transaction of what it tells of, as the last thing it does that others may wait for."""
    record_actions(connection, tenant, action, [data], at)


def record_actions(
    connection: Connection, tenant: str, action: AuditAction, each: Sequence[dict[str, Any]], at: str
) -> None:
    """`record_action` for what was done several times: an entry for each."""
    insert = prepare_insert_if_absent(audit_log, connection.dialect.name)
    while True:
        # Where somebody has just added some, these come after those. Were all of the transaction tried again, many
        # small ones would keep a long one from ever being done.
        rows = _make_rows(connection, tenant, action, each, at)
        # Who has the first of them has the others, too: each adds what comes next.
        if insert.execute(connection, rows[0]):
            break
    insert.insert_many(connection, rows[1:])


def _make_rows(
    connection: Connection, tenant: str, action: AuditAction, each: Sequence[dict[str, Any]], at: str
) -> list[dict[str, Any]]:
    """The entries as they follow the last one that there is by now."""
    last = _LAST.fetch_all(connection, {"tenant_": tenant})
    seq, previous = (0, GENESIS) if not last else (last[0][0], as_bytes(last[0][1]))
    actor = action.by or ""
    rows = []
    for data, salt in zip(each, random_salts(len(each)), strict=True):
        seq += 1
        payload = encode_text({**data, **action.details, "reason": action.reason})
        commitment = commitment_of(salt, payload)
        header = header_of(seq, action.type, ENTRY_VERSION, None, actor, at)
        previous = link(previous, header, commitment, chain=AUDIT_LOG)
        rows.append(
            {
                "tenant": tenant,
                "seq": seq,
                "type": action.type,
                "version": ENTRY_VERSION,
                "actor": actor,
                "recorded_at": at,
                "payload": payload,
                "salt": salt,
                "commitment": commitment,
                "hash": previous,
            }
        )
    return rows


_LAST = PreparedStatement(
    select(audit_log.c.seq, audit_log.c.hash)
    .where(audit_log.c.tenant == bindparam("tenant_", type_=audit_log.c.tenant.type))
    .order_by(audit_log.c.seq.desc())
    .limit(1)
)


def has_audited_events(sealed: Sequence[SealedEvent]) -> bool:
    """Whether `record_audited_events` has anything to add."""
    return any(isinstance(one.event.fact, ApprovalDecided | SessionRedacted) for one in sealed)


def record_audited_events(connection: Connection, key: SessionKey, sealed: Sequence[SealedEvent]) -> None:
    """Add an entry for each event that somebody has to answer for, in the transaction that records it.

    It says where that event stands. Reasons are not repeated here: they go with the session's words.
    """
    for event in (one.event for one in sealed):
        match event.fact:
            case ApprovalDecided(decision=decision):
                # The name is a part of the event, and goes with it if that is redacted.
                by = find_key_id(event.fact.by)
                details: dict[str, Any] = {"run_id": event.run_id, "decision": decision}
            case SessionRedacted(seqs=seqs, by=by):
                details = {"seqs": list(seqs)}
            case _:
                continue
        place = {"session_id": key.id, "seq": event.seq, "hash": event.hash}
        record_action(connection, key.tenant, AuditAction(type=event.type, by=by, details=details), place, event.at)


def read_audit_log(connection: Connection, tenant: str, after: int, limit: int) -> list[AuditLogEntry]:
    """Entries after one seq, oldest first."""
    found = (
        select(*audit_log.c, *(type_coerce(column, Text).label(f"raw_{column.name}") for column in _NAMES))
        .where(audit_log.c.tenant == tenant, audit_log.c.seq > after)
        .order_by(audit_log.c.seq)
        .limit(limit)
    )
    return [
        AuditLogEntry(
            seq=row.seq,
            type=row.type,
            version=row.version,
            by=row.actor or None,
            at=as_text(row.recorded_at),
            payload=as_text(row.payload),
            salt=as_bytes(row.salt),
            commitment=as_bytes(row.commitment),
            hash=as_bytes(row.hash),
            as_written=_is_row_as_written(row),
        )
        for row in connection.execute(found)
    ]


def _is_row_as_written(row: Any) -> bool:
    classes = (row.seq.__class__, row.version.__class__, row.recorded_at.__class__, row.payload.__class__)
    digests = (row.salt, row.commitment, row.hash)
    return (
        classes == (int, int, str, str)
        and all(isinstance(value, bytes) for value in digests)
        and is_as_written(row.raw_type)
        and is_as_written(row.raw_actor)
    )


def list_audit_log_tenants(connection: Connection) -> list[str]:
    """The tenants that have an audit log."""
    return sorted(connection.scalars(select(audit_log.c.tenant).distinct()))
