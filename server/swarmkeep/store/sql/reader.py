"""Reads of the log: queries of a connection, and the states that are folded from what they find."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any, TypeVar

from msgspec.structs import replace
from sqlalchemy import BigInteger, Connection, Select, bindparam, select

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import EventNotFound, SessionNotFound
from swarmkeep.domain.events import SessionRedacted
from swarmkeep.domain.files.facts import list_fact_files
from swarmkeep.domain.fold import fold
from swarmkeep.domain.request import list_text_hashes
from swarmkeep.domain.state import Damage, State, refuse_damaged
from swarmkeep.store.aside import FEW_EVENTS, free_aside, free_state_aside, run_off_loop
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.ports.database import Database
from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.ports.leases import SessionHead
from swarmkeep.store.soundness import LogCheck
from swarmkeep.store.sql.columns import stored_bytes
from swarmkeep.store.sql.contents import SqlContents, collect_named, find_unsound
from swarmkeep.store.sql.leases import find_heads
from swarmkeep.store.sql.prepared import PreparedStatement, Row
from swarmkeep.store.sql.rows import EVENT_COLUMNS, SEALED_COLUMNS, decode_event, decode_sealed, read_head_row
from swarmkeep.store.sql.tables import events, of_bound_session, of_session, session_columns, sessions
from swarmkeep.store.stamps import NO_KEYS, IntegrityKeys
from swarmkeep.store.state_cache import StateCache

T = TypeVar("T")

MAX_BIGINT = 2**63 - 1
_MIN_BIGINT = -(2**63)
# One with so much to decode is counted as another one.
_BYTES_PER_EVENT = 4096
_PAYLOAD = EVENT_COLUMNS.index(events.c.payload)
_PAGE_EVENTS = 500
_PAGE_BYTES = 1_000_000


class SqlEventReader(SqlContents):
    """EventReader (see there for what each call promises) on a Database."""

    def __init__(self, database: Database, *, cache_bytes: int, integrity_keys: IntegrityKeys = NO_KEYS) -> None:
        SqlContents.__init__(self, database)
        self.integrity_keys = integrity_keys
        self._cache = StateCache(cache_bytes)
        # Of these an append was refused, on what may be the last state: if nothing follows that, all of it is read.
        self._doubted: set[SessionKey] = set()

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
            state = await self._continue(key, known)
            if state is not None:
                self._cache.put(key, state)
                return state
            self._cache.drop(key)
        state = await self._read_whole(key)
        if state is not None and state.damage is None:
            self._cache.put(key, state)
        return state

    async def _continue(self, key: SessionKey, known: State) -> State | None:
        """The known state with what was recorded since; None if it has to be read from the beginning."""
        rows = await self.database.read(lambda connection: _read_tail(connection, key, known.seq))
        is_doubted = key in self._doubted
        self._doubted.discard(key)
        if len(rows) <= 1:
            is_same = len(rows) == 1 and decode_sealed(key.id, rows[0]).event.hash == known.hash
            return known if is_same and not is_doubted else None
        # Others have added something: it is checked as it is read, and where it ends.
        head, rows = await self.database.read_at_one_moment(
            lambda connection: (read_head_row(connection, key), _read_tail(connection, key, known.seq))
        )
        if not rows:
            return None
        state = await run_off_loop(_count_rows(rows), lambda: self._check_tail(key, known, head, rows))
        # Where it does not follow, all of it is looked at, which says more.
        return state if state is not None and state.damage is None else None

    async def _read_whole(self, key: SessionKey, *, with_contents: bool = False) -> State | None:
        """The state after all events, each of which is checked and folded, and then forgotten; None without any.

        What is found damaged is remembered. Then the texts and files are looked at, too, before it is forgotten again.
        """
        head, rows = await self.database.read_at_one_moment(lambda connection: read_log(connection, key))
        if not rows and head is None:
            return None
        state = await run_off_loop(_count_rows(rows), lambda: self.check_log(key, head, rows))
        free_state_aside(state)
        set_aside = head is not None and head["damaged_seq"] is not None
        if state.damage is None and (set_aside or with_contents):
            state = replace(state, damage=await self._find_damaged_content(key, state))
        if (state.damage is not None) != set_aside:
            await self._note_damage(key, state.damage)
        if not state.seq:
            # Of what was recorded there is nothing left to show.
            refuse_damaged(key.id, state)
            return None
        return state

    async def _find_damaged_content(self, key: SessionKey, state: State) -> Damage | None:
        """The first event that names a text or a file which is not there, or not what its hash names."""
        named = await asyncio.to_thread(collect_named, state, state.forgotten_texts)
        unsound = await self.database.read_snapshot(lambda connection: find_unsound(connection, key, named))
        if not unsound:
            return None
        for event in await self.read(key):
            for code, names in (("blob", list_text_hashes(event.fact)), ("file", list_fact_files(event.fact))):
                for name in names:
                    if name in unsound:
                        return Damage(seq=event.seq, code=f"{code}_{unsound[name]}")
        return None

    async def _note_damage(self, key: SessionKey, damage: Damage | None) -> None:
        """Remember that a session is damaged, or that it is so no more."""

    async def find_damaged_seq(self, key: SessionKey) -> int | None:
        """From where on a session was found damaged; None if it was not, or is not there."""
        query = select(sessions.c.damaged_seq).where(*of_session(sessions, key))
        return await self.database.read(lambda connection: connection.scalar(query))

    async def has_unstamped(self) -> bool:
        """Whether any session has no stamp."""
        query = select(sessions.c.id).where(sessions.c.stamp.is_(None)).limit(1)
        return await self.database.read(lambda connection: connection.scalar(query)) is not None

    async def check(self, key: SessionKey) -> State:
        self._cache.drop(key)
        self._files.drop(key)
        state = await self._read_whole(key, with_contents=True)
        if state is None:
            raise SessionNotFound(key.id)
        return state

    async def sound_state(self, key: SessionKey, *, at: int | None = None) -> State:
        state = await self.state(key)
        refuse_damaged(key.id, state)
        if at is None or at == state.seq:
            return state
        if not 0 < at < state.seq:
            raise EventNotFound.out_of_range(key.id, state.seq, at)
        # With what follows, up to the head: that a beginning holds together proves nothing.
        head, rows = await self.database.read_at_one_moment(lambda connection: read_log(connection, key))
        found: list[State] = []
        whole = await run_off_loop(_count_rows(rows), lambda: self.check_log(key, head, rows, at=at, found=found))
        free_state_aside(whole)
        if whole.damage is not None:
            self._cache.drop(key)
            await self._note_damage(key, whole.damage)
            refuse_damaged(key.id, whole)
        if not found:
            raise EventNotFound.out_of_range(key.id, whole.seq, at)
        free_state_aside(found[0])
        return found[0]

    async def _read_state_at(self, key: SessionKey, at: int, known: State | None) -> State:
        if known is not None and at == known.seq:
            state = await self._read_current(key, known)
            if state is not None and state.seq == at:
                return state
        rows = list(await self._read_all_rows(key, 0, at, ())) if at > 0 else []
        state = await run_off_loop(_count_rows(rows), lambda: fold(decode_events(key, take_out(rows))))
        free_state_aside(state)
        # One that is missing before it is damage, which `verify` names; the rest can be shown.
        if state.seq and state.seq == at:
            return state
        last = await self.database.read(lambda connection: read_head_seq(connection, key))
        if last is None:
            raise SessionNotFound(key.id)
        raise EventNotFound.out_of_range(key.id, last, at)

    def check_log(
        self,
        key: SessionKey,
        head: Row | None,
        rows: list[Sequence[Any]],
        known: State | None = None,
        at: int | None = None,
        found: list[State] | None = None,
        is_stamped: bool = True,
    ) -> State:
        """What the rows add up to, with what is wrong with them; `found` is given the state after event `at`."""
        check = LogCheck(known, self.integrity_keys if is_stamped else NO_KEYS)
        events = check.follow(_decode_log(key, rows, check))
        state = known
        if at is not None and found is not None:
            state = fold(islice(events, at), state)
            if state.seq == at:
                found.append(state)
        state = fold(events, state)
        check.finish(key, state, head)
        return replace(state, damage=check.findings.make_damage(state.seq))

    def _check_tail(self, key: SessionKey, known: State, head: Row | None, rows: list[Sequence[Any]]) -> State | None:
        """The known state with what follows it; None if the first of the rows is not its last event, or if it still has
        what was removed since."""
        tail = [decode_sealed(key.id, row) for row in rows[:1]]
        types = {row[1] for row in rows[1:]}
        if tail[0].event.hash != known.hash or SessionRedacted.type in types:
            return None
        return self.check_log(key, head, rows[1:], known)


def read_log(connection: Connection, key: SessionKey) -> tuple[Row | None, list[Sequence[Any]]]:
    """A session's head row, and the rows of its events."""
    return read_head_row(connection, key), _read_tail(connection, key, 0)


def _read_tail(connection: Connection, key: SessionKey, first: int) -> list[Sequence[Any]]:
    """The rows of events from `first` on, with what their hashes are made of."""
    after = min(first - 1, MAX_BIGINT) if first else _MIN_BIGINT
    if connection.dialect.name == "sqlite":
        # SQLite is read in a thread.
        return list(_ALL_SEALED.fetch_all(connection, {**session_columns(key), "after": after}))
    rows: list[Sequence[Any]] = []
    while True:
        last = find_page_end(connection, key, after=after, upto=None, limit=_PAGE_EVENTS, max_bytes=_PAGE_BYTES)
        upto = MAX_BIGINT if last is None else last
        page = _SEALED_QUERY.fetch_all(
            connection, {**session_columns(key), "after": after, "upto": upto, "limit": _PAGE_EVENTS}
        )
        rows += page
        if not page or (len(page) < _PAGE_EVENTS and last is None):
            return rows
        after = page[-1][0]


def _decode_log(key: SessionKey, rows: list[Sequence[Any]], check: LogCheck) -> Iterator[SealedEvent]:
    for row in take_out(rows):
        # SQLite holds a value of any type in any column.
        if type(row[0]) is int and row[0] > 0:
            yield decode_sealed(key.id, row)
        else:
            check.note_unreadable(row[0])


def _count_rows(rows: Sequence[Sequence[Any]]) -> int:
    return _count_work((row[_PAYLOAD] for row in rows), len(rows))


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
_ALL_SEALED = PreparedStatement(_select_events(False, False, SEALED_COLUMNS))


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
