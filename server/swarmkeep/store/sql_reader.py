"""The half of the event store on SQL that only reads, and keeps nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from swarmkeep.domain.envelope import Recorded
from swarmkeep.domain.state import SessionStatus
from swarmkeep.domain.usage import UsagePage, UsageQuery
from swarmkeep.store import queries, revision
from swarmkeep.store.archive import Evidence, TrailEntry
from swarmkeep.store.cursors import parse_cursor
from swarmkeep.store.database import Database
from swarmkeep.store.evidence import all_keys, read_evidence
from swarmkeep.store.hashing import Sealed
from swarmkeep.store.heads import find_heads
from swarmkeep.store.port import Head, Mark, SessionKey, SessionPage
from swarmkeep.store.redacting import copies_of, hollow_events
from swarmkeep.store.trail import read_trail, tenants_of
from swarmkeep.store.usage import rows_between, summed


class SqlReader:
    """What EventStore says of each call holds."""

    def __init__(self, database: Database, *, display: str) -> None:
        self.database = database
        self.display = display
        """The database's URL without its password."""

    async def read(
        self,
        key: SessionKey,
        *,
        after: int = 0,
        upto: int | None = None,
        types: Sequence[str] = (),
        limit: int | None = None,
    ) -> list[Recorded]:
        return await self.database.read(
            lambda connection: queries.read_events(connection, key, after=after, upto=upto, types=types, limit=limit)
        )

    async def sealed(
        self, key: SessionKey, *, after: int = 0, upto: int | None = None, limit: int = 1000
    ) -> list[Sealed]:
        last = queries.MAX_BIGINT if upto is None else upto
        return await self.database.read(
            lambda connection: queries.read_sealed(connection, key, after=after, upto=last, limit=limit)
        )

    async def evidence(self, key: SessionKey) -> Evidence:
        return await self.database.read(lambda connection: read_evidence(connection, key))

    async def keys(
        self, tenant: str | None = None, *, after: SessionKey | None = None, limit: int = 500
    ) -> list[SessionKey]:
        return await self.database.read(lambda connection: all_keys(connection, tenant, after, limit))

    async def sessions(
        self,
        tenant: str,
        *,
        agent: str | None = None,
        status: SessionStatus | None = None,
        metadata: Mapping[str, str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> SessionPage:
        query = functools.partial(
            queries.list_sessions,
            tenant=tenant,
            agent=agent,
            status=status,
            metadata=metadata or {},
            limit=limit,
            before=None if cursor is None else parse_cursor(cursor),
        )
        return await self.database.read(query)

    async def blobs(self, key: SessionKey, hashes: Sequence[str]) -> dict[str, str]:
        return await self.database.read(lambda connection: queries.find_blobs(connection, key, hashes))

    async def usage(self, tenant: str, query: UsageQuery) -> UsagePage:
        return await self.database.read(lambda connection: summed(connection, tenant, query))

    async def mark(self, key: SessionKey, idempotency_key: str) -> Mark | None:
        return await self.database.read(lambda connection: queries.find_mark(connection, key, idempotency_key))

    async def abandoned(self, *, limit: int = 100) -> list[SessionKey]:
        return await self.database.read(lambda connection: queries.find_abandoned(connection, limit))

    async def ping(self) -> None:
        await self.database.read(lambda connection: revision.require_head(connection, self.display))

    async def close(self) -> None:
        await self.database.close()

    async def usage_rows(self, key: SessionKey, *, after: int, upto: int) -> dict[int, dict[str, Any]]:
        return await self.database.read(lambda connection: rows_between(connection, key, after, upto))

    async def copies(self, key: SessionKey, events: Mapping[int, bytes]) -> dict[SessionKey, list[int]]:
        return await self.database.read(lambda connection: copies_of(connection, key, events))

    async def hollow(self, key: SessionKey, *, upto: int) -> dict[int, str]:
        return await self.database.read(lambda connection: hollow_events(connection, key, upto))

    async def trail(self, tenant: str, *, after: int = 0, limit: int = 200) -> list[TrailEntry]:
        return await self.database.read(lambda connection: read_trail(connection, tenant, after, limit))

    async def trail_tenants(self) -> list[str]:
        return await self.database.read(tenants_of)

    async def heads(self, keys: Collection[SessionKey]) -> dict[SessionKey, Head]:
        return await self.database.read(lambda connection: find_heads(connection, keys))

    async def head(self, key: SessionKey) -> Head | None:
        return (await self.heads([key])).get(key)

    async def hear(self, heard: Callable[[SessionKey], None]) -> None:
        await self.database.hear(heard)
