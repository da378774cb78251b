"""Routes for runs over all sessions: those that are active, the table of those that are over, and its figures."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal, get_args

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from swarmkeep.events.codec import encode
from swarmkeep.events.errors import InvalidRequest
from swarmkeep.events.run_table import (
    CSV_COLUMNS,
    EndedRun,
    EndedRunStatus,
    FiguresQuery,
    RunFigures,
    RunFilter,
    RunPage,
    RunQuery,
    RunSort,
    list_cells,
    parse_run_groups,
    read_days,
    write_csv,
)
from swarmkeep.history.export import JSON_LINES
from swarmkeep.http.auth import Principal
from swarmkeep.http.bodies import JsonResponse
from swarmkeep.http.errors import problem_specs
from swarmkeep.http.openapi import CSV, RunTableOperation
from swarmkeep.http.parameters import Cursor, Limit, choose_form, parse_day, read_time
from swarmkeep.http.sse import StreamResponse
from swarmkeep.store.index import ActiveRun, ActiveStatus

RunTableStatus = Literal[
    "running", "waiting", "ended", "completed", "failed", "cancelled", "interrupted"
]  # fmt: skip
_SESSION = Annotated[str | None, QueryParameter(description="Only runs of this session.")]
_AGENT = Annotated[str | None, QueryParameter(description="Only runs that ended with this agent.")]
_MODEL = Annotated[str | None, QueryParameter(description="Only runs whose last reply is this model's.")]
_STOP_REASON = Annotated[str | None, QueryParameter(description="Only runs that ended for this reason.")]
_ERROR = Annotated[str | None, QueryParameter(description="Only runs that failed with this code.")]
_STREAM_PAGE = 200


class ActiveRunList(msgspec.Struct, frozen=True, kw_only=True):
    """Active runs."""

    data: list[ActiveRun]
    next_cursor: str | None


class EndedRunList(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that are over."""

    data: list[EndedRun]
    next_cursor: str | None


@get(
    "/runs",
    summary="List the runs of all sessions: those that are active, or those that are over",
    operation_class=RunTableOperation,
    responses=problem_specs("overloaded"),
)
async def list_active_runs(
    request: Request[Any, Any, Any],
    principal: NamedDependency[Principal],
    status: Annotated[
        RunTableStatus | None,
        QueryParameter(
            description="Only runs in this state; `ended` means all that are over. By default `ended` if a filter, an "
            "order or a form of theirs is asked for, and otherwise `running`."
        ),
    ] = None,
    session: _SESSION = None,
    agent: _AGENT = None,
    model: _MODEL = None,
    stop_reason: _STOP_REASON = None,
    error: _ERROR = None,
    created_after: Annotated[
        str | None, QueryParameter(description="Only runs that began at this time (RFC 3339) or later.")
    ] = None,
    created_before: Annotated[str | None, QueryParameter(description="Only runs that began before this time.")] = None,
    sort: Annotated[
        RunSort | None,
        QueryParameter(description="The latest first (`created_at`), or the greatest figure first."),
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response[ActiveRunList | EndedRunList]:
    """Active runs are listed by their sessions' creation, the latest first, and take no filter but `status`. Runs that
    are over are listed as JSON, or all from `cursor` on as `text/csv` or `application/x-ndjson`, if `Accept` asks for
    that. A page ends before it is full once 1,000 runs were looked at; `next_cursor` says whether there are more."""
    only = RunFilter(
        session=session,
        agent=agent,
        model=model,
        status=status if status in get_args(EndedRunStatus) else None,  # type: ignore[arg-type]
        stop_reason=stop_reason,
        error=error,
        created_after=read_time(created_after, "created_after"),
        created_before=read_time(created_before, "created_before"),
    )
    form = choose_form(request, CSV, JSON_LINES)
    given = [*only.list_given(), *([] if sort is None else ["sort"])]
    given += [f"the form {form}"] if form in (CSV, JSON_LINES) else []
    if status in ("running", "waiting") or (status is None and not given):
        if given:
            raise InvalidRequest(f"{given[0]} is for runs that are over: add status=ended", "/query/status")
        return JsonResponse(await _list_active(principal, status or "running", limit, cursor))
    prices = principal.service.prices
    query = RunQuery(only=only, sort=sort or "created_at", limit=limit, cursor=cursor, with_shares=prices is not None)
    if form in (CSV, JSON_LINES):
        query = msgspec.structs.replace(query, limit=_STREAM_PAGE)
    # Before an answer begins, of whatever form: what is wrong with the request, or the database, is an error.
    page = await principal.store.list_ended_runs(principal.tenant, query)
    if form == CSV:
        return StreamResponse(_write_csv(principal, query, page), CSV)
    if form == JSON_LINES:
        return StreamResponse(_write_json_lines(principal, query, page), JSON_LINES)
    return JsonResponse(EndedRunList(data=_price(principal, page), next_cursor=page.next_cursor))


async def _list_active(principal: Principal, status: ActiveStatus, limit: int, cursor: str | None) -> ActiveRunList:
    page = await principal.store.list_active_runs(
        principal.tenant, status, limit=limit, cursor=cursor, max_bytes=principal.reader.page_bytes
    )
    return ActiveRunList(data=page.runs, next_cursor=page.next_cursor)


def _price(principal: Principal, page: RunPage) -> list[EndedRun]:
    prices = principal.service.prices
    return page.runs if prices is None else prices.price_each(page.runs, page.shares)


async def _read_pages(principal: Principal, query: RunQuery, page: RunPage) -> AsyncGenerator[list[EndedRun]]:
    """Every run from the first page on, a page at a time."""
    yield _price(principal, page)
    while page.next_cursor is not None:
        asked = msgspec.structs.replace(query, cursor=page.next_cursor)
        page = await principal.store.list_ended_runs(principal.tenant, asked)
        yield _price(principal, page)


async def _write_json_lines(principal: Principal, query: RunQuery, first: RunPage) -> AsyncGenerator[bytes]:
    async for page in _read_pages(principal, query, first):
        yield b"".join(encode(run) + b"\n" for run in page)


async def _write_csv(principal: Principal, query: RunQuery, first: RunPage) -> AsyncGenerator[bytes]:
    yield write_csv([CSV_COLUMNS])
    async for page in _read_pages(principal, query, first):
        yield write_csv(map(list_cells, page))


class RunFiguresList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[RunFigures]
    next_cursor: str | None


@get(
    "/runs/figures",
    summary="Count the runs that are over, with percentiles of how long they took",
    responses=problem_specs("overloaded"),
)
async def get_run_figures(
    principal: NamedDependency[Principal],
    group_by: Annotated[
        list[str] | None,
        QueryParameter(description="`day`, `agent`, `model`: repeat, or use commas. Without it, one group."),
    ] = None,
    first_day: Annotated[
        str | None,
        QueryParameter(name="from", description="Only runs that began on this day (`YYYY-MM-DD`, in UTC) or later."),
    ] = None,
    last_day: Annotated[
        str | None,
        QueryParameter(name="to", description="Only runs that began on this day or before."),
    ] = None,
    session: _SESSION = None,
    agent: _AGENT = None,
    model: _MODEL = None,
    status: Annotated[EndedRunStatus | None, QueryParameter(description="Only runs that ended like this.")] = None,
    stop_reason: _STOP_REASON = None,
    error: _ERROR = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> RunFiguresList:
    """Groups are sorted by what they are grouped by. At most 92 days at once; without `from`, the last 7 of them.
    Percentiles are exact, and of whole runs: `latency_ms` does not count the time that a run waited."""
    begin, end = read_days(parse_day(first_day, "/query/from"), parse_day(last_day, "/query/to"), "/query/from")
    only = RunFilter(
        session=session,
        agent=agent,
        model=model,
        status=status,
        stop_reason=stop_reason,
        error=error,
        created_after=begin,
        created_before=end,
    )
    groups = parse_run_groups(name for text in group_by or () for name in text.split(",") if name)
    page = await principal.store.sum_runs(
        principal.tenant, FiguresQuery(only=only, by=groups, limit=limit, cursor=cursor)
    )
    return RunFiguresList(data=page.rows, next_cursor=page.next_cursor)


ROUTES = [list_active_runs, get_run_figures]
