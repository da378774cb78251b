"""The half of the event store on SQL that only reads, and keeps nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.state import SessionStatus
from swarmkeep.domain.usage import UsagePage, UsageQuery
from swarmkeep.store import revision
from swarmkeep.store.archive import AuditLogEntry, SessionRows
from swarmkeep.store.cursors import parse_session_cursor
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.ports import IdempotencyRecord, SessionHead, SessionKey, SessionPage
from swarmkeep.store.sql import queries
from swarmkeep.store.sql.audit_log import list_audit_log_tenants, read_audit_log
from swarmkeep.store.sql.database import Database
from swarmkeep.store.sql.heads import find_heads
from swarmkeep.store.sql.redacting import find_copies, read_redacted_payloads
from swarmkeep.store.sql.session_rows import list_session_keys, read_session_rows
from swarmkeep.store.sql.usage import read_usage_rows, sum_usage


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
    ) -> list[RecordedEvent]:
        return await self.database.read(
            lambda connection: queries.read_events(connection, key, after=after, upto=upto, types=types, limit=limit)
        )

    async def sealed(
        self, key: SessionKey, *, after: int = 0, upto: int | None = None, limit: int = 1000
    ) -> list[SealedEvent]:
        last = queries.MAX_BIGINT if upto is None else upto
        return await self.database.read(
            lambda connection: queries.read_sealed(connection, key, after=after, upto=last, limit=limit)
        )

    async def read_session_rows(self, key: SessionKey) -> SessionRows:
        return await self.database.read(lambda connection: read_session_rows(connection, key))

    async def keys(
        self, tenant: str | None = None, *, after: SessionKey | None = None, limit: int = 500
    ) -> list[SessionKey]:
        return await self.database.read(lambda connection: list_session_keys(connection, tenant, after, limit))

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
            before=None if cursor is None else parse_session_cursor(cursor),
        )
        return await self.database.read(query)

    async def blobs(self, key: SessionKey, hashes: Sequence[str]) -> dict[str, str]:
        return await self.database.read(lambda connection: queries.find_blobs(connection, key, hashes))

    async def usage(self, tenant: str, query: UsageQuery) -> UsagePage:
        return await self.database.read(lambda connection: sum_usage(connection, tenant, query))

    async def mark(self, key: SessionKey, idempotency_key: str) -> IdempotencyRecord | None:
        return await self.database.read(
            lambda connection: queries.find_idempotency_record(connection, key, idempotency_key)
        )

    async def find_abandoned(self, *, limit: int = 100) -> list[SessionKey]:
        return await self.database.read(lambda connection: queries.find_abandoned(connection, limit))

    async def ping(self) -> None:
        await self.database.read(lambda connection: revision.require_latest(connection, self.display))

    async def close(self) -> None:
        await self.database.close()

    async def read_usage_rows(self, key: SessionKey, *, after: int, upto: int) -> dict[int, dict[str, Any]]:
        return await self.database.read(lambda connection: read_usage_rows(connection, key, after, upto))

    async def find_copies(self, key: SessionKey, events: Mapping[int, bytes]) -> dict[SessionKey, list[int]]:
        return await self.database.read(lambda connection: find_copies(connection, key, events))

    async def read_redacted_payloads(self, key: SessionKey, *, upto: int) -> dict[int, str]:
        return await self.database.read(lambda connection: read_redacted_payloads(connection, key, upto))

    async def read_audit_log(self, tenant: str, *, after: int = 0, limit: int = 200) -> list[AuditLogEntry]:
        return await self.database.read(lambda connection: read_audit_log(connection, tenant, after, limit))

    async def list_audit_log_tenants(self) -> list[str]:
        return await self.database.read(list_audit_log_tenants)

    async def heads(self, keys: Collection[SessionKey]) -> dict[SessionKey, SessionHead]:
        return await self.database.read(lambda connection: find_heads(connection, keys))

    async def head(self, key: SessionKey) -> SessionHead | None:
        return (await self.heads([key])).get(key)

    async def listen(self, heard: Callable[[SessionKey], None]) -> None:
        await self.database.listen(heard)
