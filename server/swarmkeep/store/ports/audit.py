"""Reads for auditors, who trust nothing that is stored, and a tenant's audit log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.ports.keys import SessionKey

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
        """Whether there is no row at all."""
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
    """Something that is done to a session from outside: for the record of it. `by` is None where nobody knows.

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
    """All that is stored, as it was at one moment. Whoever asks for it does not trust it."""

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
        """Which tables of sessions, or of the audit log, are views or the like, and may show what is not stored."""
        ...


class AuditReader(Protocol):
    """What is stored, for those who trust none of it."""

    async def read_snapshot(self, check: Callable[[Snapshot], T]) -> T:
        """Run a check on what is stored at one moment, whatever is recorded meanwhile.

        It may run in a thread, and from its beginning again when a connection breaks.
        """
        ...

    async def list_session_keys(
        self, tenant: str | None = None, *, after: SessionKey | None = None, limit: int = 500
    ) -> list[SessionKey]:
        """Sessions by tenant and id, those after `after`: every one that has a row of any kind, head row or not."""
        ...

    async def find_copies(self, key: SessionKey, events: Mapping[int, bytes]) -> dict[SessionKey, list[int]]:
        """Which other sessions, forks of this one or those it is from, hold these events (hashes by seq) readable."""
        ...


class AuditLog(Protocol):
    """What was done that no session's events can tell, by tenant."""

    async def read_audit_log(self, tenant: str, *, after: int = 0, limit: int = 200) -> list[AuditLogEntry]:
        """Entries of a tenant's audit log, oldest first."""
        ...

    async def list_audit_log_tenants(self) -> list[str]:
        """The tenants that have an audit log."""
        ...

    async def record_action(self, tenant: str, action: AuditAction) -> None:
        """Add an entry for what was done to no session."""
        ...
