"""Retention: how long sessions are kept after they were last used, by their tenant and metadata."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import tomllib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from swarmkeep.events.codec import parse_timestamp, to_timestamp
from swarmkeep.events.errors import (
    HistoryDamaged,
    InvalidRequest,
    OnHold,
    SeqMismatch,
    SessionBusy,
    SessionNotFound,
)
from swarmkeep.runs.sessions import delete_session
from swarmkeep.store.archives import ArchiveOutage
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import (
    BAD_CURSOR,
    ArchiveUnavailable,
    SessionKey,
    encode_cursor,
    label_of,
    labels_of,
    parse_cursor,
    utc_now,
)

log = logging.getLogger(__name__)

_DURATION = re.compile(r"([1-9][0-9]{0,4})([hdwy])", re.ASCII)
_HOURS = {"h": 1, "d": 24, "w": 24 * 7, "y": 24 * 365}
_MAX_RULES = 100
_PAGE_SESSIONS = 200
_EVERY_SECONDS = 3600.0
# So that servers that were started together do not do the same at once.
_SPREAD_SECONDS = 60.0
_FORM = 'write it as in 180d, or as rules: [{"metadata": {"class": "chat"}, "keep": "30d"}, {"keep": "2y"}]'


class RetentionError(Exception):
    """The setting cannot be used; the sentence says why."""


class RetentionRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long sessions of a tenant (null: of each) with this metadata are kept. `keep`: as 180d; null: for ever."""

    keep: str | None
    tenant: str | None = None
    metadata: dict[str, str] = {}

    @property
    def time(self) -> timedelta | None:
        if self.keep is None:
            return None
        found = _DURATION.fullmatch(self.keep)
        if found is None:
            raise RetentionError(f"SWARMKEEP_RETENTION: {self.keep!r} is no time; {_FORM}")
        return timedelta(hours=int(found[1]) * _HOURS[found[2]])

    @property
    def labels(self) -> frozenset[bytes]:
        return frozenset(label_of(key, value) for key, value in self.metadata.items())


Retention = tuple[RetentionRule, ...]
"""Rules, of which the first that fits a session counts. Without one, it is kept."""


def read_retention(source: str | None) -> Retention:
    """The rules of a setting: a time, JSON, or a file (`.json`, `.toml` with `rules`). Raises RetentionError."""
    text = (source or "").strip()
    if not text:
        return ()
    if _DURATION.fullmatch(text):
        return (RetentionRule(keep=text),)
    is_text = text.startswith(("[", "{"))
    try:
        raw = text.encode() if is_text else Path(text).read_bytes()
        document: Any
        if text.endswith(".toml") and not is_text:
            document = tomllib.loads(raw.decode()).get("rules")
        else:
            document = msgspec.json.decode(raw)
        rules = msgspec.convert(document, tuple[RetentionRule, ...])
    except OSError as error:
        raise RetentionError(f"SWARMKEEP_RETENTION: {text} cannot be read: {error.strerror}; {_FORM}") from None
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise RetentionError(f"SWARMKEEP_RETENTION: {error}; {_FORM}") from None
    if len(rules) > _MAX_RULES:
        raise RetentionError(f"SWARMKEEP_RETENTION: there are more than {_MAX_RULES} rules")
    for rule in rules:
        # Wrong ones are to be told of at the start, and not at night.
        _ = rule.time
    return rules


class DueSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session that goes."""

    session_id: str
    """The session."""
    seq: int
    """Its last event."""
    updated_at: str
    """When that was recorded."""
    goes_at: str
    """When it goes."""
    keep: str
    """How long its rule keeps it."""
    held: bool
    """It is on hold, and stays until that is lifted."""


class DuePage(msgspec.Struct, frozen=True, kw_only=True):
    data: list[DueSession]
    next_cursor: str | None


async def list_due(
    store: SqlStore, tenant: str, retention: Retention, *, before: datetime, limit: int, cursor: str | None = None
) -> DuePage:
    """A page of the sessions that go before a time, rule by rule, those that were used last first.

    A page may be short, or empty, while there are more. Raises InvalidRequest for a cursor of another list.
    """
    rules = [rule for rule in retention if rule.tenant in (None, tenant)]
    number, inner = _parse_cursor(cursor, len(rules))
    while number < len(rules) and rules[number].time is None:
        number += 1
    if number >= len(rules):
        return DuePage(data=[], next_cursor=None)
    rule, kept = rules[number], rules[number].time
    assert kept is not None
    assert rule.keep is not None
    page = await store.list_sessions(
        SessionFilter(
            tenant, status="idle", order="activity", metadata=rule.metadata, active_before=subtract(before, kept)
        ),
        limit=min(limit, _PAGE_SESSIONS),
        cursor=inner,
    )
    earlier = [other.labels for other in rules[:number]]
    due = []
    for session in page.sessions:
        labels = set(labels_of(session.metadata))
        if any(wanted <= labels for wanted in earlier) or await _goes_with_another(store, tenant, session.parent):
            continue
        used = parse_timestamp(session.updated_at)
        assert used is not None
        due.append(
            DueSession(
                session_id=session.id,
                seq=session.seq,
                updated_at=session.updated_at,
                goes_at=to_timestamp(used + kept),
                keep=rule.keep,
                held=session.hold is not UNSET,
            )
        )
    following = None
    if page.next_cursor is not None:
        following = encode_cursor([str(number), page.next_cursor])
    elif number + 1 < len(rules):
        following = encode_cursor([str(number + 1), ""])
    return DuePage(data=due, next_cursor=following)


def subtract(at: datetime, kept: timedelta) -> str:
    """The time so long before; of one before all times, the first."""
    try:
        return to_timestamp(at - kept)
    except OverflowError:
        return to_timestamp(datetime(1, 1, 1, tzinfo=UTC))


def _parse_cursor(cursor: str | None, count: int) -> tuple[int, str | None]:
    if cursor is None:
        return 0, None
    number, inner = parse_cursor(cursor, 2)
    if not (number.isascii() and number.isdecimal() and len(number) < 4 and int(number) < count):
        raise InvalidRequest(BAD_CURSOR, "/query/cursor")
    return int(number), inner or None


async def _goes_with_another(store: SqlStore, tenant: str, parent: Any) -> bool:
    """Tell if it was made to ask another agent, and the session that asked is still there: that one takes it along."""
    return parent is not UNSET and await store.read_head(SessionKey(tenant, parent.session_id)) is not None


async def apply_retention(store: SqlStore, retention: Retention) -> int:
    """Delete the sessions of all tenants that are due; return how many. Those on hold, or in use, are left.

    Several servers may do so at once. Each deletion is an entry of the audit log, which names the rule's time. While
    the archive does not answer, what is archived is left, too.
    """
    count = 0
    outage = ArchiveOutage(store)
    for tenant in await store.list_totals():
        cursor: str | None = None
        while True:
            page = await list_due(store, tenant, retention, before=utc_now(), limit=_PAGE_SESSIONS, cursor=cursor)
            for due in page.data:
                key = SessionKey(tenant, due.session_id)
                with contextlib.suppress(ArchiveUnavailable):
                    count += not due.held and await outage.attempt(key, partial(_delete, store, key, due))
            cursor = page.next_cursor
            if cursor is None:
                break
    if outage.error is not None:
        log.warning("sessions that are due to go are archived, and kept until the archive answers: %s", outage.error)
    return count


async def _delete(store: SqlStore, key: SessionKey, due: DueSession) -> bool:
    try:
        # Only as it was when it was found to be due.
        await delete_session(store, key, if_match=due.seq, by="retention", reason=f"kept for {due.keep}")
    except (SessionNotFound, SeqMismatch, SessionBusy, OnHold):
        return False
    except HistoryDamaged:
        log.warning("session %s is due to go, but does not verify: it is kept", key.id)
        return False
    return True


@asynccontextmanager
async def applying_retention(store: SqlStore, retention: Retention) -> AsyncIterator[None]:
    """While this is open, what is due is deleted: soon, and then every hour."""
    if not retention:
        yield
        return
    async with repeating_hourly(lambda: apply_retention(store, retention), "retention: %d sessions were deleted"):
        yield


@asynccontextmanager
async def repeating_hourly(work: Callable[[], Awaitable[int]], done: str) -> AsyncIterator[None]:
    """While this is open, do something to old sessions: soon, and then every hour. `done` is the log line, with a place
    for how many there were."""
    task = asyncio.create_task(_repeat_hourly(work, done))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _repeat_hourly(work: Callable[[], Awaitable[int]], done: str) -> None:
    while True:
        try:
            if count := await work():
                log.info(done, count)
        except Exception:
            # The database, or an object store, may be away; there is a next time.
            log.exception("hourly work on old sessions failed (%s)", done.partition(":")[0])
        await asyncio.sleep(_EVERY_SECONDS + random.uniform(0, _SPREAD_SECONDS))


async def iterate_due(
    store: SqlStore, tenant: str, retention: Retention, *, before: datetime
) -> AsyncGenerator[DueSession]:
    cursor: str | None = None
    while True:
        page = await list_due(store, tenant, retention, before=before, limit=_PAGE_SESSIONS, cursor=cursor)
        for due in page.data:
            yield due
        cursor = page.next_cursor
        if cursor is None:
            return
