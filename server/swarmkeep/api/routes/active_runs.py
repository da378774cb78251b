"""Route for the runs that are active, over all sessions."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.errors import problem_specs
from swarmkeep.api.parameters import Cursor, Limit
from swarmkeep.store.ports.active_runs import ActiveRun, ActiveStatus


class ActiveRunList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[ActiveRun]
    next_cursor: str | None


@get(
    "/runs",
    operation_id="list_active_runs",
    summary="List the runs of all sessions that are active or wait for somebody",
    responses=problem_specs("overloaded"),
)
async def list_active_runs(
    principal: NamedDependency[Principal],
    status: Annotated[ActiveStatus, QueryParameter(description="Only runs in this state.")] = "running",
    limit: Limit = 50,
    cursor: Cursor = None,
) -> ActiveRunList:
    """Those first whose sessions were made last. A page may end before it is full; `next_cursor` says whether there are
    more."""
    page = await principal.store.list_active_runs(
        principal.tenant, status, limit=limit, cursor=cursor, max_bytes=principal.reader.page_bytes
    )
    return ActiveRunList(data=page.runs, next_cursor=page.next_cursor)


ROUTES = [list_active_runs]
