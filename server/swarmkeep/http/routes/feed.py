"""Routes for the feed: the events of all sessions in one order, and how far its consumers have read."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter

from swarmkeep.events.codec import encode
from swarmkeep.events.errors import InvalidRequest
from swarmkeep.http.auth import PERMISSION, Principal
from swarmkeep.http.bodies import Body, JsonResponse
from swarmkeep.http.errors import problem_specs
from swarmkeep.http.openapi import StreamableOperation
from swarmkeep.http.parameters import (
    OPEN_QUERY_PREFIX,
    LastEventId,
    Limit,
    choose_form,
    read_metadata_filter,
)
from swarmkeep.http.sse import EVENT_STREAM, frame
from swarmkeep.http.streams import StreamCheck, Written, make_event_stream, write_parts
from swarmkeep.runs.feed import FeedEvent, view_feed_event
from swarmkeep.runs.reader import LONGEST_SILENCE_SECONDS
from swarmkeep.store.feed import Consumer, FeedCursor, FeedFilter, PlacedEvent, parse_feed_cursor

_MOST_NAMES = 50
_LONGEST_WAIT_SECONDS = 60


class FeedList(msgspec.Struct, frozen=True, kw_only=True):
    """`next_cursor` is always there: what is recorded later comes behind it."""

    data: list[FeedEvent]
    next_cursor: str


class ConsumerView(msgspec.Struct, frozen=True, kw_only=True):
    """How far a reader of the feed has come, by its own account."""

    name: str
    """Its name."""
    cursor: str
    """The place that is kept."""
    lag: int
    """How many rows of the feed are left, each with one event or several of one session. `swarmkeep_feed_lag` in
    `/metrics` says the same."""
    updated_at: str
    """When it was kept."""


class ConsumerList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[ConsumerView]
    next_cursor: str | None


class ConsumerPlace(Body, frozen=True, kw_only=True):
    """A place in the feed."""

    cursor: str
    """The cursor of the last event that the consumer is done with, forward or back."""


ConsumerName = Annotated[str, PathParameter(description="The name that the consumer's place is kept by.")]


def _view_consumer(consumer: Consumer) -> ConsumerView:
    return ConsumerView(
        name=consumer.name, cursor=str(consumer.cursor), lag=consumer.lag, updated_at=consumer.updated_at
    )


@get(
    "/events",
    summary="List or follow the events of all sessions",
    operation_class=StreamableOperation,
    opt={OPEN_QUERY_PREFIX: "metadata."},
    responses=problem_specs("overloaded"),
)
async def list_feed(
    request: Request[Any, Any, Any],
    principal: NamedDependency[Principal],
    after: Annotated[
        str | None,
        QueryParameter(
            description="Only events behind this `cursor`; `end` for those that are recorded from now on. By default "
            "all, or those behind the consumer's place."
        ),
    ] = None,
    type_: Annotated[
        list[str] | None, QueryParameter(name="type", description="Only events of these types (repeat, or use commas).")
    ] = None,
    agent: Annotated[
        list[str] | None,
        QueryParameter(
            description="Only events recorded while one of these agents was active (repeat, or use commas)."
        ),
    ] = None,
    wait: Annotated[
        float,
        QueryParameter(
            ge=0,
            le=_LONGEST_WAIT_SECONDS,
            description="For how many seconds to wait for an event where there is none yet.",
        ),
    ] = 0,
    consumer: Annotated[
        str | None, QueryParameter(description="Begin behind the place that is kept by this name, if there is one.")
    ] = None,
    limit: Limit = 50,
    last_seen: LastEventId = None,
) -> Response[FeedList]:
    """Each event comes once, a session's in their order, and none is passed over: what is recorded later comes behind
    every cursor that was given. A page may be empty though more follow: go on with its `next_cursor`. Parameters
    `metadata.KEY=VALUE` select events of sessions with that metadata. `Accept: text/event-stream` follows them, each
    frame with its cursor as `id`. A fork's events begin with `session.forked`."""
    wanted = FeedFilter(
        types=_split(type_, "type"), agents=_split(agent, "agent"), metadata=read_metadata_filter(request)
    )
    form = choose_form(request, EVENT_STREAM)
    if form == EVENT_STREAM and last_seen:
        start = parse_feed_cursor(last_seen, "/header/Last-Event-ID")
    else:
        start = await principal.engine.feed.find_start(principal.tenant, after, consumer)
    if form == EVENT_STREAM:
        # Before the answer begins: a place beyond the end is an error.
        await principal.engine.feed.read(principal.tenant, start, wanted, limit=1)
        return make_event_stream(principal, _write_feed_frames(principal, start, wanted))
    page = await principal.engine.feed.wait(
        principal.tenant,
        start,
        wanted,
        limit=limit,
        seconds=wait,
        is_stopping=principal.service.stopping.is_set,
    )
    return JsonResponse(FeedList(data=[view_feed_event(one) for one in page.events], next_cursor=str(page.cursor)))


def _split(texts: list[str] | None, name: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(one for text in texts or () for one in text.split(",") if one))
    if len(names) > _MOST_NAMES:
        raise InvalidRequest(f"at most {_MOST_NAMES} at once", f"/query/{name}")
    return names


def _write_feed_frames(principal: Principal, start: FeedCursor, wanted: FeedFilter) -> AsyncGenerator[bytes]:
    check = StreamCheck(principal, None, stop=principal.service.stopping)
    pages = principal.engine.feed.follow(principal.tenant, start, wanted, silent_seconds=LONGEST_SILENCE_SECONDS)

    def write(events: list[PlacedEvent]) -> Written:
        return b"".join(map(_write_frame, events)), None

    return write_parts(check, pages, write)


def _write_frame(placed: PlacedEvent) -> bytes:
    cursor, event = placed
    return frame(event.type, encode(view_feed_event(placed)), str(cursor))


@get("/consumers", summary="List who reads the feed, and how far they are", responses=problem_specs())
async def list_consumers(principal: NamedDependency[Principal]) -> ConsumerList:
    """By name. There are up to 1,000."""
    found = await principal.engine.feed.list_consumers(principal.tenant)
    return ConsumerList(data=[_view_consumer(one) for one in found], next_cursor=None)


@get(
    "/consumers/{consumer:str}",
    summary="Get a consumer's place in the feed",
    responses=problem_specs("consumer_not_found"),
)
async def get_consumer(consumer: ConsumerName, principal: NamedDependency[Principal]) -> ConsumerView:
    return _view_consumer(await principal.engine.feed.read_consumer(principal.tenant, consumer))


@put(
    "/consumers/{consumer:str}",
    summary="Keep a consumer's place in the feed",
    opt={PERMISSION: ("run", "audit")},
    responses=problem_specs("too_large", "unsupported_media_type", "overloaded"),
)
async def move_consumer(
    consumer: ConsumerName, data: JSONBody[ConsumerPlace], principal: NamedDependency[Principal]
) -> ConsumerView:
    """Do it once the events are dealt with: a program that stops in between is given the last ones again, and none is
    lost. The place may be set back. The first place makes a consumer; a tenant may have 1,000. Needs the right `run` or
    `audit`."""
    return _view_consumer(await principal.engine.feed.confirm(principal.tenant, consumer, data.cursor))


@delete(
    "/consumers/{consumer:str}",
    summary="Forget a consumer of the feed",
    opt={PERMISSION: ("run", "audit")},
    responses=problem_specs("consumer_not_found", "overloaded"),
)
async def delete_consumer(consumer: ConsumerName, principal: NamedDependency[Principal]) -> None:
    """The feed stays as it is."""
    await principal.store.delete_consumer(principal.tenant, consumer)


ROUTES = [list_feed, list_consumers, get_consumer, move_consumer, delete_consumer]
