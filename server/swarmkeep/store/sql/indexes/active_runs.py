"""Lists the runs that are active: by the sessions that are busy, their leases, and what was counted of the runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from msgspec import UNSET
from sqlalchemy import Connection, func, select

from swarmkeep.domain.views import ListedSession
from swarmkeep.store.cursors import parse_session_cursor
from swarmkeep.store.ports.active_runs import ActiveRun, ActiveRunPage, ActiveStatus
from swarmkeep.store.sql.columns import database_now
from swarmkeep.store.sql.database import OnDatabase
from swarmkeep.store.sql.index import list_candidates
from swarmkeep.store.sql.indexes.session_search import Place, SessionFilter
from swarmkeep.store.sql.tables import sessions, usage


class SqlActiveRuns(OnDatabase):
    """ActiveRuns on a Database."""

    async def list_active_runs(
        self,
        tenant: str,
        status: ActiveStatus,
        *,
        limit: int = 50,
        cursor: str | None = None,
        max_bytes: int = sys.maxsize,
    ) -> ActiveRunPage:
        before = parse_session_cursor(cursor, "created")
        return await self.database.read(
            lambda connection: list_active_runs(
                connection, tenant, status, limit=limit, before=before, max_bytes=max_bytes
            ),
            seconds=self.read_seconds,
        )


def list_active_runs(
    connection: Connection, tenant: str, status: ActiveStatus, *, limit: int, before: Place | None, max_bytes: int
) -> ActiveRunPage:
    """One page of a tenant's active runs."""
    wanted = SessionFilter(tenant=tenant, status=status)
    found, after = list_candidates(
        connection, wanted, limit=limit, before=before, include_context=False, max_bytes=max_bytes
    )
    # A damaged view names no run.
    busy = [one for one, _ in found if one.active_run_id is not None]
    leases = _read_leases(connection, tenant, busy) if busy else {}
    sums = _sum_calls(connection, tenant, busy) if busy else {}
    # What the list said and what the lease says are read at the same moment only on some databases: a session that has
    # been deleted between the two is left out.
    runs = [_make_run(one, status, leases[one.id], sums) for one in busy if one.id in leases]
    return ActiveRunPage(runs, after)


def _make_run(listed: ListedSession, status: ActiveStatus, lease: Any, sums: dict[tuple[str, str], Any]) -> ActiveRun:
    run_id = str(listed.active_run_id)
    counted = sums.get((listed.id, run_id))
    return ActiveRun(
        id=run_id,
        session_id=listed.id,
        title=None if listed.title is UNSET else listed.title,
        status=status,
        agent=listed.agent,
        since=lease.active_at or listed.updated_at,
        seq=listed.seq,
        server=lease.lease_owner,
        lease_epoch=lease.lease_epoch,
        lease_seconds=None if lease.lease_owner is None else lease.left,
        queued_runs=0 if listed.queued_runs is UNSET else listed.queued_runs,
        parent=listed.parent,
        **{name: 0 if counted is None else int(getattr(counted, name)) for name in _COUNTED},
    )


_COUNTED = ("model_calls", "tool_calls", "prompt_tokens", "completion_tokens", "total_tokens")


def _read_leases(connection: Connection, tenant: str, busy: Iterable[ListedSession]) -> dict[str, Any]:
    columns = sessions.c
    statement = select(
        columns.id,
        columns.active_at,
        columns.lease_owner,
        columns.lease_epoch,
        (columns.lease_expires_at - database_now()).label("left"),
    ).where(columns.tenant == tenant, columns.id.in_([one.id for one in busy]))
    return {row.id: row for row in connection.execute(statement)}


def _sum_calls(connection: Connection, tenant: str, busy: Iterable[ListedSession]) -> dict[tuple[str, str], Any]:
    """By session and run: an import may have given a session runs that another one has, too."""
    columns = usage.c
    sums = [func.sum(columns[name]).label(name) for name in _COUNTED]
    statement = (
        select(columns.session_id, columns.run_id, *sums)
        .where(columns.tenant == tenant, columns.run_id.in_([one.active_run_id for one in busy]))
        .group_by(columns.run_id, columns.session_id)
    )
    return {(row.session_id, row.run_id): row for row in connection.execute(statement)}
