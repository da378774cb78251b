"""API keys: made, found, listed, revoked. A key itself is kept nowhere, only its digest.

A key is a long random text, so a plain SHA-256 of it tells nobody what it is. It holds its own public id: it is looked
up by that, and then compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, insert, or_, select, update

from swarmkeep.domain.errors import InvalidRequest
from swarmkeep.domain.timestamps import to_timestamp
from swarmkeep.store.sql.database import Database
from swarmkeep.store.sql.store import Clock, utc_now
from swarmkeep.store.sql.tables import api_keys

Role = Literal["read", "write"]

# How exact `last_used_at` is. Each use of a key would else be a write.
LAST_USED_PRECISION_SECONDS = 60.0

_SECRET_PATTERN = re.compile(r"swk_([0-9a-f]{16})_[A-Za-z0-9_-]{43}", re.ASCII)
_TENANT_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
_MAX_NAME_CHARS = 200


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a key. `role`: `read` keys change nothing. Times are UTC."""

    id: str
    tenant: str
    name: str
    role: Role
    created_at: str
    last_used_at: str | None = None
    revoked_at: str | None = None

    @property
    def label(self) -> str:
        """Who acts with this key, in the words that events keep: its id, which is unique, and its name."""
        return f"{self.id} ({self.name})" if self.name else self.id


class StoredApiKey(msgspec.Struct, frozen=True):
    """A key, and the digest that tells whether somebody has it."""

    key: ApiKey
    digest: bytes

    def accepts(self, secret: str) -> bool:
        """Whether this is the key itself, and it still counts."""
        return hmac.compare_digest(self.digest, _hash_secret(secret)) and self.key.revoked_at is None


def parse_key_id(secret: str) -> str | None:
    """The id of the key that this text would be; None if it cannot be one."""
    found = _SECRET_PATTERN.fullmatch(secret)
    return None if found is None else f"key_{found[1]}"


class ApiKeyNotFound(Exception):
    """There is no key with this id."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"no API key has the id {key_id!r}")


_KEY_COLUMNS = [api_keys.c[name] for name in ApiKey.__struct_fields__]


class ApiKeyStore:
    """The API keys in a database. Rows stay for good: a key that was revoked is still one that exists."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def create(self, tenant: str, *, name: str = "", role: Role = "write") -> tuple[ApiKey, str]:
        """Make a key. The second of what it gives is the key itself, which nobody can find out again.

        Raises InvalidRequest for a tenant or name that cannot be one.
        """
        if not _TENANT_PATTERN.fullmatch(tenant):
            raise InvalidRequest("a tenant's name is 1 to 128 characters of A-Z a-z 0-9 . _ : -", "/tenant")
        if len(name) > _MAX_NAME_CHARS or not name.isprintable():
            raise InvalidRequest(f"a key's name is at most {_MAX_NAME_CHARS} printable characters", "/name")
        number = secrets.token_hex(8)
        secret = f"swk_{number}_{secrets.token_urlsafe(32)}"
        made = ApiKey(id=f"key_{number}", tenant=tenant, name=name, role=role, created_at=self._now())
        row = {**msgspec.to_builtins(made), "key_hash": _hash_secret(secret)}
        await self._database.write(lambda connection: connection.execute(insert(api_keys), row))
        return made, secret

    async def find(self, key_id: str) -> StoredApiKey | None:
        """The key with this id, be it revoked or not."""
        return await self._database.read(lambda connection: _find_key(connection, key_id))

    async def note_use(self, key_id: str) -> None:
        """Note that a key is in use, unless that was noted within the last minute."""
        now, columns = self._clock(), api_keys.c
        stale = to_timestamp(now - timedelta(seconds=LAST_USED_PRECISION_SECONDS))
        older = or_(columns.last_used_at.is_(None), columns.last_used_at <= stale)
        change = update(api_keys).where(columns.id == key_id, older).values(last_used_at=to_timestamp(now))
        await self._database.write(lambda connection: connection.execute(change))

    async def has_keys(self) -> bool:
        """Whether a key was ever made, be it revoked since."""
        query = select(api_keys.c.id).limit(1)
        return await self._database.read(lambda connection: connection.scalar(query)) is not None

    async def all(self, *, tenant: str | None = None) -> list[ApiKey]:
        """Every key, revoked ones included, oldest first."""
        query = select(*_KEY_COLUMNS).order_by(api_keys.c.created_at, api_keys.c.id)
        if tenant is not None:
            query = query.where(api_keys.c.tenant == tenant)
        rows = await self._database.read(lambda connection: connection.execute(query).mappings().all())
        return [_make_key(row) for row in rows]

    async def revoke(self, key_id: str) -> ApiKey:
        """End a key for good. One that was revoked before keeps the time of that.

        Raises KeyNotFound.
        """
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


def _hash_secret(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
