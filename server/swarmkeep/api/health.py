"""Whether the process lives, and whether it should be sent requests."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec
from litestar import get
from litestar.di import NamedDependency

from swarmkeep.api.access import Caller
from swarmkeep.api.errors import problems
from swarmkeep.domain.errors import Draining
from swarmkeep.store.port import StoreUnavailable

_PATIENCE_SECONDS = 3.0


class Health(msgspec.Struct, frozen=True):
    status: Literal["ok"]


@get("/health/live", operation_id="health_live", summary="Whether the process lives", responses=problems(keyless=True))
async def live() -> Health:
    return Health("ok")


@get(
    "/health/ready",
    operation_id="health_ready",
    summary="Whether requests are welcome",
    responses=problems("draining", "schema_behind", keyless=True),
)
async def ready(caller: NamedDependency[Caller]) -> Health:
    if caller.service.stopping.is_set():
        raise Draining
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await caller.engine.store.ping()
    except TimeoutError:
        raise StoreUnavailable("the database does not answer") from None
    return Health("ok")


ROUTES = [live, ready]
