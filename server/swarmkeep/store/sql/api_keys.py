"""The table of API keys."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection, insert, or_, select, update

from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.domain.timestamps import to_timestamp
from swarmkeep.store.clock import Clock, utc_now
from swarmkeep.store.ports.api_keys import (
    LAST_USED_PRECISION_SECONDS,
    ApiKey,
    ApiKeyNotFound,
    ApiKeys,
    Role,
    StoredApiKey,
    hash_secret,
)
from swarmkeep.store.sql.database import Database
from swarmkeep.store.sql.tables import api_keys

_TENANT_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
_MAX_NAME_CHARS = 200

_KEY_COLUMNS = [api_keys.c[name] for name in ApiKey.__struct_fields__]


class SqlApiKeys:
    """ApiKeys (see there for what each call promises) on a Database."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def create(
        self, tenant: str, *, name: str = "", role: Role = "write", expires_at: datetime | None = None
    ) -> tuple[ApiKey, str]:
        if not _TENANT_PATTERN.fullmatch(tenant):
            raise InvalidRequest("a tenant name must be 1 to 128 characters from A-Z a-z 0-9 . _ : -", "/tenant")
        if len(name) > _MAX_NAME_CHARS or not name.isprintable():
            raise InvalidRequest(f"a key name must be at most {_MAX_NAME_CHARS} printable characters", "/name")
        now = self._clock()
        if expires_at is not None and expires_at <= now:
            raise InvalidRequest("the end of a key must be in the future", "/expires_at")
        number = secrets.token_hex(8)
        secret = f"swk_{number}_{secrets.token_urlsafe(32)}"
        made = ApiKey(
            id=f"key_{number}",
            tenant=tenant,
            name=name,
            role=role,
            created_at=to_timestamp(now),
            expires_at=None if expires_at is None else to_timestamp(expires_at),
        )
        row = {**msgspec.to_builtins(made), "key_hash": hash_secret(secret)}
        await self._database.write(lambda connection: connection.execute(insert(api_keys), row))
        return made, secret

    async def find(self, key_id: str) -> StoredApiKey | None:
        return await self._database.read(lambda connection: _find_key(connection, key_id))

    async def note_use(self, key_id: str) -> None:
        now, columns = self._clock(), api_keys.c
        stale = to_timestamp(now - timedelta(seconds=LAST_USED_PRECISION_SECONDS))
        older = or_(columns.last_used_at.is_(None), columns.last_used_at <= stale)
        change = update(api_keys).where(columns.id == key_id, older).values(last_used_at=to_timestamp(now))
        await self._database.write(lambda connection: connection.execute(change))

    async def has_keys(self) -> bool:
        query = select(api_keys.c.id).limit(1)
        return await self._database.read(lambda connection: connection.scalar(query)) is not None

    async def list_keys(self, *, tenant: str | None = None) -> list[ApiKey]:
        query = select(*_KEY_COLUMNS).order_by(api_keys.c.created_at, api_keys.c.id)
        if tenant is not None:
            query = query.where(api_keys.c.tenant == tenant)
        rows = await self._database.read(lambda connection: connection.execute(query).mappings().all())
        return [_make_key(row) for row in rows]

    async def revoke(self, key_id: str) -> ApiKey:
        columns = api_keys.c
        change = update(api_keys).where(columns.id == key_id, columns.revoked_at.is_(None))
        change = change.values(revoked_at=self._now())

        def job(connection: Connection) -> StoredApiKey | None:
            connection.execute(change)
            return _find_key(connection, key_id)

        found = await self._database.write(job)
        if found is None:
            raise ApiKeyNotFound(key_id)
        return found.key

    def _now(self) -> str:
        return to_timestamp(self._clock())


def _find_key(connection: Connection, key_id: str) -> StoredApiKey | None:
    query = select(*_KEY_COLUMNS, api_keys.c.key_hash).where(api_keys.c.id == key_id)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else StoredApiKey(_make_key(row), row["key_hash"])


def _make_key(row: Mapping[Any, Any]) -> ApiKey:
    return msgspec.convert({name: row[name] for name in ApiKey.__struct_fields__}, ApiKey)


if TYPE_CHECKING:
    _: type[ApiKeys] = SqlApiKeys
