"""API keys. A key itself is kept nowhere, only its digest.

A key is a long random text, so a plain SHA-256 of it does not reveal it. It holds its own public id: it is looked
up by that, and then compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

import msgspec
from sqlalchemy import Connection, Dialect

from swarmkeep.events.codec import parse_timestamp
from swarmkeep.store.hashing import SealedEvent

Role = Literal["read", "run", "approve", "support", "audit", "write", "admin"]

# How exact `last_used_at` is. Each use of a key would else be a write.
LAST_USED_PRECISION_SECONDS = 60.0

_LABEL_PATTERN = re.compile(r"key_[0-9a-f]{16}(?= \(|\Z)", re.ASCII)
_SECRET_PATTERN = re.compile(r"swk_([0-9a-f]{16})_[A-Za-z0-9_-]{43}", re.ASCII)


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as lists show it. `role` says what it may do (see `api.auth.permissions`). Times are UTC."""

    id: str
    tenant: str
    name: str
    role: Role
    created_at: str
    last_used_at: str | None = None
    revoked_at: str | None = None
    expires_at: str | None = None

    def is_valid(self, at: datetime) -> bool:
        """Tell if it counts at this time. An end that cannot be read as a time has come."""
        if self.expires_at is None:
            return self.revoked_at is None
        ends = parse_timestamp(self.expires_at)
        return self.revoked_at is None and ends is not None and at < ends

    @property
    def label(self) -> str:
        """The actor's name with this key, in the words that events keep: its id, which is unique, and its name."""
        return f"{self.id} ({self.name})" if self.name else self.id


class StoredApiKey(msgspec.Struct, frozen=True):
    """A key, and the digest by which a caller's key is checked."""

    key: ApiKey
    digest: bytes

    def accepts(self, secret: str, *, at: datetime) -> bool:
        """Tell if this is the key itself, and it counts at this time."""
        return hmac.compare_digest(self.digest, hash_secret(secret)) and self.key.is_valid(at)


def parse_key_id(secret: str) -> str | None:
    """The id of the key that this text would be; None if it cannot be one."""
    found = _SECRET_PATTERN.fullmatch(secret)
    return None if found is None else f"key_{found[1]}"


def find_key_id(label: str | None) -> str | None:
    """Return the id of the key that a label names; None if it names an actor in another way."""
    found = _LABEL_PATTERN.match(label or "")
    return None if found is None else found[0]


def derive_key_id(tenant: str, idempotency_key: str) -> str:
    """The id of a key that this request makes: the same each time it is sent."""
    return f"key_{hashlib.sha256(f'{tenant}/{idempotency_key}'.encode()).hexdigest()[:16]}"


def hash_secret(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


class ApiKeys(Protocol):
    """The API keys. They stay for good: a key that was revoked is still one that exists."""

    async def create(
        self,
        tenant: str,
        *,
        name: str = "",
        role: Role = "write",
        expires_at: datetime | None = None,
        by: str | None = None,
    ) -> tuple[ApiKey, str]:
        """Make a key; the tenant's audit log says `by` whom. The second of what it gives is the key itself, which
        cannot be found out again.

        Raises InvalidRequest for a tenant or name that cannot be one, and an end that has come.
        """
        ...

    async def create_once(
        self,
        tenant: str,
        idempotency_key: str,
        *,
        name: str = "",
        role: Role = "write",
        expires_at: datetime | None = None,
        by: str | None = None,
    ) -> tuple[ApiKey, str | None]:
        """As `create`; asked again with the same idempotency key, it gives the key as it is now, and None.

        Raises IdempotencyMismatch if that is a key of another kind.
        """
        ...

    async def find(self, key_id: str) -> StoredApiKey | None:
        """The key with this id, be it revoked or not."""
        ...

    async def note_use(self, key_id: str) -> None:
        """Note that a key is in use, unless that was noted within the last minute."""
        ...

    async def has_keys(self) -> bool:
        """Tell if a key was ever made, be it revoked since."""
        ...

    async def list_keys(
        self, *, tenant: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[ApiKey]:
        """Keys, revoked ones included, oldest first; those after the key with the id `after`. Raises InvalidRequest."""
        ...

    async def revoke(self, key_id: str, *, tenant: str | None = None, by: str | None = None) -> ApiKey:
        """End a key for good; its tenant's audit log says `by` whom. One that was revoked before stays as it is.

        `tenant`: only if it is this one's.

        Raises ApiKeyNotFound.
        """
        ...


# The names of sessions.

DEFAULT_TENANT = "default"


class SessionKey(msgspec.Struct, frozen=True):
    """A session's full name. What belongs to one tenant does not exist for another."""

    tenant: str
    id: str


# Reads for auditors, who trust nothing that is stored, and a tenant's audit log.

T = TypeVar("T")


class SessionRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one session but its events, as they are stored. `head` is None where there is no head row.

    `last_seq` is the greatest seq that any event has (0: there is none), `forked_at` the last that ends what was
    copied from elsewhere. `blobs` and `files` say of each name whether what is kept there is what it names;
    `creation_keys` are the idempotency keys that made the session; `usage_row_count` is the number of rows in the
    index of usage.
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
        )


class AuditAction(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is done to a session from outside: for the record of it. `by` is None if that is unknown.

    `details` are what else there is to say of this type of action.
    """

    type: str
    by: str | None = None
    reason: str | None = None
    details: Mapping[str, Any] = {}


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


class Snapshot(Protocol):
    """All that is stored, as it was at one moment. The reader of it does not trust it."""

    def read_session_rows(self, key: SessionKey) -> SessionRows:
        """The rows beside a session's events."""
        ...

    def read_sealed(
        self, key: SessionKey, *, after: int, upto: int | None, limit: int, max_bytes: int | None = None
    ) -> list[SealedEvent]:
        """Events with the salts and commitments that their hashes are made of, oldest first."""
        ...

    def read_usage_rows(self, key: SessionKey, *, after: int, upto: int) -> dict[int, dict[str, Any]]:
        """The rows of usage of a session's calls between two seqs, by seq."""
        ...

    def find_replaced_tables(self, *, of_audit_log: bool = False) -> list[str]:
        """List the tables of sessions, or the audit log, that are views or alike, and may show unstored rows."""
        ...


class AuditReader(Protocol):
    """The stored rows, for readers who trust none of it."""

    async def read_snapshot(self, check: Callable[[Snapshot], T]) -> T:
        """Run a check on what is stored at one moment, regardless of later records.

        It may run in a thread, and from its beginning again when a connection breaks.
        """
        ...

    async def list_session_keys(
        self, tenant: str | None = None, *, after: SessionKey | None = None, limit: int = 500
    ) -> list[SessionKey]:
        """Sessions by tenant and id, those after `after`: every one that has a row of any kind, head row or not."""
        ...

    async def find_copies(self, key: SessionKey, events: Mapping[int, bytes]) -> dict[SessionKey, list[int]]:
        """Find the other sessions, its forks or those it is from, that hold these events (hashes by seq) readable."""
        ...


class AuditLog(Protocol):
    """The actions that no session's events can tell, by tenant."""

    async def read_audit_log(self, tenant: str, *, after: int = 0, limit: int = 200) -> list[AuditLogEntry]:
        """Entries of a tenant's audit log, oldest first."""
        ...

    async def list_audit_log_tenants(self) -> list[str]:
        """The tenants that have an audit log."""
        ...

    async def record_action(self, tenant: str, action: AuditAction) -> None:
        """Add an entry for what was done to no session."""
        ...


# The database under the SQL: takes jobs (functions of a connection) and runs each in a transaction.

Render = Callable[[Dialect], tuple[str, Sequence[Any]]]
"""A statement as the database's driver takes it, with its parameters."""
Rows = Sequence[Sequence[Any]]


class Database(Protocol):
    """One place to read and write. Jobs are short, know nothing of asyncio, and keep no connection."""

    async def read(self, query: Callable[[Connection], T], *, seconds: float | None = None) -> T:
        """Run a query. It may run twice if the connection breaks.

        Raises Overloaded if one of its statements takes longer than `seconds`.
        """
        ...

    async def read_snapshot(self, query: Callable[[Connection], T]) -> T:
        """Run queries that take their time: all of them see the database as it was at one moment.

        They hold up no other read, and only a few of them run at once. All of it may run twice.
        """
        ...

    async def read_at_one_moment(self, query: Callable[[Connection], T]) -> T:
        """`read`, for several statements that see the database as it was at one moment."""
        ...

    async def write(self, job: Callable[[Connection], T], *, erases: bool = False) -> T:
        """Run a job in a transaction of its own, or in its own part of one, and commit.

        Until that it may be done again, so it changes nothing but the database. What it raises undoes all it did, and
        nothing else. A caller that is cancelled while it waits does not stop the job. `erases`: what it removes must
        not stay readable in the database's files.
        Raises OutcomeUnknown when it is unknown whether it was committed.
        """
        ...

    async def write_each(
        self,
        job: Callable[[Connection, Sequence[T]], None],
        items: Sequence[T],
        *,
        render: Callable[[T], Render | None],
    ) -> Sequence[Exception | None]:
        """`write` a job for each of some items; returns what it raised for each, None where it was done.

        The job is given several of them, or one: SQLite does a few in one transaction, and if that fails, each by
        itself; on PostgreSQL each has its own, so that no row is held while another is written. There it is one
        statement, for an item of which `render` gives one, as for `write_statement`. A failure stops none of the
        others, and nothing goes on when this returns.
        """
        ...

    async def write_statement(self, render: Render) -> Rows:
        """Run one statement that is a transaction of its own, and return its rows.

        No rows: it changed nothing, or it cannot be done so on this database, and a job is to be written instead, which
        finds out why. It must find nothing to change where it was done before, because it is done again when the
        connection breaks. As for the rest, see `write`.
        """
        ...

    async def write_from_anywhere(self, job: Callable[[Connection], T]) -> T:
        """`write`, from a loop that is not the one in which all else is done. Not for many at once."""
        ...

    async def check_writable(self) -> None:
        """Raises StoreUnavailable once a write has failed because the database takes none, until a trial is taken.

        The trial changes nothing. Without a failure there is none, and none where no write was ever taken: that server
        was begun to be read from, as one on a standby is.
        """
        ...

    @property
    def waiting_writes(self) -> int:
        """The number of writes that have not been committed yet."""
        ...

    def notify(self, key: SessionKey) -> None:
        """Notify other processes, soon, that a session changed."""
        ...

    async def listen(self, on_change: Callable[[SessionKey], None]) -> None:
        """See ChangeFeed."""
        ...

    async def close(self) -> None: ...


# Idempotency records: what requests with an idempotency key have led to. They are written with the events.


class IdempotencyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An idempotency key used on a session: what was asked (a digest of it) and what it led to.

    `seq` is the last event of its effect, `run_id` the run it started, if any.
    """

    key: str
    digest: str
    run_id: str | None = None
    seq: int = 0


class IdempotencyRecordExists(Exception):
    """The idempotency key was used before for the same request: `idempotency` says what it led to."""

    def __init__(self, record: IdempotencyRecord) -> None:
        super().__init__(record.key)
        self.record = record


class IdempotencyRecords(Protocol):
    """The idempotency records of all sessions."""

    async def find_idempotency_record(self, key: SessionKey, idempotency_key: str) -> IdempotencyRecord | None:
        """The record of what an idempotency key was used for, if it was."""
        ...
