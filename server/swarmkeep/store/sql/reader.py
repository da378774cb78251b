"""Reads of the log: queries of a connection, and the states that are folded from what they find."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, TypeVar

from sqlalchemy import BigInteger, Connection, Select, bindparam, select

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import EventNotFound, SessionNotFound
from swarmkeep.domain.fold import fold
from swarmkeep.domain.state import State
from swarmkeep.store.aside import FEW_EVENTS, free_aside, free_state_aside, run_off_loop
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.ports.database import Database
from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.ports.leases import SessionHead
from swarmkeep.store.sql.columns import stored_bytes
from swarmkeep.store.sql.contents import SqlContents
from swarmkeep.store.sql.leases import find_heads
from swarmkeep.store.sql.prepared import PreparedStatement
from swarmkeep.store.sql.rows import EVENT_COLUMNS, SEALED_COLUMNS, decode_event, decode_sealed
from swarmkeep.store.sql.tables import events, of_bound_session, of_session, session_columns, sessions
from swarmkeep.store.state_cache import StateCache, can_continue

T = TypeVar("T")

MAX_BIGINT = 2**63 - 1
# One with so much to decode is counted as another one.
_BYTES_PER_EVENT = 4096
_PAYLOAD = EVENT_COLUMNS.index(events.c.payload)
_PAGE_EVENTS = 500
_PAGE_BYTES = 1_000_000


class SqlEventReader(SqlContents):
    """EventReader (see there for what each call promises) on a Database."""

    def __init__(self, database: Database, *, cache_bytes: int) -> None:
        SqlContents.__init__(self, database)
        self._cache = StateCache(cache_bytes)

    async def state(self, key: SessionKey, *, at: int | None = None, fresh: bool = True) -> State:
        known = self._cache.get(key)
        if known is not None and not fresh and at in (None, known.seq):
            return known
        if at is not None:
            return await self._read_state_at(key, at, known)
        state = await self._read_current(key, known)
        if state is None:
            raise SessionNotFound(key.id)
        return state

    async def read(
        self,
        key: SessionKey,
        *,
        after: int = 0,
        upto: int | None = None,
        types: Sequence[str] = (),
        limit: int | None = None,
        max_bytes: int | None = None,
    ) -> list[RecordedEvent]:
        def query(connection: Connection) -> Sequence[Any]:
            last = upto
            if max_bytes is not None:
                last = find_page_end(
                    connection, key, after=after, upto=upto, types=types, limit=limit, max_bytes=max_bytes
                )
            return find_event_rows(connection, key, after=after, upto=last, types=types, limit=limit)

        if limit is None and max_bytes is None:
            rows = list(await self._read_all_rows(key, after, upto, types))
        else:
            rows = list(await self.database.read(query))
        work = _count_work((row[_PAYLOAD] for row in rows), len(rows))
        found = await run_off_loop(work, lambda: list(decode_events(key, take_out(rows))))
        free_aside(found)
        return found

    async def _read_all_rows(
        self, key: SessionKey, after: int, upto: int | None, types: Sequence[str]
    ) -> Sequence[Sequence[Any]]:
        """The rows of events, however many there are: between two pages of them others have the event loop."""

        def read_few(connection: Connection) -> Sequence[Sequence[Any]]:
            # SQLite is read in a thread.
            limit = None if connection.dialect.name == "sqlite" else FEW_EVENTS + 1
            return find_event_rows(connection, key, after=after, upto=upto, types=types, limit=limit)

        rows = await self.database.read(read_few)
        if len(rows) != FEW_EVENTS + 1:
            return rows
        return await self.database.read_at_one_moment(
            lambda connection: list(iterate_event_rows(connection, key, after=after, upto=upto, types=types))
        )

    async def read_head(self, key: SessionKey) -> SessionHead | None:
        return (await self.database.read(lambda connection: find_heads(connection, [key]))).get(key)

    async def read_sealed(
        self,
        key: SessionKey,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int = 1000,
        max_bytes: int | None = None,
    ) -> list[SealedEvent]:
        last = MAX_BIGINT if upto is None else upto
        return await self.database.read(
            lambda connection: read_sealed(connection, key, after=after, upto=last, limit=limit, max_bytes=max_bytes)
        )

    async def read_redacted_payloads(self, key: SessionKey) -> dict[int, str]:
        return await self.database.read(lambda connection: read_redacted_payloads(connection, key))

    async def _read_current(self, key: SessionKey, known: State | None) -> State | None:
        """The last state, from the events since the known one where that is still part of the session."""
        if known is not None:
            tail = await self.read(key, after=known.seq - 1)
            if can_continue(known, tail):
                work = _count_work((event.payload for event in tail), len(tail))
                state = await run_off_loop(work, lambda: fold(tail[1:], known))
                self._cache.put(key, state)
                return state
            self._cache.drop(key)
        whole = await self._fold_all(key)
        if whole is not None:
            self._cache.put(key, whole)
        return whole

    async def _fold_all(self, key: SessionKey, upto: int | None = None) -> State | None:
        """The state after all events, each of which is forgotten as soon as it is folded; None without any."""
        rows = list(await self._read_all_rows(key, 0, upto, ()))
        work = _count_work((row[_PAYLOAD] for row in rows), len(rows))
        state = await run_off_loop(work, lambda: fold(decode_events(key, take_out(rows))))
        free_state_aside(state)
        return state if state.seq else None

    async def _read_state_at(self, key: SessionKey, at: int, known: State | None) -> State:
        if known is not None and at == known.seq:
            state = await self._read_current(key, known)
            if state is not None and state.seq == at:
                return state
        whole = await self._fold_all(key, at) if at > 0 else None
        # One that is missing before it is damage, which `verify` names; the rest can be shown.
        if whole is not None and whole.seq == at:
            return whole
        last = await self.database.read(lambda connection: read_head_seq(connection, key))
        if last is None:
            raise SessionNotFound(key.id)
        raise EventNotFound.out_of_range(key.id, last, at)


def _count_work(payloads: Iterable[str], count: int) -> int:
    """How many events these are, a large one taken for several; of many it does not matter any more."""
    return count if count > FEW_EVENTS else count + sum(map(len, payloads)) // _BYTES_PER_EVENT


def find_event_rows(
    connection: Connection,
    key: SessionKey,
    *,
    after: int = 0,
    upto: int | None = None,
    types: Sequence[str] = (),
    limit: int | None = None,
) -> Sequence[Sequence[Any]]:
    """The rows of events with after < seq <= upto, oldest first."""
    bounds = {"after": after, "upto": upto, "limit": limit}
    row = {**session_columns(key), **{name: value and min(value, MAX_BIGINT) for name, value in bounds.items()}}
    if types:
        statement = _select_events(upto is not None, limit is not None).where(events.c.type.in_(list(types)))
        used = {name: value for name, value in row.items() if value is not None}
        return connection.execute(statement, used).all()
    return _prepare_events_query(upto is not None, limit is not None).fetch_all(connection, row)


def iterate_event_rows(
    connection: Connection, key: SessionKey, *, after: int, upto: int | None, types: Sequence[str]
) -> Iterator[Sequence[Any]]:
    """The rows of events, page by page: one driver fetches all that a statement finds before it gives the first row."""
    while True:
        found: dict[str, Any] = {"after": after, "types": types, "limit": _PAGE_EVENTS}
        last = find_page_end(connection, key, upto=upto, max_bytes=_PAGE_BYTES, **found)
        page = find_event_rows(connection, key, upto=last, **found)
        yield from page
        is_last = len(page) < _PAGE_EVENTS and last == upto
        # A seq of another type is damage, and comes last.
        if is_last or not page or page[-1][0].__class__ is not int:
            return
        after = page[-1][0]


def decode_events(key: SessionKey, rows: Iterable[Sequence[Any]]) -> Iterator[RecordedEvent]:
    # A seq of another type is damage, which `verify` names.
    return (decode_event(key.id, found) for found in rows if type(found[0]) is int)


def take_out(rows: list[T]) -> Iterator[T]:
    """Each row, of which the list keeps nothing: to free many takes its time, too, and others wait for the loop."""
    rows.reverse()
    return map(rows.pop, repeat(-1, len(rows)))


def find_page_end(
    connection: Connection,
    key: SessionKey,
    *,
    after: int,
    upto: int | None,
    types: Sequence[str] = (),
    limit: int | None,
    max_bytes: int,
) -> int | None:
    """The seq of the event whose payload fills a page of so many bytes; `upto` if none does.

    Looked for first, because to read whatever comes until there is enough would take all of it into memory.
    """
    bounds = {"after": after, "upto": upto, "limit": limit}
    row = {
        **session_columns(key),
        **{name: min(value, MAX_BIGINT) for name, value in bounds.items() if value is not None},
    }
    if types:
        statement = _select_sizes(upto is not None, limit is not None).where(events.c.type.in_(list(types)))
        sizes: Sequence[Any] = connection.execute(statement, row).all()
    else:
        sizes = _prepare_sizes(upto is not None, limit is not None).fetch_all(connection, row)
    size = 0
    for seq, payload_bytes in sizes:
        size += payload_bytes or 0
        if size >= max_bytes and isinstance(seq, int):
            return seq
    return upto


def _select_sizes(upto: bool, limit: bool) -> Select[Any]:
    return _select_events(upto, limit, (events.c.seq, stored_bytes(events.c.payload)))


@functools.cache
def _prepare_sizes(upto: bool, limit: bool) -> PreparedStatement:
    return PreparedStatement(_select_sizes(upto, limit))


@functools.cache
def _prepare_events_query(upto: bool, limit: bool) -> PreparedStatement:
    return PreparedStatement(_select_events(upto, limit))


def _select_events(upto: bool, limit: bool, wanted: tuple[Any, ...] = EVENT_COLUMNS) -> Select[Any]:
    columns = events.c
    statement = select(*wanted).where(*of_bound_session(events), columns.seq > bindparam("after"))
    if upto:
        statement = statement.where(columns.seq <= bindparam("upto"))
    statement = statement.order_by(columns.seq)
    return statement.limit(bindparam("limit", type_=BigInteger())) if limit else statement


_SEALED_QUERY = PreparedStatement(_select_events(True, True, SEALED_COLUMNS))


def read_sealed(
    connection: Connection, key: SessionKey, *, after: int, upto: int, limit: int, max_bytes: int | None = None
) -> list[SealedEvent]:
    """Events as they are stored, with what their hashes are made of."""
    if max_bytes is not None:
        upto = find_page_end(connection, key, after=after, upto=upto, limit=limit, max_bytes=max_bytes) or upto
    row = {**session_columns(key), "after": after, "upto": upto, "limit": limit}
    return [decode_sealed(key.id, found) for found in _SEALED_QUERY.fetch_all(connection, row)]


def read_head_seq(connection: Connection, key: SessionKey) -> int | None:
    """The last seq of a session; None if there is no such session."""
    return connection.scalar(select(sessions.c.head_seq).where(*of_session(sessions, key)))


def read_redacted_payloads(connection: Connection, key: SessionKey) -> dict[int, str]:
    """The texts that stand in the place of removed payloads, by seq."""
    found = select(events.c.seq, events.c.payload).where(*of_session(events, key), events.c.salt.is_(None))
    return {row.seq: row.payload for row in connection.execute(found.order_by(events.c.seq))}
