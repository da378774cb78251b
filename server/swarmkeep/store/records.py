"""The values that the store takes and gives, and its errors. Nothing here loads a database."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from swarmkeep.events.codec import MalformedJson, decode, encode, encode_text
from swarmkeep.events.errors import InvalidRequest, QuotaExceeded
from swarmkeep.events.facts import EventDraft, RecordedEvent
from swarmkeep.events.state import State
from swarmkeep.events.views import ListedSession
from swarmkeep.events.wording import pluralize
from swarmkeep.store.hashing import SealedEvent

DEFAULT_TENANT = "default"


class SessionKey(msgspec.Struct, frozen=True):
    """A session's full name. What belongs to one tenant does not exist for another."""

    tenant: str
    id: str


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


class AuditAction(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is done to a session from outside: for the record of it. `by` is None if that is unknown.

    `details` are what else there is to say of this type of action.
    """

    type: str
    by: str | None = None
    reason: str | None = None
    details: Mapping[str, Any] = {}


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


SessionOrder = Literal["created", "activity", "oldest_activity"]

CountedStatus = Literal["running", "waiting"]
CountedEnd = Literal["failed", "interrupted"]


class SessionCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many sessions there are of a kind."""

    count: int
    """At most 1,000 are counted."""
    more: bool
    """There are others."""


class SessionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many sessions may need attention."""

    status: dict[CountedStatus, SessionCount]
    """Those that are busy, by their status."""
    last_run: dict[CountedEnd, SessionCount]
    """Those whose last run failed or was interrupted."""
    damaged: SessionCount
    """Those that were set aside because they do not verify."""


class SessionPage(msgspec.Struct, frozen=True):
    sessions: list[ListedSession]
    next_cursor: str | None


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


class ArchiveUnavailable(StoreUnavailable):
    """The archive cannot be reached, or is not the one that was there."""


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


Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)
