"""Routes for a session's messages."""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import Annotated

import msgspec
from litestar import delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.auth.guards import PERMISSION
from swarmkeep.api.bodies import Body
from swarmkeep.api.errors import CODES_OF_CHANGES, problem_specs
from swarmkeep.api.paging import take_page
from swarmkeep.api.parameters import AtSeq, Cursor, Limit, parse_cursor
from swarmkeep.domain.codec import Json
from swarmkeep.domain.history.window import find_first_shown
from swarmkeep.domain.messages import list_shown


class NewMessages(Body, frozen=True, kw_only=True):
    """Chat Completions messages, in order."""

    messages: list[Json]


class MessageList(msgspec.Struct, frozen=True, kw_only=True):
    """Messages as Chat Completions has them, with `sender`, `seq`, `at` and `run_id`."""

    data: list[Json]
    next_cursor: str | None


@get(
    "/sessions/{session_id:str}/messages",
    operation_id="list_messages",
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
    operation_id="add_messages",
    summary="Add messages to a session's history, without a run",
    opt={PERMISSION: ("run",)},
    responses=problem_specs("session_not_found", "session_busy", *CODES_OF_CHANGES),
)
async def add_messages(
    session_id: FromPath[str], data: JSONBody[NewMessages], principal: NamedDependency[Principal]
) -> MessageList:
    """The next run's model reads them. The answer has them as they were recorded; refused while a run is active."""
    entries = await principal.engine.sessions.add_messages(
        principal.session_key(session_id), data.messages, idempotency=await principal.read_idempotency()
    )
    return MessageList(data=[entry.view() for entry in entries], next_cursor=None)


@delete(
    "/sessions/{session_id:str}/messages/{seq:int}",
    operation_id="remove_message",
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
    """It is no longer sent to models or shown in lists; the log keeps it. A call goes with its result, and a result
    with its call. Repeating the request changes nothing."""
    key = principal.session_key(session_id)
    await principal.engine.sessions.remove_message(key, seq, tool_call_id, by=principal.name)


ROUTES = [list_messages, add_messages, remove_message]
