"""Routes for runs: start, list, get, stream, cancel, resume."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from litestar.types import Receive

from swarmkeep.events.views import RunView
from swarmkeep.http.auth import PERMISSION, Principal
from swarmkeep.http.bodies import JsonResponse, NewRun, Resume
from swarmkeep.http.errors import CODES_OF_CHANGES, problem_specs
from swarmkeep.http.openapi import StreamableOperation
from swarmkeep.http.parameters import Cursor, LastEventId, Limit, parse_cursor, parse_last_event_id, take_page
from swarmkeep.http.routes.usage import find_cost
from swarmkeep.http.sse import EVENT_STREAM
from swarmkeep.http.streams import make_event_stream, write_run_frames
from swarmkeep.http.threads import ClientGone, wait_for_client
from swarmkeep.logs import bind_fields
from swarmkeep.runs.identifiers import REQUEST_PARSED, reach
from swarmkeep.runs.reader import RunPosition
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
    """Begin a run with its reader there already: a model that answers at once is seen to speak, too."""
    feed = principal.reader.open_feed(key)
    position = None
    try:
        position = await begin()
        bind_fields(run_id=position.run_id)
    finally:
        if feed is not None and (position is None or position.repeated):
            feed.close()
    return make_event_stream(
        principal, write_run_frames(principal, key, position, None, None if position.repeated else feed)
    )


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
