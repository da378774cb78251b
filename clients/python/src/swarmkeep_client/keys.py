"""API keys, and what a server tells the caller about itself."""

from __future__ import annotations

import msgspec


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key as lists show it. `role` says what it may do. Times are UTC, or None."""

    id: str
    tenant: str
    name: str
    role: str
    created_at: str
    last_used_at: str | None = None
    revoked_at: str | None = None
    expires_at: str | None = None


class CallerKey(msgspec.Struct, frozen=True, kw_only=True):
    """The API key that a client uses."""

    id: str
    name: str
    expires_at: str | None = None


class FileRules(msgspec.Struct, frozen=True, kw_only=True):
    """The server's limits for files in messages. Sizes are in bytes, decoded; `audio/*` is all of audio."""

    types: list[str]
    max_bytes: int
    max_message_bytes: int
    max_count: int


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The key, tenant and role that the server sees in a client. Without API keys, `key` and `role` are None.

    `files` is None from a server that does not tell its limits.
    """

    tenant: str
    permissions: list[str]
    key: CallerKey | None = None
    role: str | None = None
    files: FileRules | None = None


class CreatedKey(ApiKey, frozen=True, kw_only=True):
    """A new key. `key` is the key itself: this once, and None when the request was made before.

    It is not shown where this value is printed.
    """

    key: str | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} {self.role}>"
