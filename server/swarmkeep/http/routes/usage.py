"""Routes for usage: tokens, calls and time, in groups; how much of its quotas the tenant has used; and counts."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from swarmkeep.events.records import Cost, UsageGroup, UsageQuery, UsageRow, parse_usage_groups
from swarmkeep.http.auth import Principal
from swarmkeep.http.bodies import JsonResponse
from swarmkeep.http.errors import problem_specs
from swarmkeep.http.parameters import Cursor, Limit, parse_day
from swarmkeep.store.records import SessionCounts


class UsageList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[UsageRow]
    next_cursor: str | None


@get("/usage", summary="Sum up the calls, tokens and time of models and tools", responses=problem_specs())
async def get_usage(
    principal: NamedDependency[Principal],
    group_by: Annotated[
        list[str] | None,
        QueryParameter(
            description="`day`, `agent`, `model`, `session`, `run`: repeat, or use commas. Without it, one sum."
        ),
    ] = None,
    first_day: Annotated[
        str | None, QueryParameter(name="from", description="Only calls from this day on: `YYYY-MM-DD`, in UTC.")
    ] = None,
    last_day: Annotated[
        str | None, QueryParameter(name="to", description="Only calls up to this day, included.")
    ] = None,
    agent: Annotated[str | None, QueryParameter(description="Only calls of this agent.")] = None,
    model: Annotated[str | None, QueryParameter(description="Only calls of this model.")] = None,
    session: Annotated[str | None, QueryParameter(description="Only calls of this session.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response[UsageList]:
    """Groups are sorted by what they are grouped by. Sums by session or run that are narrowed down by days, an agent or
    a model read every call within the days: with millions of them, name few days, or a session."""
    for day, name in ((first_day, "from"), (last_day, "to")):
        parse_day(day, f"/query/{name}")
    only: dict[UsageGroup, str | None] = {"agent": agent, "model": model, "session": session}
    query = UsageQuery(
        by=parse_usage_groups(name for text in group_by or () for name in text.split(",") if name),
        first_day=first_day,
        last_day=last_day,
        only={name: value for name, value in only.items() if value is not None},
        limit=limit,
        cursor=cursor,
        with_shares=(prices := principal.service.prices) is not None,
    )
    page = await principal.store.sum_usage(principal.tenant, query)
    rows = page.rows if prices is None else prices.price_rows(page)
    return JsonResponse(UsageList(data=rows, next_cursor=page.next_cursor))


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """A quota."""

    used: int
    """How much is used."""
    limit: int | None
    """The limit; null if there is none."""


class Quotas(msgspec.Struct, frozen=True, kw_only=True):
    """The tenant's usage of its quotas."""

    sessions: Quota
    """Its sessions."""
    stored_bytes: Quota
    """The bytes of their events' payloads, and of the texts that these refer to."""
    tokens_today: Quota
    """The tokens of model calls since midnight, UTC."""
    day_ends_in_seconds: int
    """When that count starts again."""


@get("/quotas", summary="Show how much of its quotas the tenant has used", responses=problem_specs())
async def get_quotas(principal: NamedDependency[Principal]) -> Quotas:
    """From counters that are updated with each change, so that asking costs nothing."""
    totals, limits = await principal.store.read_totals(principal.tenant), principal.engine.limits
    return Quotas(
        sessions=Quota(used=totals.sessions, limit=limits.max_sessions),
        stored_bytes=Quota(used=totals.bytes, limit=limits.max_stored_bytes),
        tokens_today=Quota(used=totals.tokens, limit=limits.max_tokens_per_day),
        day_ends_in_seconds=totals.seconds_left,
    )


@get(
    "/counts",
    summary="Count the sessions that are busy, and those whose last run failed or was interrupted",
    responses=problem_specs(),
)
async def get_counts(
    principal: NamedDependency[Principal],
    children: Annotated[bool, QueryParameter(description="Also the sessions in which agents ask others.")] = False,
) -> SessionCounts:
    """Up to 1,000 of each kind are counted; `more` says that there are more. Asking costs little, however many sessions
    there are."""
    return await principal.store.count_sessions(principal.tenant, children=children)


ROUTES = [get_usage, get_quotas, get_counts]


# Report the costs of calls: the route for the server's price table, and what others tell by it.


class ModelPrice(msgspec.Struct, frozen=True, kw_only=True):
    """A price, per million tokens."""

    model: str
    """A name, or a pattern (`gpt-4o*`)."""
    input: float
    """Of what a model is sent."""
    cached_input: float
    """Of what of that was read from a cache."""
    output: float
    """Of what it says."""


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """A model's own name takes precedence over patterns, and the longest pattern that fits over others."""

    currency: str | None
    """Their currency; null without a table."""
    data: list[ModelPrice]
    """The prices; empty without a table."""


@get("/prices", summary="Show what models cost, from the settings", responses=problem_specs())
async def get_prices(principal: NamedDependency[Principal]) -> Prices:
    """Per million tokens. If at least one call has a price, rows of usage, one session and one run have a `cost`."""
    table = principal.service.prices
    if table is None:
        return Prices(currency=None, data=[])
    return Prices(
        currency=table.currency,
        data=[
            ModelPrice(
                model=model,
                input=price.input,
                cached_input=price.input if price.cached_input is None else price.cached_input,
                output=price.output,
            )
            for model, price in table.prices.items()
        ],
    )


async def find_cost(principal: Principal, session_id: str, run_id: str | None = None) -> Cost | msgspec.UnsetType:
    """Return the cost of the calls of a session, or of one of its runs; UNSET if it is unknown."""
    table = principal.service.prices
    if table is None:
        return msgspec.UNSET
    only: dict[UsageGroup, str] = {"session": session_id}
    if run_id is not None:
        only["run"] = run_id
    page = await principal.store.sum_usage(principal.tenant, UsageQuery(only=only, with_shares=True))
    cost = table.add_up(share for shares in page.shares for share in shares)
    return msgspec.UNSET if cost is None else cost


PRICES_ROUTES = [get_prices]
