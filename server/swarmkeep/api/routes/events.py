"""Routes for a session's events: pages, streams, exports, and the request behind a message."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.bodies import JsonResponse
from swarmkeep.api.errors import problem_specs
from swarmkeep.api.openapi_operations import EventsOperation
from swarmkeep.api.parameters import (
    AfterSeq,
    Cursor,
    LastEventId,
    Limit,
    Seq,
    choose_form,
    parse_cursor,
    parse_last_event_id,
)
from swarmkeep.api.sse import EVENT_STREAM, StreamResponse
from swarmkeep.api.streams import make_event_stream, write_session_frames
from swarmkeep.audit.replay.requests import rebuild_request
from swarmkeep.audit.transfer.export import JSON_LINES, find_sessions, iterate_keys, write_export
from swarmkeep.domain.codec import Json, encode
from swarmkeep.domain.envelope import EventView, view_event
from swarmkeep.store.ports import SessionKey
from swarmkeep.store.ports.log import is_full_page

_EVENTS_PER_READ = 200


class EventList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[EventView]
    next_cursor: str | None


@get(
    "/sessions/{session_id:str}/events",
    operation_id="list_events",
    summary="List, follow or export a session's events",
    operation_class=EventsOperation,
    responses=problem_specs("session_not_found"),
)
async def list_events(
    request: Request[Any, Any, Any],
    session_id: FromPath[str],
    principal: NamedDependency[Principal],
    after: AfterSeq = None,
    type_: Annotated[
        list[str] | None, QueryParameter(name="type", description="Only events of these types (repeat, or use commas).")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    last_seen: LastEventId = None,
) -> Response[EventList]:
    """`Accept: text/event-stream` sends the events after `after` or `Last-Event-ID`, and then each new one. `Accept:
    application/x-ndjson` exports the session; with `after` or `type` it gives these events, one per line. Neither has
    pages.
    """
    key = principal.session_key(session_id)
    types = tuple(name for text in type_ or () for name in text.split(",") if name)
    start = max(after or 0, parse_cursor(cursor) or 0)
    form = choose_form(request, EVENT_STREAM, JSON_LINES)
    if form == EVENT_STREAM:
        start = max(start, parse_last_event_id(last_seen) or 0)
        await principal.reader.state(key)
        return make_event_stream(principal, write_session_frames(principal, key, start, types))
    if form == JSON_LINES:
        store = principal.store
        keys = await find_sessions(store, principal.tenant, [session_id])
        part = bool(start or types)
        whole = write_export(store, iterate_keys(keys), alone=True)
        return StreamResponse(_write_event_lines(principal, key, start, types) if part else whole, JSON_LINES)
    events = await principal.reader.read_events(key, after=start, types=types, limit=limit + 1)
    page = events[:limit]
    following = str(page[-1].seq) if is_full_page(events, limit + 1, principal.reader.page_bytes) else None
    return JsonResponse(EventList(data=[view_event(event) for event in page], next_cursor=following))


async def _write_event_lines(
    principal: Principal, key: SessionKey, after: int, types: tuple[str, ...]
) -> AsyncGenerator[bytes]:
    while events := await principal.store.read(
        key, after=after, types=types, limit=_EVENTS_PER_READ, max_bytes=principal.reader.page_bytes
    ):
        yield b"".join(encode(view_event(event)) + b"\n" for event in events)
        after = events[-1].seq


@get(
    "/sessions/{session_id:str}/events/{seq:int}/request",
    operation_id="get_event_request",
    summary="Get the exact model request behind an assistant message",
    response_description="The bytes that were sent to the model",
    responses=problem_specs("session_not_found", "event_not_found", "request_not_kept"),
)
async def get_event_request(
    session_id: FromPath[str], seq: Seq, principal: NamedDependency[Principal]
) -> Response[Json]:
    async with principal.service.rebuilds:
        body = await rebuild_request(principal.store, principal.session_key(session_id), seq)
    return Response[Any](body, media_type="application/json")


ROUTES = [list_events, get_event_request]
