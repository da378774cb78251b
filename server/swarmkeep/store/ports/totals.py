"""What a tenant has stored and used, counted as it is recorded, and how much of it there may be."""

from __future__ import annotations

from typing import Protocol

import msgspec

from swarmkeep.domain.errors import QuotaExceeded
from swarmkeep.domain.wording import pluralize


class TenantTotals(msgspec.Struct, frozen=True, kw_only=True):
    """`bytes`: of the events' payloads and of the texts that they name. `tokens`: of the model calls of `day`, in UTC.

    A deletion gives sessions and bytes back, but not tokens. `seconds_left`: until that day is over.
    """

    sessions: int
    bytes: int
    day: str
    tokens: int
    seconds_left: int = 0


class StorageQuota(msgspec.Struct, frozen=True, kw_only=True):
    """How many sessions and bytes a tenant may have: what goes past them is refused as it is recorded.

    Exact on SQLite. On PostgreSQL writes that are made at the same moment do not see one another, so that as many may
    pass as a server has connections.
    """

    max_sessions: int
    max_bytes: int

    def check(self, totals: TenantTotals, *, is_new_session: bool) -> None:
        """Raises QuotaExceeded if these are more."""
        if is_new_session and totals.sessions > self.max_sessions:
            raise QuotaExceeded(
                f"the tenant has {pluralize(self.max_sessions, 'session')} and may not have more "
                "(SWARMKEEP_MAX_SESSIONS); delete some, or have the limit raised"
            )
        if totals.bytes > self.max_bytes:
            raise QuotaExceeded(
                f"the tenant would have {totals.bytes} bytes stored, of {self.max_bytes} (SWARMKEEP_MAX_STORED_BYTES); "
                "delete sessions, or have the limit raised"
            )


class TotalsDrift(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant whose counters are not what its rows say."""

    tenant: str
    counted_sessions: int
    sessions: int
    counted_bytes: int
    bytes: int


class TotalsReader(Protocol):
    """What is counted by tenant."""

    async def read_totals(self, tenant: str) -> TenantTotals:
        """The tenant's totals; the tokens are those of today."""
        ...
