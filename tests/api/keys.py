"""Keys for the tests' servers."""

from __future__ import annotations

from typing import cast

from swarmkeep.store.keys import KeyStore, Role
from swarmkeep.store.sql import SqlStore
from tests.api.service import Service

Headers = dict[str, str]


def keys_of(service: Service) -> KeyStore:
    return KeyStore(cast(SqlStore, service.engine.store).database)


async def key_for(service: Service, tenant: str, *, name: str = "", role: Role = "write") -> Headers:
    """The headers of somebody with a new key."""
    _, secret = await keys_of(service).create(tenant, name=name, role=role)
    return bearer(secret)


def bearer(secret: str) -> Headers:
    return {"Authorization": f"Bearer {secret}"}
