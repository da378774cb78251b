"""API keys: made, listed and revoked, in both clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime

from swarmkeep_client import _key_calls as key_calls
from swarmkeep_client._senders import AsyncSender, Sender
from swarmkeep_client.keys import ApiKey, CreatedKey, Role


class Keys:
    """The API keys of the key's own tenant, for keys with the role `admin`."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def create(
        self,
        *,
        name: str = "",
        role: Role = "write",
        expires_at: datetime | str | None = None,
        idempotency_key: str | None = None,
    ) -> CreatedKey:
        """Make a key; `name` says who or what uses it. The key itself is in `key`, this once.

        An answer that is lost is asked for again, and then `key` is None: revoke that key, and make another.
        Raises ValueError for a time without a zone.
        """
        call = key_calls.create_key(name=name, role=role, expires_at=expires_at, idempotency_key=idempotency_key)
        return self._sender.perform(call)

    def list(self, *, page_size: int | None = None) -> Iterator[ApiKey]:
        """Keys, oldest first, with those that were revoked or have ended; never the keys themselves."""
        return self._sender.iterate_pages(key_calls.list_keys(page_size=page_size))

    def revoke(self, key_id: str) -> ApiKey:
        """End a key for good; one that was revoked before stays as it is. Raises ApiKeyNotFound."""
        return self._sender.perform(key_calls.revoke_key(key_id))


class AsyncKeys:
    """The API keys of the key's own tenant, for keys with the role `admin`."""

    def __init__(self, sender: AsyncSender) -> None:
        self._sender = sender

    async def create(
        self,
        *,
        name: str = "",
        role: Role = "write",
        expires_at: datetime | str | None = None,
        idempotency_key: str | None = None,
    ) -> CreatedKey:
        """Make a key; `name` says who or what uses it. The key itself is in `key`, this once.

        An answer that is lost is asked for again, and then `key` is None: revoke that key, and make another.
        Raises ValueError for a time without a zone.
        """
        call = key_calls.create_key(name=name, role=role, expires_at=expires_at, idempotency_key=idempotency_key)
        return await self._sender.perform(call)

    def list(self, *, page_size: int | None = None) -> AsyncIterator[ApiKey]:
        """Keys, oldest first, with those that were revoked or have ended; never the keys themselves."""
        return self._sender.iterate_pages(key_calls.list_keys(page_size=page_size))

    async def revoke(self, key_id: str) -> ApiKey:
        """End a key for good; one that was revoked before stays as it is. Raises ApiKeyNotFound."""
        return await self._sender.perform(key_calls.revoke_key(key_id))
