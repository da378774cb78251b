"""Routes for runs: start, list, get, stream, cancel, resume; and runs over all sessions, with their figures."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal, get_args

import msgspec
from litestar import Request, Response, get, post
from litestar.di import NamedDependency, Provide
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.types import Receive

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
from swarmkeep.events.views import RunView
from swarmkeep.history.export import JSON_LINES
from swarmkeep.http.auth import PERMISSION, Principal
from swarmkeep.http.bodies import JsonResponse, NewRun, Resume
from swarmkeep.http.errors import CODES_OF_CHANGES, problem_specs
from swarmkeep.http.openapi import CSV, RunTableOperation, StreamableOperation
from swarmkeep.http.parameters import (
    Cursor,
    LastEventId,
    Limit,
    choose_form,
    parse_cursor,
    parse_day,
    parse_last_event_id,
    read_time,
    take_page,
)
from swarmkeep.http.routes.usage import find_cost
from swarmkeep.http.sse import EVENT_STREAM, StreamResponse
from swarmkeep.http.streams import make_event_stream, open_feed, write_run_frames
from swarmkeep.http.threads import ClientGone, wait_for_client
from swarmkeep.logs import bind_fields
from swarmkeep.runs.identifiers import REQUEST_PARSED, reach
from swarmkeep.runs.reader import RunPosition
from swarmkeep.store.index import ActiveRun, ActiveStatus
from swarmkeep.store.records import SessionKey


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[RunView]
    next_cursor: str | None


async def _answer_when_over(
    principal: Principal, receive: Receive, key: SessionKey, position: RunPosition
) -> Response[Any]:
    """Return the run once it has ended or waits for an answer."""
    waiting = principal.engine.runs.wait(key, position.run_id, since=position.seq if position.repeated else None)
    try:
        return JsonResponse(await wait_for_client(waiting, receive, principal.service.limits.leaving_seconds))
    except ClientGone:
        # For the server's log: no client reads it.
        return Response(None, status_code=499)


async def _begin_stream(
    principal: Principal, key: SessionKey, begin: Callable[[], Awaitable[RunPosition]]
) -> Response[Any]:
    """Begin a run with its reader there already."""
    with open_feed(principal, key) as feed:
        position = await begin()
        bind_fields(run_id=position.run_id)
    if feed is not None and position.repeated:
        feed.close()
        feed = None
    return make_event_stream(principal, write_run_frames(principal, key, position, None, feed))


@post(
    "/sessions/{session_id:str}/runs",
    status_code=200,
    summary="Run the session's agent on an input",
    opt={PERMISSION: ("run",)},
    operation_class=StreamableOperation,
    responses={
        202: ResponseSpec(RunView, description="The run, started in the background", generate_examples=False),
        **problem_specs(
            "session_not_found", "agent_not_found", "session_busy", "agent_unavailable", "draining", *CODES_OF_CHANGES
        ),
    },
)
async def create_run(
    request: Request[Any, Any, Any],
    session_id: FromPath[str],
    data: JSONBody[NewRun],
    principal: NamedDependency[Principal],
) -> Response[RunView]:
    """The answer comes when the run has ended or waits for an answer; with `stream` as server-sent events, with
    `background` at once (202). A run continues when its client goes away.

    A run that failed is an answer, not an HTTP error: 200, with the status `failed` and an `error`. An HTTP error means
    that the request started no run, or that this server stops while the run continues elsewhere (`draining`): then the
    same request with the same `Idempotency-Key` waits for that run.
    """
    runs, key = principal.engine.runs, principal.session_key(session_id)
    if data.speaks_as_user:
        principal.refuse_as_user(relayed=data.relayed)
    idempotency = await principal.read_idempotency()
    await reach(REQUEST_PARSED, session_id)
    command = await data.to_command(idempotency, principal.engine.limits.max_messages, by=principal.name)
    start = partial(runs.start, key, command, idempotency=idempotency)
    if data.stream:
        return await _begin_stream(principal, key, start)
    position = await start()
    bind_fields(run_id=position.run_id)
    if data.background:
        run = await principal.reader.get_run(key, position.run_id, at=position.seq)
        place = f"/v1/sessions/{key.id}/runs/{run.id}"
        return JsonResponse(run, status_code=202, headers={"Location": place})
    return await _answer_when_over(principal, request.receive, key, position)


@get(
    "/sessions/{session_id:str}/runs",
    summary="List a session's runs, newest first",
    responses=problem_specs("session_not_found"),
)
async def list_runs(
    session_id: FromPath[str], principal: NamedDependency[Principal], limit: Limit = 50, cursor: Cursor = None
) -> RunList:
    key, before = principal.session_key(session_id), parse_cursor(cursor)
    runs = await principal.reader.list_runs(key, before=before, limit=limit + 1)
    page = take_page(runs[:limit], principal.reader.page_bytes)
    return RunList(data=page, next_cursor=str(page[-1].first_seq) if len(page) < len(runs) else None)


@get(
    "/sessions/{session_id:str}/runs/{run_id:str}",
    summary="Get a run",
    responses=problem_specs("session_not_found", "run_not_found"),
)
async def get_run(session_id: FromPath[str], run_id: FromPath[str], principal: NamedDependency[Principal]) -> RunView:
    run = await principal.reader.get_run(principal.session_key(session_id), run_id)
    cost = await find_cost(principal, run.session_id, run.id)
    return run if cost is msgspec.UNSET else msgspec.structs.replace(run, cost=cost)


@get(
    "/sessions/{session_id:str}/runs/{run_id:str}/stream",
    summary="Join a run's stream",
    media_type=EVENT_STREAM,
    response_description="Server-sent events; the last one is `done`, with the run",
    responses=problem_specs("session_not_found", "run_not_found"),
)
async def stream_run(
    session_id: FromPath[str],
    run_id: FromPath[str],
    principal: NamedDependency[Principal],
    last_seen: LastEventId = None,
) -> Response[Any]:
    """From its beginning, or after `Last-Event-ID`: each recorded event once and in order, from any server, with its
    seq as id. For a run that has ended, the events and `done`."""
    key, after = principal.session_key(session_id), parse_last_event_id(last_seen)
    position = await principal.reader.find_position(key, run_id)
    return make_event_stream(principal, write_run_frames(principal, key, position, after))


@post(
    "/sessions/{session_id:str}/runs/{run_id:str}/cancel",
    status_code=200,
    summary="Cancel a run; what it produced stays",
    opt={PERMISSION: ("run",)},
    responses=problem_specs("session_not_found", "run_not_found", "idempotency_mismatch", "overloaded"),
)
async def cancel_run(
    session_id: FromPath[str], run_id: FromPath[str], principal: NamedDependency[Principal]
) -> RunView:
    """A run that is queued, running or waiting. What its model had said to a stream so far is kept as a partial
    message, also if another server advances the run. A call in progress is not waited for, and its late result is
    dropped. A run that has ended stays as it is."""
    return await principal.engine.runs.cancel(
        principal.session_key(session_id), run_id, idempotency=await principal.read_idempotency()
    )


@post(
    "/sessions/{session_id:str}/runs/{run_id:str}/resume",
    status_code=200,
    summary="Give a waiting run what it waits for, or try an interrupted one again",
    opt={PERMISSION: ("run", "approve")},
    operation_class=StreamableOperation,
    responses=problem_specs(
        "session_not_found",
        "run_not_found",
        "run_not_waiting",
        "already_decided",
        "arguments_changed",
        "agent_unavailable",
        "draining",
        *CODES_OF_CHANGES,
    ),
)
async def resume_run(
    request: Request[Any, Any, Any],
    session_id: FromPath[str],
    run_id: FromPath[str],
    data: JSONBody[Resume],
    principal: NamedDependency[Principal],
) -> Response[RunView]:
    """The request is accepted as a whole or not at all. The run continues once nothing is missing; until then it is
    still `waiting`. The first decision on a call wins. Without a body, an interrupted run is tried again, if it is the
    session's latest. Answers like the start of a run. Approvals need the permission `approve`, everything else
    `run`."""
    key = principal.session_key(session_id)
    submit = partial(data.submit, principal, key, run_id, await principal.read_idempotency())
    if data.stream:
        return await _begin_stream(principal, key, submit)
    return await _answer_when_over(principal, request.receive, key, await submit())


ROUTES = [create_run, list_runs, get_run, stream_run, cancel_run, resume_run]


# Routes for runs over all sessions: those that are active, the table of those that are over, and its figures.

RunTableStatus = Literal[
    "running", "waiting", "ended", "completed", "failed", "cancelled", "interrupted"
]  # fmt: skip
_STREAM_PAGE = 200


def _read_filter(
    session: Annotated[str | None, QueryParameter(description="Only runs of this session.")] = None,
    agent: Annotated[str | None, QueryParameter(description="Only runs that ended with this agent.")] = None,
    model: Annotated[str | None, QueryParameter(description="Only runs whose last reply is this model's.")] = None,
    stop_reason: Annotated[str | None, QueryParameter(description="Only runs that ended for this reason.")] = None,
    error: Annotated[str | None, QueryParameter(description="Only runs that failed with this code.")] = None,
) -> RunFilter:
    return RunFilter(session=session, agent=agent, model=model, stop_reason=stop_reason, error=error)


_FILTERED = {"only": Provide(_read_filter, sync_to_thread=False)}


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
    dependencies=_FILTERED,
    responses=problem_specs("overloaded"),
)
async def list_active_runs(
    request: Request[Any, Any, Any],
    principal: NamedDependency[Principal],
    only: NamedDependency[RunFilter],
    status: Annotated[
        RunTableStatus | None,
        QueryParameter(
            description="Only runs in this state; `ended` means all that are over. By default `ended` if a filter, an "
            "order or a form of theirs is asked for, and otherwise `running`."
        ),
    ] = None,
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
    only = msgspec.structs.replace(
        only,
        status=status if status in get_args(EndedRunStatus) else None,
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
    dependencies=_FILTERED,
    responses=problem_specs("overloaded"),
)
async def get_run_figures(
    principal: NamedDependency[Principal],
    only: NamedDependency[RunFilter],
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
    status: Annotated[EndedRunStatus | None, QueryParameter(description="Only runs that ended like this.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> RunFiguresList:
    """Groups are sorted by what they are grouped by. At most 92 days at once; without `from`, the last 7 of them.
    Percentiles are exact, and of whole runs: `latency_ms` does not count the time that a run waited."""
    begin, end = read_days(parse_day(first_day, "/query/from"), parse_day(last_day, "/query/to"), "/query/from")
    only = msgspec.structs.replace(only, status=status, created_after=begin, created_before=end)
    groups = parse_run_groups(name for text in group_by or () for name in text.split(",") if name)
    page = await principal.store.sum_runs(
        principal.tenant, FiguresQuery(only=only, by=groups, limit=limit, cursor=cursor)
    )
    return RunFiguresList(data=page.rows, next_cursor=page.next_cursor)


TABLE_ROUTES = [list_active_runs, get_run_figures]
