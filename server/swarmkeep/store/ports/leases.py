"""Leases: who may advance a session's run, and which runs nobody advances."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Protocol

import msgspec

from swarmkeep.store.ports.keys import SessionKey


class Lease(msgspec.Struct, frozen=True):
    """The right to advance a session's run, until it expires or somebody takes it over (then the epoch moves on)."""

    owner: str
    epoch: int


class Claim(msgspec.Struct, frozen=True):
    """A request for the lease, granted with an append if nobody else holds one that has not expired."""

    owner: str
    lease_seconds: float


class SessionHead(msgspec.Struct, frozen=True):
    """Where a session's log ends, and the lease on it, be it expired or not.

    `partial` is empty once somebody wants to know what the model of its run has said so far, and then the answer.
    """

    seq: int
    hash: str
    lease: Lease | None = None
    partial: str | None = None

    @property
    def is_partial_wanted(self) -> bool:
        return self.partial == ""


class Leases(Protocol):
    """The leases of all sessions."""

    async def renew(self, leases: Mapping[SessionKey, Lease], *, lease_seconds: float) -> set[SessionKey]:
        """Extend these leases, by the database's clock. Returns the sessions on which they are not held any more."""
        ...

    async def renew_from_anywhere(self, leases: Mapping[SessionKey, Lease], *, lease_seconds: float) -> None:
        """Extend these leases, those of them that are still held, from another event loop than the store's."""
        ...

    async def find_abandoned(self, *, limit: int = 100) -> list[SessionKey]:
        """Sessions that are running while nobody holds an unexpired lease on them: of each tenant in its turn, the
        longest abandoned first.
        """
        ...

    async def ask_for_partial(self, key: SessionKey, owner: str) -> bool:
        """Ask the process that advances a session what its model has said so far: `SessionHead.partial` is the answer.

        False if nobody does but `owner`, who asks. The wish ends with the run, or when it is taken over.
        """
        ...

    async def answer_partial(self, key: SessionKey, lease: Lease, text: str) -> None:
        """Answer that, if it is still asked and the lease is still held."""
        ...

    async def find_due(self, *, limit: int = 100) -> list[SessionKey]:
        """Sessions that have become due (see `State.due_at`): of each tenant in its turn, the longest due first."""
        ...

    async def read_clock(self) -> datetime:
        """The present in UTC by the database's clock: the only one that all servers share."""
        ...

    async def read_heads(self, keys: Collection[SessionKey]) -> dict[SessionKey, SessionHead]:
        """Where these sessions end by now; those that do not exist are left out."""
        ...
