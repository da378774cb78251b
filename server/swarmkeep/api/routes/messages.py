"""Route for a session's messages."""

from __future__ import annotations

from bisect import bisect_right

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.errors import problem_specs
from swarmkeep.api.paging import take_page
from swarmkeep.api.parameters import AtSeq, Cursor, Limit, seq_from_cursor
from swarmkeep.domain.codec import Json


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
    start = bisect_right(entries, seq_from_cursor(cursor) or 0, key=lambda entry: entry.seq)
    page = take_page((entry.view() for entry in entries[start : start + limit]), principal.reader.page_bytes)
    last = start + len(page)
    following = str(entries[last - 1].seq) if page and last < len(entries) else None
    return MessageList(data=page, next_cursor=following)


ROUTES = [list_messages]
