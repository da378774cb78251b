"""Keys for the tests' servers."""

from __future__ import annotations

from typing import cast

from swarmkeep.store.keys import Role, SqlApiKeys
from swarmkeep.store.opening import SqlStore
from tests.http.server import RunningServer

Headers = dict[str, str]


def key_store(service: RunningServer) -> SqlApiKeys:
    return SqlApiKeys(cast(SqlStore, service.engine.store).database)


async def create_key(service: RunningServer, tenant: str, *, name: str = "", role: Role = "write") -> Headers:
    """The headers of somebody with a new key."""
    _, secret = await key_store(service).create(tenant, name=name, role=role)
    return bearer_headers(secret)


def bearer_headers(secret: str) -> Headers:
    return {"Authorization": f"Bearer {secret}"}
