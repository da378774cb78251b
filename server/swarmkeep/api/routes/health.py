"""Routes for liveness and readiness."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Literal

import msgspec
from litestar import get
from litestar.di import NamedDependency

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.errors import problem_specs
from swarmkeep.domain.errors import Draining
from swarmkeep.engine.mcp.statuses import ServerStatus
from swarmkeep.store.ports import StoreUnavailable

_PING_TIMEOUT_SECONDS = 3.0


class Health(msgspec.Struct, frozen=True):
    status: Literal["ok"]


class Readiness(msgspec.Struct, frozen=True, omit_defaults=True):
    """`mcp_servers`: the state of each MCP server whose tools agents are offered, by name: `connected`, `connecting`,
    `unreachable` or `closed`. `search_sessions_behind`: how many sessions are not completely indexed for searches yet.
    Neither keeps the server from accepting requests."""

    status: Literal["ok"]
    mcp_servers: dict[str, str] = {}
    search_sessions_behind: int = 0


@get(
    "/health/live",
    operation_id="health_live",
    summary="Whether the process is alive",
    responses=problem_specs(keyless=True),
)
async def get_liveness() -> Health:
    return Health("ok")


@get(
    "/health/ready",
    operation_id="health_ready",
    summary="Whether the server accepts requests",
    responses=problem_specs("draining", "schema_behind", keyless=True),
)
async def get_readiness(principal: NamedDependency[Principal]) -> Readiness:
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
