"""Counts sessions and bytes anew, by what is stored, and mends the counters where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, func, select, update

from swarmkeep.store.ports.database import Database
from swarmkeep.store.ports.totals import TotalsDrift
from swarmkeep.store.sql.counting.totals import SIZES, sum_totals
from swarmkeep.store.sql.prepared import prepare_insert_if_absent
from swarmkeep.store.sql.tables import sessions, totals

# The number of sessions, and whatever takes bytes.
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
