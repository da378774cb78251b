"""Reads for auditors: every row of a session but its events, exactly as stored. `verify` trusts none of it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, Select, Text, bindparam, func, select, text, tuple_, type_coerce

from swarmkeep.events.codec import digest, encode_text, to_timestamp
from swarmkeep.events.facts import (
    ApprovalDecided,
    SessionForked,
    SessionHeld,
    SessionImported,
    SessionRedacted,
    SessionReleased,
)
from swarmkeep.store.contents import check_files, decrypt_content, is_archived
from swarmkeep.store.hashing import AUDIT_LOG, GENESIS, SealedEvent, commitment_of, header_of, link, random_salts
from swarmkeep.store.person_keys import Erased
from swarmkeep.store.reading import MAX_BIGINT, RawRows, read_head_row, read_raw_rows, read_sealed
from swarmkeep.store.records import AuditAction, SessionKey, utc_now
from swarmkeep.store.statements import OnDatabase, PreparedStatement, prepare_insert_if_absent, split_parameters
from swarmkeep.store.tables import (
    IS_FIRST,
    SESSION_TABLES,
    as_bytes,
    as_text,
    audit_log,
    blobs,
    creations,
    events,
    idempotency,
    is_as_written,
    of_bound_session,
    of_session,
    runs,
    session_columns,
    session_labels,
    sessions,
    unescape,
    usage,
    usage_days,
)

T = TypeVar("T")

_PAGE_ROWS = 50
_LABEL_PATTERN = re.compile(r"key_[0-9a-f]{16}(?= \(|\Z)", re.ASCII)


class SessionRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one session but its events, as they are stored. `head` is None where there is no head row.

    `last_seq` is the greatest seq that any event has (0: there is none), `forked_at` the last that ends what was
    copied from elsewhere. `blobs` and `files` say of each name whether what is kept there is what it names;
    `creation_keys` are the idempotency keys that made the session; `usage_row_count` and
    `run_row_count` are the numbers of rows in the index of usage and in the table of runs.
    """

    head: Mapping[str, Any] | None
    last_seq: int
    forked_at: int
    labels: frozenset[tuple[bytes, str]]
    """Each with the time of the session's creation."""
    blobs: Mapping[str, bool]
    files: Mapping[str, bool]
    idempotency_rows: tuple[Mapping[str, Any], ...]
    creation_keys: tuple[str, ...]
    usage_row_count: int
    run_row_count: int

    @property
    def is_empty(self) -> bool:
        """Tell if there is no row at all."""
        return self.head is None and not (
            self.last_seq
            or self.labels
            or self.blobs
            or self.files
            or self.idempotency_rows
            or self.creation_keys
            or self.usage_row_count
            or self.run_row_count
        )


class SqlSnapshot:
    """All that is stored, as it was at one moment. The reader of it does not trust it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def is_archived(self, key: SessionKey) -> bool:
        """Tell if the session's events are in the archive only."""
        return is_archived(self._connection, key)

    def read_session_rows(self, key: SessionKey) -> SessionRows:
        """The rows beside a session's events."""
        connection, names = self._connection, session_columns(key)
        [[last]] = _LAST_SEQ.fetch_all(connection, names)
        [[forked]] = _LAST_OF_TYPE.fetch_all(connection, {**names, "of_type": SessionForked.type})
        [[usage_rows]] = _COUNT_USAGE.fetch_all(connection, names)
        [[run_rows]] = _COUNT_RUNS.fetch_all(connection, names)
        labels = _LABELS.fetch_all(connection, names)
        return SessionRows(
            head=read_head_row(connection, key),
            last_seq=last if isinstance(last, int) else 0 if last is None else -1,
            forked_at=forked if isinstance(forked, int) else 0,
            labels=frozenset((label, unescape(as_text(created_at))) for label, created_at in labels),
            blobs=dict(_check_blobs(connection, key)),
            files=dict(check_files(connection, key)),
            idempotency_rows=tuple(read_raw_rows(connection, _IDEMPOTENCY, key)),
            creation_keys=tuple(row["key"] for row in read_raw_rows(connection, _CREATIONS, key)),
            usage_row_count=usage_rows,
            run_row_count=run_rows,
        )

    def read_sealed(
        self, key: SessionKey, *, after: int, upto: int | None, limit: int, max_bytes: int | None = None
    ) -> list[SealedEvent]:
        """Events with the salts and commitments that their hashes are made of, oldest first."""
        last = MAX_BIGINT if upto is None else upto
        return read_sealed(self._connection, key, after=after, upto=last, limit=limit, max_bytes=max_bytes)

    def read_usage_rows(self, key: SessionKey, *, after: int, upto: int) -> dict[int, dict[str, Any]]:
        """The rows of usage of a session's calls between two seqs, by seq."""
        return self._read_rows(_USAGE, key, after, upto)

    def read_run_rows(self, key: SessionKey, *, after: int, upto: int) -> dict[int, dict[str, Any]]:
        """The rows of a session's runs that ended between two seqs, by seq."""
        return self._read_rows(_RUNS, key, after, upto)

    def _read_rows(self, rows: RawRows, key: SessionKey, after: int, upto: int) -> dict[int, dict[str, Any]]:
        return {
            row["seq"]: {name: value for name, value in row.items() if name not in ("tenant", "session_id")}
            for row in read_raw_rows(self._connection, rows, key, after=after, upto=upto)
            # SQLite holds a value of any type in any column.
            if isinstance(row["seq"], int)
        }

    def find_replaced_tables(self, *, of_audit_log: bool = False) -> list[str]:
        """List the tables of sessions, or the audit log, that may show rows that are not stored in them: views, parents
        of other tables, tables with computed columns."""
        tables = [audit_log] if of_audit_log else (sessions, *SESSION_TABLES, usage_days)
        names = tuple(sorted(table.name for table in tables))
        statement = _prepare_plain_tables(self._connection.dialect.name, names)
        plain = {name for (name,) in statement.fetch_all(self._connection, {})}
        return [name for name in names if name not in plain]


class SqlAuditReader(OnDatabase):
    """The stored rows, for readers who trust none of it."""

    async def read_snapshot(self, check: Callable[[SqlSnapshot], T]) -> T:
        """Run a check on what is stored at one moment, regardless of later records.

        It may run in a thread, and from its beginning again when a connection breaks.
        """
        return await self.database.read_snapshot(lambda connection: check(SqlSnapshot(connection)))

    async def list_session_keys(
        self, tenant: str | None = None, *, after: SessionKey | None = None, limit: int = 500
    ) -> list[SessionKey]:
        """Sessions by tenant and id, those after `after`: every one that has a row of any kind, head row or not."""
        return await self.database.read(lambda connection: list_session_keys(connection, tenant, after, limit))

    async def find_copies(self, key: SessionKey, events: Mapping[int, bytes]) -> dict[SessionKey, list[int]]:
        """Find the other sessions, its forks or those it is from, that hold these events (hashes by seq) readable."""
        return await self.database.read(lambda connection: find_copies(connection, key, events))


# With the names of tables in it, which are this module's own: a statement for each list of them.
_PLAIN_TABLES = {
    "sqlite": """
        SELECT name FROM sqlite_master AS found WHERE type = 'table' AND sql LIKE 'CREATE TABLE%' AND name IN ({names})
        AND NOT EXISTS (SELECT 1 FROM pragma_table_xinfo(found.name) WHERE hidden <> 0)
    """,
    "postgresql": """
        SELECT relname FROM pg_class AS found WHERE relkind = 'r' AND relname IN ({names})
        AND found.oid = to_regclass(quote_ident(relname))
        AND NOT EXISTS (SELECT 1 FROM pg_inherits WHERE inhparent = found.oid)
        AND NOT EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = found.oid AND attgenerated <> '')
    """,
}


@functools.cache
def _prepare_plain_tables(dialect: str, names: tuple[str, ...]) -> PreparedStatement:
    return PreparedStatement(text(_PLAIN_TABLES[dialect].format(names=", ".join(f"'{name}'" for name in names))))


_LAST_SEQ = PreparedStatement(select(func.max(events.c.seq)).where(*of_bound_session(events)))
_LAST_OF_TYPE = PreparedStatement(
    select(func.max(events.c.seq)).where(
        *of_bound_session(events), events.c.type == bindparam("of_type", type_=events.c.type.type)
    )
)
_COUNT_USAGE = PreparedStatement(select(func.count()).where(*of_bound_session(usage)))
_COUNT_RUNS = PreparedStatement(select(func.count()).where(*of_bound_session(runs)))


def _build_label_query() -> Select[Any]:
    # Each time is looked up by the label's key: for all columns at once SQLite would read every label of the tenant,
    # from the index that holds them all.
    same = session_labels.alias("same")
    columns = [name == session_labels.c[name.name] for name in same.primary_key]
    time = select(same.c.created_at).where(*columns).scalar_subquery()
    return select(session_labels.c.label, time).where(*of_bound_session(session_labels))


_LABELS = PreparedStatement(_build_label_query())


_IDEMPOTENCY = RawRows(idempotency)
_CREATIONS = RawRows(creations)
_USAGE = RawRows(usage, usage.c.seq > bindparam("after"), usage.c.seq <= bindparam("upto"))
_RUNS = RawRows(runs, runs.c.seq > bindparam("after"), runs.c.seq <= bindparam("upto"))


def _check_blobs(connection: Connection, key: SessionKey) -> Iterator[tuple[str, bool]]:
    # Page by page: one driver fetches all that a statement finds before it gives the first row.
    after: str | None = None
    while True:
        page, row = (_FIRST_BLOBS, {}) if after is None else (_NEXT_BLOBS, {"after": after})
        rows = page.fetch_all(connection, {**session_columns(key), **row})
        for name, blob in rows:
            known = unescape(as_text(name))
            said = decrypt_content(connection, known, unescape(as_text(blob)))
            yield known, isinstance(said, Erased) or digest(said) == known
        if len(rows) < _PAGE_ROWS:
            return
        after = unescape(as_text(rows[-1][0]))


_BLOBS = select(blobs.c.hash, blobs.c.text).where(*of_bound_session(blobs)).order_by(blobs.c.hash).limit(_PAGE_ROWS)
_FIRST_BLOBS = PreparedStatement(_BLOBS)
_NEXT_BLOBS = PreparedStatement(_BLOBS.where(blobs.c.hash > bindparam("after", type_=blobs.c.hash.type)))


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
            # Beside a condition on the tenant SQLite would not go by the index for a comparison of both.
            is_later = tuple_(table.c.tenant, name) > tuple_(after.tenant, after.id)
            page = page.where(is_later if tenant is None else name > after.id)
        found.update(SessionKey(*row) for row in connection.execute(page))
    return sorted(found, key=lambda key: (key.tenant, key.id))[:limit]


def find_copies(connection: Connection, key: SessionKey, copied: Mapping[int, bytes]) -> dict[SessionKey, list[int]]:
    """Find other sessions with the same first event that hold these events (hashes by seq) with their payload."""
    first = connection.scalar(select(events.c.hash).where(*of_session(events, key), events.c.seq == 1))
    family = select(events.c.session_id).where(events.c.tenant == key.tenant, IS_FIRST, events.c.hash == first)
    found: dict[SessionKey, list[int]] = {}
    for name in sorted(set(connection.scalars(family)) - {key.id}):
        other = SessionKey(key.tenant, name)
        theirs = (*of_session(events, other), events.c.salt.is_not(None))
        for seqs in split_parameters(sorted(copied)):
            rows = connection.execute(select(events.c.seq, events.c.hash).where(*theirs, events.c.seq.in_(seqs)))
            kept = [row.seq for row in rows if row.hash == copied[row.seq]]
            if kept:
                found.setdefault(other, []).extend(sorted(kept))
    return found


# The audit log of a tenant: what was done to whole sessions, also those that are gone.

ENTRY_VERSION = 1
_NAMES = (audit_log.c.type, audit_log.c.actor)


class AuditLogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a tenant's audit log, with what its hash is made of. `payload` is its exact stored text.

    `as_written`: its row holds it in the one form that a server writes.
    """

    seq: int
    type: str
    version: int
    by: str | None
    at: str
    payload: str
    salt: bytes
    commitment: bytes
    hash: bytes
    as_written: bool


def find_key_id(label: str | None) -> str | None:
    """Return the id of the key that a label names; None if it names an actor in another way."""
    found = _LABEL_PATTERN.match(label or "")
    return None if found is None else found[0]


class SqlAuditLog(OnDatabase):
    """The actions that no session's events can tell, by tenant."""

    async def read_audit_log(self, tenant: str, *, after: int = 0, limit: int = 200) -> list[AuditLogEntry]:
        """Entries of a tenant's audit log, oldest first."""
        return await self.database.read(
            lambda connection: read_audit_log(connection, tenant, after, limit), seconds=self.read_seconds
        )

    async def list_audit_log_tenants(self) -> list[str]:
        """The tenants that have an audit log."""
        tenants = select(audit_log.c.tenant).distinct()
        return await self.database.read(lambda connection: sorted(connection.scalars(tenants)))

    async def record_action(self, tenant: str, action: AuditAction) -> None:
        """Add an entry for what was done to no session."""
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
        # If another writer has just added some, these come after those. Were all of the transaction tried again, many
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


AUDITED = frozenset({ApprovalDecided, SessionImported, SessionRedacted, SessionHeld, SessionReleased})
"""The facts that `record_audited_events` adds something for."""


def record_audited_events(connection: Connection, key: SessionKey, sealed: Sequence[SealedEvent]) -> None:
    """Add an entry for each event that its actor has to answer for, in the transaction that records it.

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
            case SessionImported(source=source, digest=file, by=by):
                details = {"source": source, "digest": file}
            case SessionHeld(by=by) | SessionReleased(by=by):
                details = {}
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
