"""The store's port: the calls that the engine makes. Every implementation passes tests/store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.state import SessionStatus, State
from swarmkeep.domain.usage import UsagePage, UsageQuery
from swarmkeep.domain.views import SessionView
from swarmkeep.store.hashing import SealedEvent

DEFAULT_TENANT = "default"


class SessionKey(msgspec.Struct, frozen=True):
    """A session's full name. What belongs to one tenant does not exist for another."""

    tenant: str
    id: str


class Lease(msgspec.Struct, frozen=True):
    """The right to advance a session's run, until it expires or somebody takes it over (then the epoch moves on)."""

    owner: str
    epoch: int


class Claim(msgspec.Struct, frozen=True):
    """A request for the lease, granted with an append if nobody else holds one that has not expired."""

    owner: str
    lease_seconds: float


class IdempotencyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An idempotency key used on a session: what was asked (a digest of it) and what it led to.

    `seq` is the last event of its effect, `run_id` the run it started, if any.
    """

    key: str
    digest: str
    run_id: str | None = None
    seq: int = 0


class AppendResult(msgspec.Struct, frozen=True):
    """The events that an append recorded, the state after it, and the lease if one was claimed or given."""

    events: list[RecordedEvent]
    state: State
    lease: Lease | None


class SessionPage(msgspec.Struct, frozen=True):
    sessions: list[SessionView]
    next_cursor: str | None


class SessionHead(msgspec.Struct, frozen=True):
    """Where a session's log ends, and the lease on it, be it expired or not."""

    seq: int
    hash: str
    lease: Lease | None = None


class SealedBatch(msgspec.Struct, frozen=True):
    """Some events of a session that was recorded elsewhere, oldest first, and texts that they name by their hashes."""

    events: Sequence[SealedEvent]
    blobs: Mapping[str, str] = {}


class EventStore(Protocol):
    """The log. Each call is atomic and, once it returns, durable; nothing is held open between calls."""

    async def append(
        self,
        key: SessionKey,
        base: State,
        drafts: Sequence[EventDraft],
        *,
        lease: Lease | Claim | None = None,
        lease_seconds: float = 15.0,
        blobs: Mapping[str, str] | None = None,
        idempotency: IdempotencyRecord | None = None,
    ) -> AppendResult:
        """Record events at the end of a session: all of them, with everything below, or none.

        `base` is the state they were decided on: its seq and hash must still be the session's last (seq 0: there must
        be no such session yet). Times are UTC and set here; hashes continue the chain. `blobs` are texts by content
        hash; those already there are left. `idempotency` is kept with the seq of the last event.

        A Lease must still be the session's, and is renewed; a Claim takes it, with the next epoch. A lease is for one
        run after the other of whoever holds it: a claim with which another run than that of `base` becomes the active
        one is granted whoever held the lease, one that goes on with the same run only if nobody does. An append after
        which no run is running gives the lease up and moves the epoch on, whoever appends. Without a lease given,
        the lease is left as it is otherwise. Empty `drafts` are allowed (for a claim or an idempotency record) and obey
        the same rules.

        Raises SeqConflict (also when the session is gone), LeaseLost, IdempotencyMismatch or IdempotencyRecordExists
        when `idempotency.key` was used before, and OutcomeUnknown when the connection broke as it was committed.
        """
        ...

    async def state(self, key: SessionKey, *, at: int | None = None, fresh: bool = True) -> State:
        """The session's state, now or after event `at`. `fresh=False` may answer from memory, and be stale.

        Raises SessionNotFound, and EventNotFound when `at` is not in 1..seq.
        """
        ...

    async def read(
        self,
        key: SessionKey,
        *,
        after: int = 0,
        upto: int | None = None,
        types: Sequence[str] = (),
        limit: int | None = None,
    ) -> list[RecordedEvent]:
        """Events with after < seq <= upto, oldest first. Empty for a session that does not exist."""
        ...

    async def fork(
        self,
        source: SessionKey,
        base: State,
        target: SessionKey,
        drafts: Sequence[EventDraft],
        *,
        redacted: int = 0,
        idempotency: IdempotencyRecord | None = None,
    ) -> AppendResult:
        """Copy the source's events 1..base.seq (and their blobs), hashes included, and append `drafts`: atomically.

        `idempotency` is kept with the target. Raises SeqConflict, which names the session, if the target exists, or the
        source no longer has the event that `base` ends with, or not `redacted` of the events have lost their payload.
        """
        ...

    async def restore(
        self,
        key: SessionKey,
        batches: Callable[[], Iterable[SealedBatch]],
        *,
        finish: Callable[[State], Sequence[EventDraft]],
    ) -> State:
        """Record a session that was recorded elsewhere, event for event as it was: all of it, or nothing.

        `batches` begins anew each time it is called, as it is when a connection breaks; what it raises undoes all. The
        chain is the caller's to verify. What `finish` makes of the last state is recorded with it, as new events.

        Raises SeqConflict if the session exists.
        """
        ...

    async def delete(
        self, key: SessionKey, *, expected: State | None = None, by: str | None = None, reason: str | None = None
    ) -> None:
        """Remove every row of a session. With `expected`, only if that is still its last state (else SeqConflict).

        That it was done, and by whom, is recorded in the tenant's audit log at once. Raises SessionNotFound.
        """
        ...

    async def list_sessions(
        self,
        tenant: str,
        *,
        agent: str | None = None,
        status: SessionStatus | None = None,
        metadata: Mapping[str, str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> SessionPage:
        """Sessions newest first. `metadata` compares top-level values: text as it is, others as their JSON.

        Raises InvalidRequest for a cursor that this store did not make.
        """
        ...

    async def read_blobs(self, key: SessionKey, hashes: Sequence[str]) -> dict[str, str]:
        """The texts that are stored for a session under these content hashes."""
        ...

    async def sum_usage(self, tenant: str, query: UsageQuery) -> UsagePage:
        """Sums of what calls took. Raises InvalidRequest for a cursor that this store did not make."""
        ...

    async def find_idempotency_record(self, key: SessionKey, idempotency_key: str) -> IdempotencyRecord | None:
        """The record of what an idempotency key was used for, if it was."""
        ...

    async def renew(self, leases: Mapping[SessionKey, Lease], *, lease_seconds: float) -> set[SessionKey]:
        """Extend these leases, by the database's clock. Returns the sessions on which they are not held any more."""
        ...

    async def find_abandoned(self, *, limit: int = 100) -> list[SessionKey]:
        """Sessions that somebody has to go on with: those running while nobody holds an unexpired lease on them, and
        those that have become due (see `State.due_at`).
        """
        ...

    async def read_heads(self, keys: Collection[SessionKey]) -> dict[SessionKey, SessionHead]:
        """Where these sessions end by now; those that do not exist are left out."""
        ...

    async def read_head(self, key: SessionKey) -> SessionHead | None:
        """Where one session ends, None if there is no such session."""
        ...

    async def listen(self, on_change: Callable[[SessionKey], None]) -> None:
        """Call `on_change` with each session that another process has just changed, until cancelled.

        These are hints: they may be late, doubled or lost, and where the database cannot give any, none come.
        """

    async def read_sealed(
        self, key: SessionKey, *, after: int = 0, upto: int | None = None, limit: int = 1000
    ) -> list[SealedEvent]:
        """Events with the salts and commitments that their hashes are made of, oldest first: for auditors."""
        ...

    async def ping(self) -> None:
        """Touch the database. Raises StoreUnavailable, or SchemaBehind when migrations are missing."""
        ...

    async def close(self) -> None:
        """Finish the writes that wait, then close every connection."""
        ...


class IdempotencyRecordExists(Exception):
    """The idempotency key was used before for the same request: `idempotency` says what it led to."""

    def __init__(self, record: IdempotencyRecord) -> None:
        super().__init__(record.key)
        self.record = record


class StoreUnavailable(Exception):
    """The database cannot be reached; the message names it without its password."""


class OutcomeUnknown(StoreUnavailable):
    """The connection broke during a commit, which may have worked. `appended` is what it recorded if it did, but for a
    claimed lease, whose epoch nobody knows."""

    appended: AppendResult | None = None


class SchemaBehind(Exception):
    """The database's schema is not this release's; the message says which command changes that."""
