"""Routes for liveness and readiness."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from secrets import compare_digest
from typing import Any, Literal

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from swarmkeep.events.errors import Draining, Overloaded
from swarmkeep.http.auth import Principal, Service, Unauthenticated
from swarmkeep.http.errors import problem_specs
from swarmkeep.mcp.statuses import ServerStatus
from swarmkeep.store.records import OutcomeUnknown, StoreUnavailable

_PING_TIMEOUT_SECONDS = 3.0
_LAGS_TIMEOUT_SECONDS = 2.0


class Health(msgspec.Struct, frozen=True):
    """The process is alive."""

    status: Literal["ok"]
    """`ok`."""


class Readiness(msgspec.Struct, frozen=True, omit_defaults=True):
    """The server accepts requests; what else it says keeps it from none."""

    status: Literal["ok"]
    """`ok`."""
    mcp_servers: dict[str, str] = {}
    """The state of each MCP server whose tools agents are offered, by name: `connected`, `connecting`, `unreachable` or
    `closed`."""
    search_sessions_behind: int = 0
    """How many sessions are not completely indexed for searches yet."""


@get(
    "/health/live",
    operation_id="health_live",
    summary="Tell that the process is alive",
    responses=problem_specs(keyless=True),
)
async def get_liveness() -> Health:
    """As long as the process answers."""
    return Health("ok")


@get(
    "/health/ready",
    operation_id="health_ready",
    summary="Tell if the server accepts requests",
    responses=problem_specs("draining", "schema_behind", keyless=True),
)
async def get_readiness(principal: NamedDependency[Principal]) -> Readiness:
    """Otherwise 503: the server stops (`draining`), migrations are missing (`schema_behind`), or the database does not
    answer or takes no writes (`store_unavailable`)."""
    if principal.service.stopping.is_set():
        raise Draining
    try:
        async with asyncio.timeout(_PING_TIMEOUT_SECONDS):
            await principal.store.ping()
    except TimeoutError:
        raise StoreUnavailable("the database does not answer") from None
    return Readiness("ok", sum_up(principal.engine.servers.list_statuses()), principal.engine.indexing.sessions_behind)


def sum_up(servers: Iterable[ServerStatus]) -> dict[str, str]:
    """The status of each by its name; of several that have the same one, that of one that does not answer."""
    worst_last = sorted(servers, key=lambda one: one.status != "connected")
    return {one.name: one.status for one in worst_last}


ROUTES = [get_liveness, get_readiness]


# Route for the metrics, which have a token of their own.


@get(
    "/metrics",
    operation_id="metrics",
    summary="The server's metrics, for Prometheus",
    media_type="text/plain",
    response_description="The text format of Prometheus",
    responses=problem_specs("unauthenticated", keyless=True),
)
async def get_metrics(request: Request[Any, Any, Any]) -> Response[str]:
    """Over all tenants. Open while the server has no API keys; afterwards it needs a token of its own
    (SWARMKEEP_METRICS_TOKEN)."""
    service: Service = request.app.state.service
    counts = service.metrics
    if counts.token is not None or await service.keyring.is_locked():
        _require_token(counts.token, request.headers.get("authorization", ""))
    # While the database is away, or there is much to count, those from before are shown: all else is to be seen then.
    with suppress(StoreUnavailable, OutcomeUnknown, Overloaded, TimeoutError):
        async with asyncio.timeout(_LAGS_TIMEOUT_SECONDS):
            counts.show_lags(await service.engine.feed.list_lagging())
            counts.show_webhooks(await service.engine.store.list_webhook_lags())
    # As a header of its own: to a media type the framework would add the charset once more.
    return Response[Any](await counts.render(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


def _require_token(token: str | None, authorization: str) -> None:
    scheme, _, shown = authorization.partition(" ")
    shown = shown.strip() if scheme.lower() == "bearer" else ""
    if token is None or not compare_digest(shown.encode(), token.encode()):
        raise Unauthenticated(key_given=bool(shown), credential="metrics token (the server's SWARMKEEP_METRICS_TOKEN)")


METRICS_ROUTES = [get_metrics]
