"""The routes for figures about many sessions, as functions from their arguments to a Call."""

from __future__ import annotations

from collections.abc import Sequence

from swarmkeep_client._requests import build_query, make_get, read_as, repeat_parameter
from swarmkeep_client._wire import Call
from swarmkeep_client.models import Page
from swarmkeep_client.prices import Prices
from swarmkeep_client.usage import Quotas, SessionCounts, UsageRow


def get_quotas() -> Call[Quotas]:
    return Call(make_get("quotas"), read_as(Quotas))


def get_counts(*, children: bool) -> Call[SessionCounts]:
    return Call(make_get("counts", query=build_query(children=children)), read_as(SessionCounts))


def get_prices() -> Call[Prices]:
    return Call(make_get("prices"), read_as(Prices))


def get_usage(
    *,
    group_by: str | Sequence[str],
    first_day: str | None,
    last_day: str | None,
    agent: str | None,
    model: str | None,
    session: str | None,
    page_size: int | None,
) -> Call[Page[UsageRow]]:
    filters = build_query(
        **{"from": first_day, "to": last_day}, agent=agent, model=model, session=session, limit=page_size
    )
    groups = repeat_parameter("group_by", group_by)
    return Call(make_get("usage", query=(*groups, *filters)), read_as(Page[UsageRow]))
