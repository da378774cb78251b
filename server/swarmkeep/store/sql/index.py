"""The session list: head rows as lists show them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from swarmkeep.domain.codec import decode, encode
from swarmkeep.domain.events import Usage
from swarmkeep.domain.state import SessionStatus
from swarmkeep.domain.views import ListedSession, SessionSummary
from swarmkeep.store.cursors import encode_cursor, parse_session_cursor
from swarmkeep.store.ports.index import SessionPage
from swarmkeep.store.sql.columns import as_bytes, stored_bytes
from swarmkeep.store.sql.database import OnDatabase
from swarmkeep.store.sql.indexes.session_search import Place, SessionFilter, find_sessions
from swarmkeep.store.sql.tables import sessions


class SqlSessionIndex(OnDatabase):
    """SessionIndex on a Database."""

    async def list_sessions(
        self,
        tenant: str,
        *,
        agent: str | None = None,
        status: SessionStatus | None = None,
        metadata: Mapping[str, str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
        include_context: bool = False,
        max_bytes: int | None = None,
    ) -> SessionPage:
        query = functools.partial(
            list_sessions,
            wanted=SessionFilter(tenant=tenant, agent=agent, status=status, metadata=metadata or {}),
            limit=limit,
            before=None if cursor is None else parse_session_cursor(cursor),
            include_context=include_context,
            max_bytes=sys.maxsize if max_bytes is None else max_bytes,
        )
        return await self.database.read(query, seconds=self.read_seconds)


def list_sessions(
    connection: Connection,
    wanted: SessionFilter,
    *,
    limit: int,
    before: tuple[str, str] | None,
    include_context: bool,
    max_bytes: int,
) -> SessionPage:
    """One page of a tenant's sessions, newest first; `before` is the last one's time and id on the page before."""
    found = find_sessions(connection, wanted, limit=limit, before=before)
    after = found.after
    shown: list[ListedSession] = []
    size = 0
    for place, listed in _read_views(connection, wanted.tenant, found.places, include_context, max_bytes):
        shown.append(listed)
        size += len(encode(listed))
        if size >= max_bytes and place != found.places[-1]:
            after = place
            break
    return SessionPage(shown, None if after is None else encode_cursor(after))


def _read_views(
    connection: Connection, tenant: str, places: Sequence[Place], include_context: bool, max_bytes: int
) -> Iterator[tuple[Place, ListedSession]]:
    """The sessions that were found, of whose stored views no more than `max_bytes` or one are in memory at a time."""
    for part in _divide(places, _read_view_sizes(connection, tenant, places), max_bytes):
        rows = {row.id: row for row in _select_by_id(connection, tenant, part, (sessions.c.view, *_LISTED_COLUMNS))}
        for place in part:
            # One that is not there any more was deleted at this very moment.
            if place[1] in rows:
                yield place, _decode_view(rows[place[1]], include_context)


def _read_view_sizes(connection: Connection, tenant: str, places: Sequence[Place]) -> dict[str, int]:
    columns = (sessions.c.id, stored_bytes(sessions.c.view).label("size"))
    return {row.id: row.size for row in _select_by_id(connection, tenant, places, columns)}


def _select_by_id(connection: Connection, tenant: str, places: Sequence[Place], columns: Iterable[Any]) -> Any:
    names = [name for _, name in places]
    return connection.execute(select(*columns).where(sessions.c.tenant == tenant, sessions.c.id.in_(names)))


def _divide(places: Sequence[Place], sizes: Mapping[str, int], max_bytes: int) -> Iterator[list[Place]]:
    part: list[Place] = []
    total = 0
    for place in places:
        size = sizes.get(place[1], 0)
        if part and total + size > max_bytes:
            yield part
            part, total = [], 0
        part.append(place)
        total += size
    if part:
        yield part


_LISTED_COLUMNS = (
    sessions.c.id,
    sessions.c.status,
    sessions.c.agent,
    sessions.c.head_seq,
    sessions.c.head_hash,
    sessions.c.created_at,
    sessions.c.updated_at,
)


def _decode_view(row: Any, include_context: bool) -> ListedSession:
    """A session as its head row shows it; as far as the other columns go, if somebody damaged the view."""
    try:
        if include_context:
            return decode(row.view, ListedSession)
        return msgspec.convert(decode(row.view, SessionSummary), ListedSession, from_attributes=True)
    except (ValueError, TypeError):
        return ListedSession(
            id=row.id,
            status=row.status,
            agent=row.agent,
            context_variables={} if include_context else msgspec.UNSET,
            metadata={},
            seq=row.head_seq,
            hash=as_bytes(row.head_hash).hex(),
            active_run_id=None,
            message_count=0,
            usage=Usage(),
            forked_from=None,
            created_at=row.created_at,
            updated_at=row.updated_at,
        )
