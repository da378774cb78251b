"""Routes for events: those of a session, the request behind a message, and the feed of all sessions'."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from itertools import islice
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, PathParameter, QueryParameter

from swarmkeep.events.codec import Json, encode
from swarmkeep.events.errors import InvalidRequest
from swarmkeep.events.facts import EventView, view_event
from swarmkeep.events.messages import list_shown
from swarmkeep.history.export import JSON_LINES, find_sessions, iterate_keys, write_export
from swarmkeep.history.replay import rebuild_request, rebuild_what_is_left
from swarmkeep.http.auth import PERMISSION, Principal
from swarmkeep.http.bodies import Body, JsonResponse, has_user_message
from swarmkeep.http.errors import CODES_OF_CHANGES, problem_specs
from swarmkeep.http.openapi import EventsOperation, StreamableOperation
from swarmkeep.http.parameters import (
    OPEN_QUERY_PREFIX,
    AfterSeq,
    AtSeq,
    Cursor,
    LastEventId,
    Limit,
    Seq,
    choose_form,
    parse_cursor,
    parse_last_event_id,
    read_metadata_filter,
    take_page,
)
from swarmkeep.http.sse import EVENT_STREAM, StreamResponse, frame, make_counted_response
from swarmkeep.http.streams import StreamCheck, Written, make_event_stream, write_parts, write_session_frames
from swarmkeep.request.request import find_first_shown
from swarmkeep.runs.feed import FeedEvent, view_feed_event
from swarmkeep.runs.reader import LONGEST_SILENCE_SECONDS
from swarmkeep.store.feed import Consumer, FeedCursor, FeedFilter, PlacedEvent, parse_feed_cursor
from swarmkeep.store.records import SessionKey, is_full_page

_EVENTS_PER_READ = 200


class EventList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[EventView]
    next_cursor: str | None


@get(
    "/sessions/{session_id:str}/events",
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
    summary="Get the exact model request behind an assistant message",
    response_description="The bytes that were sent to the model",
    responses=problem_specs("session_not_found", "event_not_found", "request_not_kept"),
)
async def get_event_request(
    session_id: FromPath[str],
    seq: Seq,
    principal: NamedDependency[Principal],
    redacted: Annotated[
        bool,
        QueryParameter(
            description="Answer with an object: `exact`, a `note`, what is `missing`, and the `request`, in which "
            "`[redacted]` stands in the place of what is not there any more."
        ),
    ] = False,
) -> Response[Json]:
    """The bytes that were sent, rebuilt from the log. Refused if a part of it was redacted or is lost, unless
    `redacted` is asked for."""
    with ExitStack() as taken:

        async def admit(size: int) -> None:
            taken.callback(await principal.service.rebuilds.take(size))

        rebuild = rebuild_what_is_left if redacted else rebuild_request
        body = await rebuild(principal.store, principal.session_key(session_id), seq, admit)
        return make_counted_response(body, taken)


ROUTES = [list_events, get_event_request]


# Routes for a session's messages.


class NewMessages(Body, frozen=True, kw_only=True):
    """Messages for the history."""

    messages: list[Json]
    """Chat Completions messages, in order."""
    relayed: bool = False
    """`true`: a person passes on what the user said, as a key with the role `support` has to say."""


class MessageList(msgspec.Struct, frozen=True, kw_only=True):
    """Messages as Chat Completions has them, with `sender`, `seq`, `at` and `run_id`."""

    data: list[Json]
    next_cursor: str | None


@get(
    "/sessions/{session_id:str}/messages",
    summary="List a session's messages, oldest first",
    responses=problem_specs("session_not_found", "event_not_found"),
)
async def list_messages(
    session_id: FromPath[str],
    principal: NamedDependency[Principal],
    at: AtSeq = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> MessageList:
    """Each is the Chat Completions message with `seq`, `at`, `run_id` and `sender`. One that a guardrail refused, and
    the answer in its place, have its name as `guardrail`; a result with files refers to them in `files`; what a person
    wrote in the agent's place has `person`."""
    state = await principal.reader.state(principal.session_key(session_id), at=at)
    entries = state.messages
    behind = bisect_right(entries, parse_cursor(cursor) or 0, key=lambda entry: entry.seq)
    start = max(behind, find_first_shown(entries))
    shown = list_shown(entries[index] for index in range(start, len(entries)))
    # One more than there is room for tells whether there are more.
    found = list(islice(shown, limit + 1))
    page = take_page((entry.view() for entry in found[:limit]), principal.reader.page_bytes)
    following = str(found[len(page) - 1].seq) if page and len(page) < len(found) else None
    return MessageList(data=page, next_cursor=following)


@post(
    "/sessions/{session_id:str}/messages",
    status_code=200,
    summary="Add messages to a session's history, without a run",
    opt={PERMISSION: ("run",)},
    responses=problem_specs("session_not_found", "session_busy", *CODES_OF_CHANGES),
)
async def add_messages(
    session_id: FromPath[str], data: JSONBody[NewMessages], principal: NamedDependency[Principal]
) -> MessageList:
    """The next run's model reads them. The answer has them as they were recorded; refused while a run is active."""
    if has_user_message(data.messages):
        principal.refuse_as_user(relayed=data.relayed)
    entries = await principal.engine.sessions.add_messages(
        principal.session_key(session_id), data.messages, idempotency=await principal.read_idempotency()
    )
    return MessageList(data=[entry.view() for entry in entries], next_cursor=None)


@delete(
    "/sessions/{session_id:str}/messages/{seq:int}",
    summary="Take a message out of the conversation",
    opt={PERMISSION: ("run",)},
    responses=problem_specs("session_not_found", "event_not_found", "session_busy", "overloaded"),
)
async def remove_message(
    session_id: FromPath[str],
    seq: FromPath[int],
    principal: NamedDependency[Principal],
    tool_call_id: Annotated[
        str | None, QueryParameter(description="Only this call of the message, with its result.")
    ] = None,
) -> None:
    """It is no longer sent to models or listed. The log keeps it; to remove its content for good, redact it. A call
    goes with its result, and a result with its call. Repeating the request changes nothing. Messages of an active run
    cannot be taken out."""
    key = principal.session_key(session_id)
    await principal.engine.sessions.remove_message(key, seq, tool_call_id, by=principal.name)


MESSAGES_ROUTES = [list_messages, add_messages, remove_message]


# Routes for the feed: the events of all sessions in one order, and how far its consumers have read.

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


FEED_ROUTES = [list_feed, list_consumers, get_consumer, move_consumer, delete_consumer]
