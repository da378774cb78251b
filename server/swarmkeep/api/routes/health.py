"""Routes for liveness and readiness."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec
from litestar import get
from litestar.di import NamedDependency

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.errors import problem_specs
from swarmkeep.domain.errors import Draining
from swarmkeep.store.ports import StoreUnavailable

_PING_TIMEOUT_SECONDS = 3.0


class Health(msgspec.Struct, frozen=True):
    status: Literal["ok"]


@get(
    "/health/live",
    operation_id="health_live",
    summary="Whether the process lives",
    responses=problem_specs(keyless=True),
)
async def get_liveness() -> Health:
    return Health("ok")


@get(
    "/health/ready",
    operation_id="health_ready",
    summary="Whether requests are welcome",
    responses=problem_specs("draining", "schema_behind", keyless=True),
)
async def get_readiness(principal: NamedDependency[Principal]) -> Health:
    if principal.service.stopping.is_set():
        raise Draining
    try:
        async with asyncio.timeout(_PING_TIMEOUT_SECONDS):
            await principal.store.ping()
    except TimeoutError:
        raise StoreUnavailable("the database does not answer") from None
    return Health("ok")


ROUTES = [get_liveness, get_readiness]
