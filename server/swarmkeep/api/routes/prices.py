"""What calls cost: the route for the server's price table, and what others tell by it."""

from __future__ import annotations

import msgspec
from litestar import get
from litestar.di import NamedDependency

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.errors import problem_specs
from swarmkeep.domain.usage import Cost, UsageGroup, UsageQuery


class ModelPrice(msgspec.Struct, frozen=True, kw_only=True):
    """Per million tokens. `model` is a name, or a pattern (`gpt-4o*`)."""

    model: str
    input: float
    cached_input: float
    output: float


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """A model's own name takes precedence over patterns, and the longest pattern that fits over others. Without a
    table, `data` is empty."""

    currency: str | None
    data: list[ModelPrice]


@get(
    "/prices", operation_id="get_prices", summary="Show what models cost, from the settings", responses=problem_specs()
)
async def get_prices(principal: NamedDependency[Principal]) -> Prices:
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
    """What the calls of a session, or of one of its runs, have cost; UNSET where nobody knows."""
    table = principal.service.prices
    if table is None:
        return msgspec.UNSET
    only: dict[UsageGroup, str] = {"session": session_id}
    if run_id is not None:
        only["run"] = run_id
    page = await principal.store.sum_usage(principal.tenant, UsageQuery(only=only, with_shares=True))
    cost = table.add_up(share for shares in page.shares for share in shares)
    return msgspec.UNSET if cost is None else cost


ROUTES = [get_prices]
