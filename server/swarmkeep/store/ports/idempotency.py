"""Idempotency records: what requests with an idempotency key have led to. They are written with the events."""

from __future__ import annotations

from typing import Protocol

import msgspec

from swarmkeep.store.ports.keys import SessionKey


class IdempotencyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An idempotency key used on a session: what was asked (a digest of it) and what it led to.

    `seq` is the last event of its effect, `run_id` the run it started, if any.
    """

    key: str
    digest: str
    run_id: str | None = None
    seq: int = 0


class IdempotencyRecordExists(Exception):
    """The idempotency key was used before for the same request: `idempotency` says what it led to."""

    def __init__(self, record: IdempotencyRecord) -> None:
        super().__init__(record.key)
        self.record = record


class IdempotencyRecords(Protocol):
    """The idempotency records of all sessions."""

    async def find_idempotency_record(self, key: SessionKey, idempotency_key: str) -> IdempotencyRecord | None:
        """The record of what an idempotency key was used for, if it was."""
        ...
