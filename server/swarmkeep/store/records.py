"""The log of events, which everything else about a session is made from."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.events.codec import MalformedJson, decode, encode, encode_text
from swarmkeep.events.errors import InvalidRequest, QuotaExceeded
from swarmkeep.events.facts import EventDraft, Parent, RecordedEvent
from swarmkeep.events.state import SessionStatus, State
from swarmkeep.events.usage import UsagePage, UsageQuery
from swarmkeep.events.views import ListedSession
from swarmkeep.events.wording import pluralize
from swarmkeep.events.words import Term
from swarmkeep.store.contracts import (
    DEFAULT_TENANT,
    AuditAction,
    IdempotencyRecord,
    IdempotencyRecordExists,
    IdempotencyRecords,
    SessionKey,
)
from swarmkeep.store.hashing import SealedEvent

# Leases: the right to advance a session's run, and the runs that no process advances.


class Lease(msgspec.Struct, frozen=True):
    """The right to advance a session's run, until it expires or is taken over (then the epoch moves on)."""

    owner: str
    epoch: int


class Claim(msgspec.Struct, frozen=True):
    """A request for the lease, granted with an append if no other process holds one that has not expired."""

    owner: str
    lease_seconds: float


class SessionHead(msgspec.Struct, frozen=True):
    """The end of a session's log, and the lease on it, be it expired or not.

    `partial` is empty once a process wants to know the model's text in its run so far, and then the answer.
    """

    seq: int
    hash: str
    lease: Lease | None = None
    partial: str | None = None

    @property
    def is_partial_wanted(self) -> bool:
        return self.partial == ""


class Leases(Protocol):
    """The leases of all sessions."""

    async def renew(self, leases: Mapping[SessionKey, Lease], *, lease_seconds: float) -> set[SessionKey]:
        """Extend these leases, by the database's clock. Returns the sessions on which they are not held any more."""
        ...

    async def renew_from_anywhere(self, leases: Mapping[SessionKey, Lease], *, lease_seconds: float) -> None:
        """Extend these leases, those of them that are still held, from another event loop than the store's."""
        ...

    async def find_abandoned(self, *, limit: int = 100) -> list[SessionKey]:
        """Find sessions that are running without an unexpired lease on them: of each tenant in its turn, the
        longest abandoned first.
        """
        ...

    async def ask_for_partial(self, key: SessionKey, owner: str) -> bool:
        """Ask the process that advances a session what its model has said so far: `SessionHead.partial` is the answer.

        False if no process but `owner`, who asks, advances it. The wish ends with the run, or when it is taken over.
        """
        ...

    async def answer_partial(self, key: SessionKey, lease: Lease, text: str) -> None:
        """Answer that, if it is still asked and the lease is still held."""
        ...

    async def find_due(self, *, limit: int = 100) -> list[SessionKey]:
        """Sessions that have become due (see `State.due_at`): of each tenant in its turn, the longest due first."""
        ...

    async def read_clock(self) -> datetime:
        """The present in UTC by the database's clock: the only one that all servers share."""
        ...

    async def read_heads(self, keys: Collection[SessionKey]) -> dict[SessionKey, SessionHead]:
        """Read where these sessions end by now; those that do not exist are left out."""
        ...


# Count the storage and usage of a tenant as they are recorded, and limit how much of it there may be.


class TenantTotals(msgspec.Struct, frozen=True, kw_only=True):
    """`bytes`: of the events' payloads and of the texts that they name. `tokens`: of the model calls of `day`, in UTC.

    A deletion gives sessions and bytes back, but not tokens. `seconds_left`: until that day is over.
    """

    sessions: int
    bytes: int
    day: str
    tokens: int
    seconds_left: int = 0


class StorageQuota(msgspec.Struct, frozen=True, kw_only=True):
    """The number of sessions and bytes that a tenant may have: what goes past them is refused as it is recorded.

    Exact on SQLite. On PostgreSQL writes that are made at the same moment do not see one another, so that as many may
    pass as a server has connections.
    """

    max_sessions: int
    max_bytes: int

    def check(self, totals: TenantTotals, *, is_new_session: bool) -> None:
        """Raises QuotaExceeded if these are more."""
        if is_new_session and totals.sessions > self.max_sessions:
            raise QuotaExceeded(
                f"the tenant has {pluralize(self.max_sessions, 'session')} and may not have more "
                "(SWARMKEEP_MAX_SESSIONS); delete some, or have the limit raised"
            )
        if totals.bytes > self.max_bytes:
            raise QuotaExceeded(
                f"the tenant would have {totals.bytes} bytes stored, of {self.max_bytes} (SWARMKEEP_MAX_STORED_BYTES); "
                "delete sessions, or have the limit raised"
            )


class TotalsDrift(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant whose counters are not what its rows say."""

    tenant: str
    counted_sessions: int
    sessions: int
    counted_bytes: int
    bytes: int


class TotalsReader(Protocol):
    """The counts by tenant."""

    async def read_totals(self, tenant: str) -> TenantTotals:
        """The tenant's totals; the tokens are those of today."""
        ...


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
    """Tell if a page that was read with these limits ended at one of them, so that there may be more."""
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
        """The state, read again and checked with all texts and files; what is found is remembered, or forgotten.

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
        """Read where one session ends, None if there is no such session."""
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
        be no such session yet). Times are UTC and set here; hashes continue the chain. `blobs` are texts, and files as
        bytes, by content hash; those already there are left. `idempotency` is kept with the seq of the last event; one
        without a run that makes a session makes no other one of that tenant.

        A Lease must still be the session's, and is renewed; a Claim takes it, with the next epoch. A lease is for its
        holder's runs, one after the other: a claim with which another run than that of `base` becomes the active one is
        granted over any holder of the lease, one that goes on with the same run only if there is none. An append after
        which no run is running gives the lease up and moves the epoch on, by any process. Without a lease given, the
        lease is left as it is otherwise. Empty `drafts` are allowed (for a claim or an idempotency record) and obey the
        same rules.

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


# Indexes of the log: the session list, and the usage of model and tool calls.

SessionOrder = Literal["created", "activity"]
EndedRunStatus = Literal["completed", "failed", "cancelled", "interrupted"]


CountedStatus = Literal["running", "waiting"]
CountedEnd = Literal["failed", "interrupted"]
# Who only looks on wants no more counted.
MANY_BEHIND = 1000


class SessionCount(msgspec.Struct, frozen=True, kw_only=True):
    """`more`: there are more, which are not counted."""

    count: int
    more: bool


class SessionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many sessions are busy, by their status, in how many the last run failed or was interrupted, and how many
    were set aside because they are damaged."""

    status: dict[CountedStatus, SessionCount]
    last_run: dict[CountedEnd, SessionCount]
    damaged: SessionCount


class SessionPage(msgspec.Struct, frozen=True):
    sessions: list[ListedSession]
    next_cursor: str | None


class SessionIndex(Protocol):
    """The list of a tenant's sessions."""

    async def list_sessions(
        self,
        tenant: str,
        *,
        agent: str | None = None,
        status: SessionStatus | None = None,
        last_run: EndedRunStatus | None = None,
        order: SessionOrder = "created",
        metadata: Mapping[str, str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
        include_context: bool = False,
        max_bytes: int = sys.maxsize,
        children: bool = True,
        active_after: str | None = None,
        active_before: str | None = None,
        damaged: bool | None = None,
        terms: tuple[Term, ...] | None = None,
    ) -> SessionPage:
        """Sessions, the latest first by the time of their creation or of what happened last in them: while a run is
        running that is its beginning. A session in which something happens moves, so that pages by activity may show it
        twice or not at all. `last_run` is how the last run ended, of sessions in which none is active. `metadata`
        compares top-level values: text as it is, others as their JSON.

        Their context variables are read only with `include_context`. A page ends early once it has
        `max_bytes` of JSON. Without `children`, those that agents began to ask others are left out. The times are of
        what happened last, `active_before` not included. With `terms`, only those in which one message, or id and
        metadata, have all of them, as far as they are indexed; each says where.

        Raises InvalidRequest for a cursor that this store did not make.
        """
        ...

    async def count_sessions(self, tenant: str, *, children: bool = False, most: int = 1_000) -> SessionCounts:
        """Count the sessions that are busy or in trouble. Of each kind `most` are looked at, and without `children`
        those of them left out that agents began to ask others."""
        ...

    async def list_forks(
        self, key: SessionKey, *, limit: int = 50, cursor: str | None = None, max_bytes: int = sys.maxsize
    ) -> SessionPage:
        """The sessions that were forked from this one itself, the latest first; none if there is no such session.

        A page may have fewer than `limit`, or none, and yet a cursor: forks of forks are passed over.
        Raises InvalidRequest for a cursor that this store did not make.
        """
        ...


class SearchIndexer(Protocol):
    """The index of words, which follows behind what is recorded."""

    async def index_some(self) -> int:
        """Index the next few sessions; returns how many there were."""
        ...

    async def count_sessions_behind(self, most: int | None = MANY_BEHIND) -> int:
        """Count the sessions that are not found yet by all that is in them; no more than `most` are counted."""
        ...

    async def void_search_index(self) -> None:
        """Empty the index, so that all of it is made again."""
        ...


class UsageIndex(Protocol):
    """Sums over a tenant's model and tool calls."""

    async def sum_usage(self, tenant: str, query: UsageQuery) -> UsagePage:
        """Sums of what calls took. Raises InvalidRequest for a cursor that this store did not make."""
        ...


# The runs of a tenant that have begun and not ended, over all of its sessions.

ActiveStatus = Literal["running", "waiting"]


class ActiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is active or waits for an answer, with its session.

    `since`: when it began, or continued after a wait; for a waiting run, when something was last recorded. `seq` is the
    session's last. `server` is the id of the process that has the session's lease, made as the process starts; null
    while none has it. `lease_seconds` is how long that lease lasts if it is not renewed, below 0 once it has expired.
    `lease_epoch` counts how often the lease has moved to another process. Calls and tokens are the run's own.
    `queued_runs` is how many runs wait in the session for their turn.
    """

    id: str
    session_id: str
    title: str | None
    status: ActiveStatus
    agent: str
    since: str
    seq: int
    server: str | None
    lease_epoch: int
    lease_seconds: float | None
    queued_runs: int
    model_calls: int
    tool_calls: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    parent: Parent | UnsetType = UNSET


class ActiveRunPage(msgspec.Struct, frozen=True):
    runs: list[ActiveRun]
    next_cursor: str | None


class ActiveRuns(Protocol):
    """The list of a tenant's active runs."""

    async def list_active_runs(
        self,
        tenant: str,
        status: ActiveStatus,
        *,
        limit: int = 50,
        cursor: str | None = None,
        max_bytes: int = sys.maxsize,
    ) -> ActiveRunPage:
        """Runs in that state, those first whose sessions were made last. A page may have fewer than `limit`, or none,
        and yet a cursor.

        Raises InvalidRequest for a cursor that this store did not make.
        """
        ...


# Cursors of lists: what the last row of a page is sorted by, in a form that callers pass back untouched.

BAD_CURSOR = "the cursor is not valid for this list; use `next_cursor` from the previous page"
_TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)


def encode_cursor(values: Sequence[str]) -> str:
    return base64.urlsafe_b64encode(encode(list(values))).decode().rstrip("=")


def parse_cursor(cursor: str, count: int) -> list[str]:
    """The values of the last row.

    Raises InvalidRequest for text that `encode_cursor` did not make of so many values.
    """
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        values = decode(raw, list[str])
    except (ValueError, binascii.Error, MalformedJson, msgspec.ValidationError):
        raise InvalidRequest(BAD_CURSOR, "/cursor") from None
    if len(values) != count or encode_cursor(values) != cursor:
        raise InvalidRequest(BAD_CURSOR, "/cursor")
    return values


def make_session_cursor(place: tuple[str, str], order: str) -> str:
    """The cursor behind a session. It says of which order it is, but for that of their creation."""
    return encode_cursor(place if order == "created" else (*place, order))


def parse_session_cursor(cursor: str | None, order: str) -> tuple[str, str] | None:
    """The time and id of the last session; None for the first page.

    Raises InvalidRequest, also for a cursor of another order.
    """
    if cursor is None:
        return None
    at, session_id, *named = parse_cursor(cursor, 2 if order == "created" else 3)
    # Of a session that a release without that order has written, the time of activity is not known.
    if named not in ([], [order]) or not (_TIME_PATTERN.fullmatch(at) or (named and not at)):
        raise InvalidRequest(BAD_CURSOR, "/cursor")
    return at, session_id


# Errors of a store. No message shows a password.

UPGRADE_HINT = "run `swarmkeep db upgrade`"

TOO_SLOW_DETAIL = "this took too long in the database; ask for less at once, or use fewer filters"


class StoreUnavailable(Exception):
    """The database cannot be reached; the message names it without its password."""


class OutcomeUnknown(StoreUnavailable):
    """The connection broke during a commit, which may have worked. `appended` is what it recorded if it did, but for a
    claimed lease, whose epoch is unknown."""

    appended: AppendResult | None = None


class SchemaBehind(Exception):
    """The database's schema is not this release's; the message says which command changes that."""


class NoSuchRevision(Exception):
    """There is no such revision of the schema; the message says which ones there are."""


def missing_schema_error(display: str) -> SchemaBehind:
    return SchemaBehind(f"the schema of the database at {display} is not that of this release; {UPGRADE_HINT}")


# Labels: digests of metadata entries, by which the session list is filtered.


def label_of(key: str, text: str) -> bytes:
    """The label of a metadata key whose value reads as `text`. Labels are compared, never read back."""
    return hashlib.sha256(encode(key) + b"\0" + text.encode("utf-8", "surrogatepass")).digest()


def labels_of(metadata: Mapping[str, Any]) -> list[bytes]:
    """One label per top-level value: text as it is, anything else as its JSON."""
    return [label_of(key, value if isinstance(value, str) else encode_text(value)) for key, value in metadata.items()]


# Change notifications between the processes that share a database.


class ChangeFeed(Protocol):
    """The changes of sessions by other processes."""

    async def listen(self, on_change: Callable[[SessionKey], None]) -> None:
        """Call `on_change` with each session that another process has just changed, until cancelled.

        These are hints: they may be late, doubled or lost, and where the database cannot give any, none come.
        """


# Define the clock of a store.

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


# The store's port, a Protocol for each subject, and all that the engine needs of them as one.

__all__ = [
    "DEFAULT_TENANT",
    "ActiveRuns",
    "AppendResult",
    "ChangeFeed",
    "Claim",
    "EventLog",
    "EventReader",
    "EventStore",
    "IdempotencyRecord",
    "IdempotencyRecordExists",
    "IdempotencyRecords",
    "Lease",
    "Leases",
    "OutcomeUnknown",
    "Restoration",
    "SchemaBehind",
    "SealedBatch",
    "SearchIndexer",
    "SessionHead",
    "SessionIndex",
    "SessionKey",
    "SessionPage",
    "StorageQuota",
    "StoreUnavailable",
    "TenantTotals",
    "TotalsReader",
    "UsageIndex",
]


class EventStore(
    EventLog,
    Leases,
    SessionIndex,
    ActiveRuns,
    SearchIndexer,
    UsageIndex,
    TotalsReader,
    IdempotencyRecords,
    ChangeFeed,
    Protocol,
):
    """A database of sessions. Each call is atomic and, once it returns, durable."""

    async def ping(self) -> None:
        """Touch the database; once a write has failed, try whether it takes any.

        Raises StoreUnavailable, or SchemaBehind when migrations are missing.
        """
        ...

    async def close(self) -> None:
        """Finish the writes that wait, then close every connection."""
        ...
