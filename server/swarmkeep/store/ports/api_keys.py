"""API keys. A key itself is kept nowhere, only its digest.

A key is a long random text, so a plain SHA-256 of it tells nobody what it is. It holds its own public id: it is looked
up by that, and then compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from datetime import datetime
from typing import Literal, Protocol

import msgspec

from swarmkeep.domain.timestamps import parse_timestamp

Role = Literal["read", "run", "approve", "support", "audit", "write", "admin"]

# How exact `last_used_at` is. Each use of a key would else be a write.
LAST_USED_PRECISION_SECONDS = 60.0

_LABEL_PATTERN = re.compile(r"key_[0-9a-f]{16}(?= \(|\Z)", re.ASCII)
_SECRET_PATTERN = re.compile(r"swk_([0-9a-f]{16})_[A-Za-z0-9_-]{43}", re.ASCII)


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as lists show it. `role` says what it may do (see `api.auth.permissions`). Times are UTC."""

    id: str
    tenant: str
    name: str
    role: Role
    created_at: str
    last_used_at: str | None = None
    revoked_at: str | None = None
    expires_at: str | None = None

    def is_valid(self, at: datetime) -> bool:
        """Whether it counts at this time. An end that cannot be read as a time has come."""
        if self.expires_at is None:
            return self.revoked_at is None
        ends = parse_timestamp(self.expires_at)
        return self.revoked_at is None and ends is not None and at < ends

    @property
    def label(self) -> str:
        """Who acts with this key, in the words that events keep: its id, which is unique, and its name."""
        return f"{self.id} ({self.name})" if self.name else self.id


class StoredApiKey(msgspec.Struct, frozen=True):
    """A key, and the digest that tells whether somebody has it."""

    key: ApiKey
    digest: bytes

    def accepts(self, secret: str, *, at: datetime) -> bool:
        """Whether this is the key itself, and it counts at this time."""
        return hmac.compare_digest(self.digest, hash_secret(secret)) and self.key.is_valid(at)


def parse_key_id(secret: str) -> str | None:
    """The id of the key that this text would be; None if it cannot be one."""
    found = _SECRET_PATTERN.fullmatch(secret)
    return None if found is None else f"key_{found[1]}"


def find_key_id(label: str | None) -> str | None:
    """The id of the key that a label names; None if it names somebody in another way."""
    found = _LABEL_PATTERN.match(label or "")
    return None if found is None else found[0]


def derive_key_id(tenant: str, idempotency_key: str) -> str:
    """The id of a key that this request makes: the same each time it is sent."""
    return f"key_{hashlib.sha256(f'{tenant}/{idempotency_key}'.encode()).hexdigest()[:16]}"


def hash_secret(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


class ApiKeys(Protocol):
    """The API keys. They stay for good: a key that was revoked is still one that exists."""

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
        nobody can find out again.

        Raises InvalidRequest for a tenant or name that cannot be one, and an end that has come.
        """
        ...

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
        ...

    async def find(self, key_id: str) -> StoredApiKey | None:
        """The key with this id, be it revoked or not."""
        ...

    async def note_use(self, key_id: str) -> None:
        """Note that a key is in use, unless that was noted within the last minute."""
        ...

    async def has_keys(self) -> bool:
        """Whether a key was ever made, be it revoked since."""
        ...

    async def list_keys(
        self, *, tenant: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[ApiKey]:
        """Keys, revoked ones included, oldest first; those after the key with the id `after`. Raises InvalidRequest."""
        ...

    async def revoke(self, key_id: str, *, tenant: str | None = None, by: str | None = None) -> ApiKey:
        """End a key for good; its tenant's audit log says `by` whom. One that was revoked before stays as it is.

        `tenant`: only if it is this one's.

        Raises ApiKeyNotFound.
        """
        ...
