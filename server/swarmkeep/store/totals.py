"""Count each tenant's storage and usage: counters that move in the transaction of what they count.

A tenant's counters are spread over slices, by session: on PostgreSQL an append holds the row of its slice until it is
committed, and those of other sessions are not to wait for it. The counting transaction holds the session's row by then,
and takes the audit log's later, so that no two wait for one another.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from swarmkeep.events.facts import CompactionSummarised, MessageAdded, RecordedEvent, SessionForked
from swarmkeep.events.records import CompletionRecord, read_count
from swarmkeep.store.records import Clock, SessionKey, StorageQuota, TenantTotals, utc_now
from swarmkeep.store.statements import Database, OnDatabase, PreparedStatement, build_insert, prepare_insert_if_absent
from swarmkeep.store.tables import (
    blobs,
    database_tomorrow,
    events,
    files,
    of_bound_session,
    of_session,
    session_columns,
    sessions,
    stored_bytes,
    totals,
    usage,
)

# Usage of model and tool calls: an index of the events, one row for each call, written with the event.

Row = dict[str, Any]
# Longer than any call can take.
_MAX_MILLISECONDS = float(2**40)

SUMS = (
    "model_calls", "tool_calls", "prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens",
    "reasoning_tokens", "model_ms", "tool_ms",
)  # fmt: skip
_INSERT = PreparedStatement.of_rows(insert(usage))


def record_usage(connection: Connection, key: SessionKey, events: Iterable[RecordedEvent]) -> list[Row]:
    """Write the rows of these events, which have just been recorded, and return them."""
    rows: list[Row] = []
    for event in events:
        if isinstance(event.fact, SessionForked):
            rows.clear()
            mine = of_session(usage, key)
            connection.execute(delete(usage).where(*mine))
        elif (row := make_usage_row(event)) is not None:
            rows.append({**session_columns(key), **row})
    insert_usage(connection, rows)
    return rows


def insert_usage(connection: Connection, rows: Sequence[Row]) -> None:
    if rows:
        _INSERT.insert_many(connection, rows)


def rewrite_usage(connection: Connection, key: SessionKey, events: Iterable[RecordedEvent]) -> None:
    """Rewrite the rows of these events, as far as they have some."""
    for event in events:
        if _DELETE_CALL.execute(connection, {**session_columns(key), "at_seq": event.seq}):
            record_usage(connection, key, [event])


_DELETE_CALL = PreparedStatement(delete(usage).where(*of_bound_session(usage), usage.c.seq == bindparam("at_seq")))


def make_usage_row(event: RecordedEvent) -> Row | None:
    """The row of an event that is a call; None for any other."""
    fact = event.fact
    completion = fact.completion if isinstance(fact, MessageAdded | CompactionSummarised) else None
    tool = fact.tool if isinstance(fact, MessageAdded) else None
    if completion is None and tool is None:
        return None
    row: Row = {"seq": event.seq, "day": event.at[:10], "run_id": event.run_id or "", "agent": event.agent, "model": ""}
    row |= dict.fromkeys(SUMS, 0)
    if completion is not None:
        row |= _count_model_call(completion)
    elif tool is not None:
        row |= {"tool_calls": 1, "tool_ms": _read_duration(tool.duration_ms)}
    return row


def _count_model_call(completion: CompletionRecord) -> Row:
    reported = completion.usage or {}
    requested = completion.request.params.get("model") if completion.request is not None else None
    return {
        "model": completion.model or (requested if isinstance(requested, str) else "") or "",
        "model_calls": 1,
        "prompt_tokens": _read_count(reported, "prompt_tokens"),
        "completion_tokens": _read_count(reported, "completion_tokens"),
        "total_tokens": _read_count(reported, "total_tokens"),
        "cached_tokens": _read_count(reported.get("prompt_tokens_details"), "cached_tokens"),
        "reasoning_tokens": _read_count(reported.get("completion_tokens_details"), "reasoning_tokens"),
        "model_ms": _read_duration(completion.duration_ms),
    }


def _read_count(reported: object, name: str) -> int:
    return read_count(reported.get(name)) if isinstance(reported, dict) else 0


def _read_duration(milliseconds: float) -> float:
    return max(0.0, min(float(milliseconds), _MAX_MILLISECONDS))


# All that takes bytes. Of a column of bytes neither database reads the content to tell its length.
SIZES: tuple[tuple[Table, ColumnElement[int]], ...] = (
    (events, func.sum(stored_bytes(events.c.payload))),
    (blobs, func.sum(stored_bytes(blobs.c.text))),
    (files, func.sum(func.length(files.c.content))),
)
_SLICES = 64
_NO_DAY = ""


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """By how much a tenant's totals change."""

    sessions: int = 0
    bytes: int = 0
    day: str = _NO_DAY
    tokens: int = 0


class TotalsDrift(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant whose counters are not what its rows say."""

    tenant: str
    counted_sessions: int
    sessions: int
    counted_bytes: int
    bytes: int


class SqlTotals(OnDatabase):
    """The counts by tenant."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        super().__init__(database)
        self._clock = clock

    async def read_totals(self, tenant: str) -> TenantTotals:
        """The tenant's totals; the tokens are those of today."""
        now = self._clock().astimezone(UTC)
        day, midnight = now.date(), datetime.combine(now.date() + timedelta(days=1), time(), UTC)
        found = await self.database.read(lambda connection: sum_totals(connection, tenant, day.isoformat()))
        return msgspec.structs.replace(found, seconds_left=math.ceil((midnight - now).total_seconds()))

    async def list_totals(self) -> dict[str, TenantTotals]:
        """Sessions and bytes of every tenant that has had any."""
        return await self.database.read(_list_totals)


def _list_totals(connection: Connection) -> dict[str, TenantTotals]:
    tenants = connection.scalars(select(totals.c.tenant).distinct().order_by(totals.c.tenant)).all()
    return {tenant: sum_totals(connection, tenant) for tenant in tenants}


def count_change(connection: Connection, key: SessionKey, growth: Growth, quota: StorageQuota | None = None) -> None:
    """Count what this transaction changes in a session. Raises QuotaExceeded where that is more than there may be."""
    if growth == Growth():
        return
    _prepare_count(connection.dialect.name).execute(connection, make_totals_row(key, growth))
    if quota is not None:
        quota.check(sum_totals(connection, key.tenant), is_new_session=growth.sessions > 0)


def count_changes(
    connection: Connection, grown: Sequence[tuple[SessionKey, Growth]], quota: StorageQuota | None
) -> None:
    """`count_change` for new sessions of one tenant, one row for each slice."""
    rows: dict[int, dict[str, Any]] = {}
    for key, growth in grown:
        row = make_totals_row(key, growth)
        same = rows.setdefault(row["slice"], {**row, "sessions": 0, "bytes": 0})
        same["sessions"] += growth.sessions
        same["bytes"] += growth.bytes
    # In one order, or two that change the same rows may wait for one another.
    _prepare_count(connection.dialect.name).insert_many(connection, [rows[name] for name in sorted(rows)])
    if quota is not None:
        quota.check(sum_totals(connection, grown[0][0].tenant), is_new_session=True)


def make_totals_row(key: SessionKey, growth: Growth) -> dict[str, Any]:
    return {"tenant": key.tenant, "slice": zlib.crc32(key.id.encode()) % _SLICES, **msgspec.structs.asdict(growth)}


@functools.cache
def _prepare_count(dialect: str) -> PreparedStatement:
    return PreparedStatement.of_rows(add_to_totals(build_insert(totals, dialect)))


def add_to_totals(given: Any) -> Any:
    """Have an insert (see `build_insert`) add to the row that is there."""
    new, old = given.excluded, totals.c
    # Of a day that is over nothing is kept, and what comes late of it is not counted any more. A day that has not come
    # is that of a clock which was wrong: until it comes, nothing would be counted. Which has come is said by the
    # database, because a clock that is behind must not end the day of all others.
    is_day = new.day != literal_column(f"'{_NO_DAY}'")
    begins = and_(is_day, or_(new.day > old.day, old.day > database_tomorrow()))
    tokens = case((new.day == old.day, old.tokens + new.tokens), (begins, new.tokens), else_=old.tokens)
    return given.on_conflict_do_update(
        index_elements=[old.tenant, old.slice],
        set_={
            "sessions": old.sessions + new.sessions,
            "bytes": old.bytes + new.bytes,
            "day": case((begins, new.day), else_=old.day),
            "tokens": tokens,
        },
    )


def sum_totals(connection: Connection, tenant: str, day: str = _NO_DAY) -> TenantTotals:
    """A tenant's totals, with the tokens of a day."""
    [row] = _SUM.fetch_all(connection, {"tenant_": tenant, "day_": day})
    return TenantTotals(sessions=int(row[0] or 0), bytes=int(row[1] or 0), day=day, tokens=int(row[2] or 0))


_SUM = PreparedStatement(
    select(
        func.sum(totals.c.sessions),
        func.sum(totals.c.bytes),
        func.sum(case((totals.c.day == bindparam("day_", type_=totals.c.day.type), totals.c.tokens), else_=0)),
    ).where(totals.c.tenant == bindparam("tenant_", type_=totals.c.tenant.type))
)


def count_tokens(recorded: Iterable[RecordedEvent]) -> tuple[str, int]:
    """The day of the model calls among these events, and what they took; an empty day if none is."""
    day, tokens = _NO_DAY, 0
    for event in recorded:
        row = make_usage_row(event)
        if row is not None and row["model_calls"]:
            day = row["day"]
            tokens += max(row["total_tokens"], row["prompt_tokens"] + row["completion_tokens"])
    return day, tokens


def measure_events(recorded: Iterable[RecordedEvent]) -> int:
    """The bytes of these events' payloads."""
    return sum(len(event.payload.encode()) for event in recorded)


def measure_session(connection: Connection, key: SessionKey) -> int:
    """The bytes of a session's payloads, texts and files, as they are stored."""
    row = session_columns(key)
    return sum(int(size or 0) for sums in _SESSION_SIZES for (size,) in sums.fetch_all(connection, row))


_SESSION_SIZES = [PreparedStatement(select(size).where(*of_bound_session(table))) for table, size in SIZES]


# Recounts: sessions and bytes by what is stored, and counters set right where they differ.

# The number of sessions, and all that takes bytes.
COUNTED: tuple[tuple[Table, ColumnElement[int]], ...] = ((sessions, func.count()), *SIZES)
# The slice of no session, which holds what recounts have added and taken away.
_CORRECTIONS = -1


class _Correction(msgspec.Struct, frozen=True):
    """A tenant's drift, and what the corrections were when it was found: two that mend at once must not both."""

    drift: TotalsDrift
    sessions: int
    bytes: int


async def recount_totals(
    database: Database, *, mend: bool, on_table: Callable[[], None] = lambda: None
) -> list[TotalsDrift]:
    """Find the tenants whose counters are not what is stored, and mend them if asked to; servers go on meanwhile.

    Counters and rows are compared as they were at one moment, and only the difference is added: what is recorded
    meanwhile stays counted. Tokens are left as they are, because those of deleted sessions are counted, too.
    `on_table` is called as each of the tables in COUNTED has been read.
    """
    found = await database.read_snapshot(lambda connection: _find_corrections(connection, on_table))
    if mend and found:
        await database.write(lambda connection: _correct(connection, found))
    return [one.drift for one in found]


def _find_corrections(connection: Connection, on_table: Callable[[], None]) -> list[_Correction]:
    kept = select(totals.c.tenant, totals.c.sessions, totals.c.bytes).where(totals.c.slice == _CORRECTIONS)
    before = {tenant: (count, size) for tenant, count, size in connection.execute(kept)}
    drifts = _find_drifts(connection, on_table)
    return [_Correction(drift, *before.get(drift.tenant, (0, 0))) for drift in drifts]


def _find_drifts(connection: Connection, on_table: Callable[[], None]) -> list[TotalsDrift]:
    figures = []
    for table, figure in COUNTED:
        figures.append(_group_by_tenant(connection, table, figure))
        on_table()
    counts, *sizes = figures
    tenants = {*connection.scalars(select(totals.c.tenant).distinct())}.union(*figures)
    found = []
    for tenant in sorted(tenants):
        counted = sum_totals(connection, tenant)
        drift = TotalsDrift(
            tenant=tenant,
            counted_sessions=counted.sessions,
            sessions=counts.get(tenant, 0),
            counted_bytes=counted.bytes,
            bytes=sum(size.get(tenant, 0) for size in sizes),
        )
        if (drift.sessions, drift.bytes) != (drift.counted_sessions, drift.counted_bytes):
            found.append(drift)
    return found


def _group_by_tenant(connection: Connection, table: Any, figure: Any) -> Mapping[str, int]:
    rows = connection.execute(select(table.c.tenant, figure).group_by(table.c.tenant))
    return {tenant: int(value or 0) for tenant, value in rows}


def _correct(connection: Connection, corrections: list[_Correction]) -> None:
    for one in corrections:
        drift = one.drift
        empty = {"tenant": drift.tenant, "slice": _CORRECTIONS, "sessions": 0, "bytes": 0, "day": "", "tokens": 0}
        prepare_insert_if_absent(totals, connection.dialect.name).execute(connection, empty)
        connection.execute(
            update(totals)
            .where(
                totals.c.tenant == drift.tenant,
                totals.c.slice == _CORRECTIONS,
                totals.c.sessions == one.sessions,
                totals.c.bytes == one.bytes,
            )
            .values(
                sessions=one.sessions + drift.sessions - drift.counted_sessions,
                bytes=one.bytes + drift.bytes - drift.counted_bytes,
            )
        )
