"""What each tenant has stored and used: counters that move in the transaction of what they count.

A tenant's counters are spread over slices, by session: on PostgreSQL an append holds the row of its slice until it is
committed, and those of other sessions are not to wait for it. Whoever counts holds the session's row by then, and takes
the audit log's later, so that no two wait for one another.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, and_, bindparam, case, func, literal_column, or_, select

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.store.clock import Clock, utc_now
from swarmkeep.store.ports.database import Database
from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.ports.totals import StorageQuota, TenantTotals
from swarmkeep.store.sql.columns import database_tomorrow, stored_bytes
from swarmkeep.store.sql.counting.usage import make_usage_row
from swarmkeep.store.sql.database import OnDatabase
from swarmkeep.store.sql.prepared import PreparedStatement, build_insert
from swarmkeep.store.sql.tables import blobs, events, files, of_bound_session, session_columns, totals

# Whatever takes bytes. Of a column of bytes neither database reads the content to tell its length.
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


class SqlTotals(OnDatabase):
    """TotalsReader on a Database."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        super().__init__(database)
        self._clock = clock

    async def read_totals(self, tenant: str) -> TenantTotals:
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
