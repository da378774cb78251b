"""The log of events, which everything else about a session is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from swarmkeep.domain.envelope import EventDraft, RecordedEvent
from swarmkeep.domain.state import State
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.ports.audit import AuditAction
from swarmkeep.store.ports.idempotency import IdempotencyRecord
from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.ports.leases import Claim, Lease, SessionHead
from swarmkeep.store.ports.totals import StorageQuota


class AppendResult(msgspec.Struct, frozen=True):
    """The events that an append recorded, the state after it, and the lease if one was claimed or given."""

    events: list[RecordedEvent]
    state: State
    lease: Lease | None


class SealedBatch(msgspec.Struct, frozen=True):
    """Some events of a session that was recorded elsewhere, oldest first, and the texts and files
    that they name by their hashes."""

    events: Sequence[SealedEvent]
    blobs: Mapping[str, str] = {}
    files: Mapping[str, bytes] = {}


class Restoration(msgspec.Struct, frozen=True):
    """A session that was recorded elsewhere and is to be recorded here, event for event as it was.

    `batches` and `finish` are called once, in a thread, before the transaction. What `finish` makes of the last state
    is recorded with the session, as new events. The chain is the caller's to verify.
    """

    key: SessionKey
    batches: Callable[[], Iterable[SealedBatch]]
    finish: Callable[[State], Sequence[EventDraft]]


def is_full_page(page: Sequence[RecordedEvent], limit: int, max_bytes: int) -> bool:
    """Whether a page that was read with these limits ended at one of them, so that there may be more."""
    return len(page) >= limit or sum(len(event.payload.encode()) for event in page) >= max_bytes


class EventReader(Protocol):
    """Reads of the log."""

    async def state(self, key: SessionKey, *, at: int | None = None, fresh: bool = True) -> State:
        """The session's state, now or after event `at`. `fresh=False` may answer from memory, and be stale.

        What is read for it is checked: `State.damage` of the last state says what is not as it was recorded. The state
        `at` an event is only to be shown. Raises SessionNotFound, EventNotFound when `at` is not in 1..seq, and
        HistoryDamaged if there is nothing left to show.
        """
        ...

    async def sound_state(self, key: SessionKey, *, at: int | None = None) -> State:
        """The state to go on from, checked with all that follows event `at`. Raises HistoryDamaged, too."""
        ...

    async def check(self, key: SessionKey) -> State:
        """The state, read anew and checked with all texts and files; what is found is remembered, or forgotten.

        Raises SessionNotFound, and HistoryDamaged if there is nothing left to show.
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
        max_bytes: int | None = None,
    ) -> list[RecordedEvent]:
        """Events with after < seq <= upto, oldest first. Empty for a session that does not exist.

        With `max_bytes` they end with the one whose payload fills that many (see `is_full_page`).
        """
        ...

    async def read_head(self, key: SessionKey) -> SessionHead | None:
        """Where one session ends, None if there is no such session."""
        ...

    async def read_blobs(self, key: SessionKey, hashes: Sequence[str]) -> dict[str, str]:
        """The texts that are stored for a session under these content hashes."""
        ...

    async def read_files(self, key: SessionKey, hashes: Sequence[str], *, fresh: bool = True) -> dict[str, bytes]:
        """The content of a session's files by hash, as it is stored. With `fresh=False` it may be from memory, for what
        a state names, and is only what its hash names."""
        ...

    async def read_sealed(
        self,
        key: SessionKey,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        max_bytes: int | None = None,
    ) -> list[SealedEvent]:
        """Events with the salts and commitments that their hashes are made of, oldest first: for auditors."""
        ...

    async def read_redacted_payloads(self, key: SessionKey) -> dict[int, str]:
        """The events that have lost their payload, and the texts that stand in its place."""
        ...


class EventLog(EventReader, Protocol):
    """The log. Each call is atomic and, once it returns, durable; nothing is held open between calls."""

    async def append(
        self,
        key: SessionKey,
        base: State,
        drafts: Sequence[EventDraft],
        *,
        lease: Lease | Claim | None = None,
        lease_seconds: float = 15.0,
        blobs: Mapping[str, str | bytes] | None = None,
        idempotency: IdempotencyRecord | None = None,
        quota: StorageQuota | None = None,
    ) -> AppendResult:
        """Record events at the end of a session: all of them, with everything below, or none.

        `base` is the state they were decided on: its seq and hash must still be the session's last (seq 0: there must
        be no such session yet). Times are UTC and set here; hashes continue the chain. `blobs` are texts, and
        files as bytes, by content hash; those already there are left. `idempotency` is kept with the seq of the
        last event; one without a run that makes a session makes no other one of that tenant.

        A Lease must still be the session's, and is renewed; a Claim takes it, with the next epoch. A lease is for one
        run after the other of whoever holds it: a claim with which another run than that of `base` becomes the active
        one is granted whoever held the lease, one that goes on with the same run only if nobody does. An append after
        which no run is running gives the lease up and moves the epoch on, whoever appends. Without a lease given,
        the lease is left as it is otherwise. Empty `drafts` are allowed (for a claim or an idempotency record) and obey
        the same rules.

        With a `quota` the tenant may have no more than that afterwards: else QuotaExceeded, and nothing is recorded.

        Raises HistoryDamaged, SeqConflict (also when the session is gone), LeaseLost, IdempotencyMismatch or
        IdempotencyRecordExists when `idempotency.key` was used before, and OutcomeUnknown when the connection broke as
        it was committed.
        """
        ...

    async def fork(
        self,
        source: SessionKey,
        base: State,
        target: SessionKey,
        drafts: Sequence[EventDraft],
        *,
        redacted: int = 0,
        lease: Claim | None = None,
        blobs: Mapping[str, str | bytes] | None = None,
        idempotency: IdempotencyRecord | None = None,
        quota: StorageQuota | None = None,
    ) -> AppendResult:
        """Copy the source's events 1..base.seq (and their blobs), hashes included, and append `drafts`: atomically.

        The rest is the target's, as in an append. Raises SeqConflict, which names the session, if the target exists,
        or the source no longer has the event that `base` ends with, or not `redacted` of the events have lost their
        payload; QuotaExceeded, IdempotencyMismatch, IdempotencyRecordExists and OutcomeUnknown as `append` does.

        Large files are copied before, in several transactions: others write meanwhile.
        """
        ...

    async def remove_abandoned_copies(self) -> None:
        """Remove the files that were copied for forks that were never recorded, because their process died. A fork that
        is being made loses what it has copied so far, too, and copies it again.
        """
        ...

    async def restore(
        self, sessions: Iterable[Restoration], *, action: AuditAction, quota: StorageQuota | None = None
    ) -> list[SessionHead | None]:
        """Record sessions that were recorded elsewhere, each of them whole or not at all, in the order given.

        They are of one tenant, and each is named once.
        A few share a transaction, which is short: others write meanwhile. `action` is recorded in the tenant's audit
        log for each. Gives where each ends, None for one that is here already, which is left as it is. What is raised
        ends it: of the sessions before that none is lost, and those after it are not recorded.

        Raises QuotaExceeded, and what `sessions`, `batches` and `finish` raise.
        """
        ...

    async def redact(
        self,
        key: SessionKey,
        log: Sequence[SealedEvent],
        stand_ins: Mapping[int, str],
        draft: EventDraft,
        *,
        idempotency: IdempotencyRecord | None = None,
    ) -> AppendResult:
        """Put texts in the place of payloads, for good, and append `draft`, which says so: atomically.

        `log` is the whole session, as it was decided on. What else holds a copy in it goes too: salts, texts that no
        event names any more, digests of requests. Raises SeqConflict if the session has moved on.
        """
        ...

    async def delete(
        self, key: SessionKey, *, expected: State | None = None, by: str | None = None, reason: str | None = None
    ) -> None:
        """Remove every row of a session. With `expected`, only if that is still its last state (else SeqConflict).

        That it was done, and by whom, is recorded in the tenant's audit log at once. Raises SessionNotFound.
        """
        ...
