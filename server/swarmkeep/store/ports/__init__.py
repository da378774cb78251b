"""The store's port, a Protocol for each subject, and all that the engine needs of them as one.

Every implementation passes tests/store.
"""

from __future__ import annotations

from typing import Protocol

from swarmkeep.store.ports.active_runs import ActiveRuns
from swarmkeep.store.ports.changes import ChangeFeed
from swarmkeep.store.ports.errors import OutcomeUnknown, SchemaBehind, StoreUnavailable
from swarmkeep.store.ports.idempotency import IdempotencyRecord, IdempotencyRecordExists, IdempotencyRecords
from swarmkeep.store.ports.index import SearchIndexer, SessionIndex, SessionPage, UsageIndex
from swarmkeep.store.ports.keys import DEFAULT_TENANT, SessionKey
from swarmkeep.store.ports.leases import Claim, Lease, Leases, SessionHead
from swarmkeep.store.ports.log import AppendResult, EventLog, EventReader, Restoration, SealedBatch
from swarmkeep.store.ports.totals import StorageQuota, TenantTotals, TotalsReader

__all__ = [
    "DEFAULT_TENANT",
    "ActiveRuns",
    "AppendResult",
    "ChangeFeed",
    "Claim",
    "EventLog",
    "EventReader",
    "EventStore",
    "IdempotencyRecord",
    "IdempotencyRecordExists",
    "IdempotencyRecords",
    "Lease",
    "Leases",
    "OutcomeUnknown",
    "Restoration",
    "SchemaBehind",
    "SealedBatch",
    "SearchIndexer",
    "SessionHead",
    "SessionIndex",
    "SessionKey",
    "SessionPage",
    "StorageQuota",
    "StoreUnavailable",
    "TenantTotals",
    "TotalsReader",
    "UsageIndex",
]


class EventStore(
    EventLog,
    Leases,
    SessionIndex,
    ActiveRuns,
    SearchIndexer,
    UsageIndex,
    TotalsReader,
    IdempotencyRecords,
    ChangeFeed,
    Protocol,
):
    """A database of sessions. Each call is atomic and, once it returns, durable."""

    async def ping(self) -> None:
        """Touch the database; once a write has failed, try whether it takes any.

        Raises StoreUnavailable, or SchemaBehind when migrations are missing.
        """
        ...

    async def close(self) -> None:
        """Finish the writes that wait, then close every connection."""
        ...
