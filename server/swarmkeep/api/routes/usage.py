"""Route for usage: tokens, calls and time, in groups."""

from __future__ import annotations

from datetime import date
from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.bodies import JsonResponse
from swarmkeep.api.errors import problem_specs
from swarmkeep.api.parameters import Cursor, Limit
from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.domain.usage import UsageGroup, UsageQuery, UsageRow, parse_usage_groups


class UsageList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[UsageRow]
    next_cursor: str | None


@get(
    "/usage",
    operation_id="get_usage",
    summary="Sum up what model and tool calls took",
    responses=problem_specs(),
)
async def get_usage(
    principal: NamedDependency[Principal],
    group_by: Annotated[
        list[str] | None,
        QueryParameter(
            description="`day`, `agent`, `model`, `session`, `run`: repeat, or use commas. None is one sum."
        ),
    ] = None,
    first_day: Annotated[
        str | None, QueryParameter(name="from", description="Only calls from this day on: `YYYY-MM-DD`, in UTC.")
    ] = None,
    last_day: Annotated[
        str | None, QueryParameter(name="to", description="Only calls up to this day, which is included.")
    ] = None,
    agent: Annotated[str | None, QueryParameter(description="Only calls of this agent.")] = None,
    model: Annotated[str | None, QueryParameter(description="Only calls of this model.")] = None,
    session: Annotated[str | None, QueryParameter(description="Only calls of this session.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response[UsageList]:
    """Groups come in the order of what they are grouped by. A fork counts its own calls only."""
    only: dict[UsageGroup, str | None] = {"agent": agent, "model": model, "session": session}
    query = UsageQuery(
        by=parse_usage_groups(name for text in group_by or () for name in text.split(",") if name),
        first_day=_checked_day(first_day, "/query/from"),
        last_day=_checked_day(last_day, "/query/to"),
        only={name: value for name, value in only.items() if value is not None},
        limit=limit,
        cursor=cursor,
    )
    page = await principal.store.sum_usage(principal.tenant, query)
    return JsonResponse(UsageList(data=page.rows, next_cursor=page.next_cursor))


def _checked_day(text: str | None, pointer: str) -> str | None:
    try:
        if text is None or date.fromisoformat(text).isoformat() == text:
            return text
    except ValueError:
        pass
    raise InvalidRequest("write a day as YYYY-MM-DD", pointer)


ROUTES = [get_usage]
