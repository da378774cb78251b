"""The session list: head rows as lists show them."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from sqlalchemy import Connection, select

from swarmkeep.domain.codec import decode, encode
from swarmkeep.domain.events import Usage
from swarmkeep.domain.finding.words import Term
from swarmkeep.domain.state import SessionStatus
from swarmkeep.domain.views import ListedSession, SessionSummary
from swarmkeep.store.cursors import make_session_cursor, parse_session_cursor
from swarmkeep.store.ports.index import EndedRunStatus, SessionCounts, SessionOrder, SessionPage
from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.sql.columns import as_bytes, stored_bytes
from swarmkeep.store.sql.database import OnDatabase
from swarmkeep.store.sql.indexes.forks import find_family
from swarmkeep.store.sql.indexes.session_counts import count_sessions
from swarmkeep.store.sql.indexes.session_search import Place, SessionFilter, find_sessions
from swarmkeep.store.sql.searching.finding import Budget, Candidate, fill_matches, read_candidates
from swarmkeep.store.sql.tables import sessions

_Found = tuple[ListedSession, list[Candidate]]


class SqlSessionIndex(OnDatabase):
    """SessionIndex on a Database."""

    async def list_sessions(
        self,
        tenant: str,
        *,
        agent: str | None = None,
        status: SessionStatus | None = None,
        last_run: EndedRunStatus | None = None,
        order: SessionOrder = "created",
        metadata: Mapping[str, str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
        include_context: bool = False,
        max_bytes: int = sys.maxsize,
        children: bool = True,
        active_after: str | None = None,
        active_before: str | None = None,
        damaged: bool | None = None,
        terms: tuple[Term, ...] | None = None,
    ) -> SessionPage:
        filters = SessionFilter(
            tenant=tenant,
            agent=agent,
            status=status,
            last_run=last_run,
            metadata=metadata or {},
            order=order,
            children=children,
            active_after=active_after,
            active_before=active_before,
            damaged=damaged,
            terms=terms,
        )
        query = functools.partial(
            list_candidates,
            wanted=filters,
            limit=limit,
            before=parse_session_cursor(cursor, order),
            include_context=include_context,
            max_bytes=max_bytes,
        )
        found, after = await self.database.read(query, seconds=self.read_seconds)
        if terms is None:
            return SessionPage([session for session, _ in found], after)
        # Not in the read: much text is looked through, for which others must not wait.
        return SessionPage(await asyncio.to_thread(fill_matches, found, terms), after)

    async def count_sessions(self, tenant: str, *, children: bool = False, most: int = 1_000) -> SessionCounts:
        return await self.database.read(
            lambda connection: count_sessions(connection, tenant, children=children, most=most),
            seconds=self.read_seconds,
        )

    async def list_forks(
        self, key: SessionKey, *, limit: int = 50, cursor: str | None = None, max_bytes: int = sys.maxsize
    ) -> SessionPage:
        before = parse_session_cursor(cursor, "created")
        return await self.database.read(
            lambda connection: list_forks(connection, key, limit=limit, before=before, max_bytes=max_bytes),
            seconds=self.read_seconds,
        )


def list_candidates(
    connection: Connection,
    wanted: SessionFilter,
    *,
    limit: int,
    before: tuple[str, str] | None,
    include_context: bool,
    max_bytes: int,
) -> tuple[list[_Found], str | None]:
    """One page of a tenant's sessions, the latest first, and where the next begins; `before` is the last one's time and
    id on the page before. If it is searched for words, each with where it may have them.
    """
    found = find_sessions(connection, wanted, limit=limit, before=before)
    shown, cut = _read_page(connection, wanted.tenant, found.places, include_context, max_bytes)
    budget = Budget()
    terms = wanted.terms or ()
    candidates = [
        (one, read_candidates(connection, SessionKey(wanted.tenant, one.id), found.said.get(one.id, ()), terms, budget))
        for one in shown
    ]
    after = found.after if cut is None else cut
    return candidates, None if after is None else make_session_cursor(after, wanted.order)


def list_forks(
    connection: Connection, key: SessionKey, *, limit: int, before: Place | None, max_bytes: int
) -> SessionPage:
    """One page of what was forked from a session itself, the latest first."""
    places = find_family(connection, key, limit=limit, before=before)
    shown, cut = _read_page(connection, key.tenant, places, False, max_bytes)
    after = places[-1] if cut is None and len(places) == limit else cut
    forks = [one for one in shown if one.forked_from is not None and one.forked_from.session_id == key.id]
    return SessionPage(forks, None if after is None else make_session_cursor(after, "created"))


def _read_page(
    connection: Connection, tenant: str, places: Sequence[Place], include_context: bool, max_bytes: int
) -> tuple[list[ListedSession], Place | None]:
    """The sessions at these places; and where it ends, if their JSON is too much for a page."""
    shown: list[ListedSession] = []
    size = 0
    for place, listed in _read_views(connection, tenant, places, include_context, max_bytes):
        shown.append(listed)
        size += len(encode(listed))
        if size >= max_bytes and place != places[-1]:
            return shown, place
    return shown, None


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
    sessions.c.last_run,
    sessions.c.damaged_seq,
)


def _decode_view(row: Any, include_context: bool) -> ListedSession:
    """A session as its head row shows it; as far as the other columns go, if somebody damaged the view."""
    try:
        if include_context:
            found = decode(row.view, ListedSession)
        else:
            found = ListedSession(**msgspec.structs.asdict(decode(row.view, SessionSummary)))
        damaged = UNSET if row.damaged_seq is None else row.damaged_seq
        return msgspec.structs.replace(found, last_run_status=row.last_run, damaged_seq=damaged)
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
            last_run_status=row.last_run,
        )
