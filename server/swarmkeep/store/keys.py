"""API keys. A key itself is kept nowhere, only its digest.

A key is a long random text, so a plain SHA-256 of it does not reveal it. It holds its own public id: it is looked
up by that, and then compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, and_, or_, select, update

from swarmkeep.events.codec import parse_timestamp, to_timestamp
from swarmkeep.events.errors import ApiKeyNotFound, IdempotencyMismatch, InvalidRequest
from swarmkeep.store.audit import record_action
from swarmkeep.store.records import BAD_CURSOR, AuditAction, Clock, utc_now
from swarmkeep.store.statements import Database, build_insert_if_absent
from swarmkeep.store.tables import api_keys

Role = Literal["read", "run", "approve", "support", "audit", "write", "admin"]

# How exact `last_used_at` is. Each use of a key would else be a write.
LAST_USED_PRECISION_SECONDS = 60.0

_SECRET_PATTERN = re.compile(r"swk_([0-9a-f]{16})_[A-Za-z0-9_-]{43}", re.ASCII)


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as lists show it. Times are UTC."""

    id: str
    """Its id."""
    tenant: str
    """The tenant whose sessions it opens."""
    name: str
    """Who or what uses it."""
    role: Role
    """What it may do."""
    created_at: str
    """When it was made."""
    last_used_at: str | None = None
    """When it was last used, to a minute; or null."""
    revoked_at: str | None = None
    """When it was revoked, or null."""
    expires_at: str | None = None
    """When it expires, or null."""

    def is_valid(self, at: datetime) -> bool:
        """Tell if it counts at this time. An end that cannot be read as a time has come."""
        if self.expires_at is None:
            return self.revoked_at is None
        ends = parse_timestamp(self.expires_at)
        return self.revoked_at is None and ends is not None and at < ends

    @property
    def label(self) -> str:
        """The actor's name with this key, in the words that events keep: its id, which is unique, and its name."""
        return f"{self.id} ({self.name})" if self.name else self.id


class StoredApiKey(msgspec.Struct, frozen=True):
    """A key, and the digest by which a caller's key is checked."""

    key: ApiKey
    digest: bytes

    def accepts(self, secret: str, *, at: datetime) -> bool:
        """Tell if this is the key itself, and it counts at this time."""
        return hmac.compare_digest(self.digest, hash_secret(secret)) and self.key.is_valid(at)


def parse_key_id(secret: str) -> str | None:
    """The id of the key that this text would be; None if it cannot be one."""
    found = _SECRET_PATTERN.fullmatch(secret)
    return None if found is None else f"key_{found[1]}"


def derive_key_id(tenant: str, idempotency_key: str) -> str:
    """The id of a key that this request makes: the same each time it is sent."""
    return f"key_{hashlib.sha256(f'{tenant}/{idempotency_key}'.encode()).hexdigest()[:16]}"


def hash_secret(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


_TENANT_PATTERN = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
_MAX_NAME_CHARS = 200
# What a request for a key says of it.
_WANTED = ("tenant", "name", "role", "expires_at")

_KEY_COLUMNS = [api_keys.c[name] for name in ApiKey.__struct_fields__]


class SqlApiKeys:
    """The API keys. They stay for good: a key that was revoked is still one that exists."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def create(
        self,
        tenant: str,
        *,
        name: str = "",
        role: Role = "write",
        expires_at: datetime | None = None,
        by: str | None = None,
    ) -> tuple[ApiKey, str]:
        """Make a key; the tenant's audit log says `by` whom. The second of what it gives is the key itself, which
        cannot be found out again.

        Raises InvalidRequest for a tenant or name that cannot be one, and an end that has come.
        """
        made = self._plan(f"key_{secrets.token_hex(8)}", tenant, name, role, expires_at)
        secret = _make_secret(made)
        if not await self._insert(made, secret, by):
            # Of 2^64 ids, one that was taken: as likely as two keys that are alike.
            return await self.create(tenant, name=name, role=role, expires_at=expires_at, by=by)
        return made, secret

    async def create_once(
        self,
        tenant: str,
        idempotency_key: str,
        *,
        name: str = "",
        role: Role = "write",
        expires_at: datetime | None = None,
        by: str | None = None,
    ) -> tuple[ApiKey, str | None]:
        """As `create`; asked again with the same idempotency key, it gives the key as it is now, and None.

        Raises IdempotencyMismatch if that is a key of another kind.
        """
        wanted = self._plan(derive_key_id(tenant, idempotency_key), tenant, name, role, expires_at)
        secret = _make_secret(wanted)
        if await self._insert(wanted, secret, by):
            return wanted, secret
        found = await self.find(wanted.id)
        if found is None or any(getattr(found.key, field) != getattr(wanted, field) for field in _WANTED):
            raise IdempotencyMismatch(idempotency_key)
        return found.key, None

    def _plan(self, key_id: str, tenant: str, name: str, role: Role, expires_at: datetime | None) -> ApiKey:
        _check_names(tenant, name)
        now = self._clock()
        if expires_at is not None and expires_at <= now:
            raise InvalidRequest("a key must expire in the future", "/expires_at")
        ends = None if expires_at is None else to_timestamp(expires_at)
        return ApiKey(id=key_id, tenant=tenant, name=name, role=role, created_at=to_timestamp(now), expires_at=ends)

    async def _insert(self, made: ApiKey, secret: str, by: str | None) -> bool:
        """Insert the key; tell if there was none with its id."""
        row = {**msgspec.to_builtins(made), "key_hash": hash_secret(secret)}

        def job(connection: Connection) -> bool:
            statement = build_insert_if_absent(api_keys, connection.dialect.name).values(**row)
            if connection.execute(statement).rowcount == 0:
                return False
            _record(connection, "key.created", made, by, made.created_at)
            return True

        return await self._database.write(job)

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
        """Tell if a key was ever made, be it revoked since."""
        query = select(api_keys.c.id).limit(1)
        return await self._database.read(lambda connection: connection.scalar(query)) is not None

    async def list_keys(
        self, *, tenant: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[ApiKey]:
        """Keys, revoked ones included, oldest first; those after the key with the id `after`. Raises InvalidRequest."""
        columns = api_keys.c
        query = select(*_KEY_COLUMNS).order_by(columns.created_at, columns.id).limit(limit)
        if tenant is not None:
            query = query.where(columns.tenant == tenant)
        if after is not None:
            last = await self.find(after)
            if last is None or tenant not in (None, last.key.tenant):
                raise InvalidRequest(BAD_CURSOR, "/query/cursor")
            later = and_(columns.created_at == last.key.created_at, columns.id > after)
            query = query.where(or_(columns.created_at > last.key.created_at, later))
        rows = await self._database.read(lambda connection: connection.execute(query).mappings().all())
        return [_make_key(row) for row in rows]

    async def revoke(self, key_id: str, *, tenant: str | None = None, by: str | None = None) -> ApiKey:
        """End a key for good; its tenant's audit log says `by` whom. One that was revoked before stays as it is.

        `tenant`: only if it is this one's.

        Raises ApiKeyNotFound.
        """
        at = to_timestamp(self._clock())

        def job(connection: Connection) -> ApiKey:
            found = _find_key(connection, key_id)
            if found is None or tenant not in (None, found.key.tenant):
                raise ApiKeyNotFound
            columns = api_keys.c
            change = update(api_keys).where(columns.id == key_id, columns.revoked_at.is_(None))
            if connection.execute(change.values(revoked_at=at)).rowcount:
                _record(connection, "key.revoked", found.key, by, at)
            ended = _find_key(connection, key_id)
            return found.key if ended is None else ended.key

        return await self._database.write(job)


def _check_names(tenant: str, name: str) -> None:
    if not _TENANT_PATTERN.fullmatch(tenant):
        raise InvalidRequest("a tenant name must have 1 to 128 of the characters A-Z a-z 0-9 . _ : -", "/tenant")
    if len(name) > _MAX_NAME_CHARS or not name.isprintable():
        raise InvalidRequest(f"a key name must have at most {_MAX_NAME_CHARS} printable characters", "/name")


def _make_secret(key: ApiKey) -> str:
    return f"swk_{key.id.removeprefix('key_')}_{secrets.token_urlsafe(32)}"


def _record(connection: Connection, type: str, key: ApiKey, by: str | None, at: str) -> None:
    data = {"key_id": key.id, "name": key.name, "role": key.role, "expires_at": key.expires_at}
    record_action(connection, key.tenant, AuditAction(type=type, by=by), data, at)


def _find_key(connection: Connection, key_id: str) -> StoredApiKey | None:
    query = select(*_KEY_COLUMNS, api_keys.c.key_hash).where(api_keys.c.id == key_id)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else StoredApiKey(_make_key(row), row["key_hash"])


def _make_key(row: Mapping[Any, Any]) -> ApiKey:
    return msgspec.convert({name: row[name] for name in ApiKey.__struct_fields__}, ApiKey)
