"""Idempotency keys: a request that is sent again has its effect once and gets the same answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import NAMESPACE_URL, uuid5

import msgspec

from swarmkeep.domain.errors import DomainError, IdempotencyMismatch
from swarmkeep.engine.ids import derive_id
from swarmkeep.store.ports import EventStore, IdempotencyRecord, IdempotencyRecordExists, SessionKey

T = TypeVar("T")


class IdempotentRequest(msgspec.Struct, frozen=True):
    """A key that the caller chose, and a digest of the request it came with."""

    key: str
    digest: str

    def make_record(self, run_id: str | None = None) -> IdempotencyRecord:
        return IdempotencyRecord(key=self.key, digest=self.digest, run_id=run_id)

    def derive_session_id(self, tenant: str) -> str:
        """The id of a session that this request makes without naming one: the same each time it is sent."""
        return derive_id("sess", f"{tenant}/{self.key}")

    def derive_older_session_id(self, tenant: str) -> str:
        """What that was before ids became shorter: a key is good for as long as its session lives."""
        return f"sess_{uuid5(NAMESPACE_URL, f'{tenant}/{self.key}').hex}"


async def run_once(
    store: EventStore, key: SessionKey, request: IdempotentRequest | None, effect: Callable[[], Awaitable[T]]
) -> T | IdempotencyRecord:
    """Carry out `effect`, whose append carries the record of `request`; or give the record that an earlier one left.

    A refusal may only mean that the effect is there already: then the record answers instead.
    Raises IdempotencyMismatch when the key came with another request.
    """
    try:
        return await effect()
    except IdempotencyRecordExists as known:
        return known.record
    except DomainError:
        record = await find_record(store, key, request)
        if record is None:
            raise
        return record


async def find_record(
    store: EventStore, key: SessionKey, request: IdempotentRequest | None
) -> IdempotencyRecord | None:
    """What this request left in a session when it came before. Raises IdempotencyMismatch if that was another one."""
    record = None if request is None else await store.find_idempotency_record(key, request.key)
    if request is not None and record is not None and record.digest != request.digest:
        raise IdempotencyMismatch(request.key)
    return record
