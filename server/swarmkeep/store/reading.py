"""Reads of the log: queries of a connection, and the states that are folded from what they find."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Any, TypeVar

import msgspec
from cachetools import LRUCache
from msgspec.structs import replace
from sqlalchemy import BigInteger, Column, Connection, Select, Table, Text, bindparam, select, type_coerce

from swarmkeep.events.codec import Json, MalformedJson, build_decoder, convert, decode
from swarmkeep.events.errors import EventNotFound, SessionNotFound
from swarmkeep.events.facts import FACTS, RecordedEvent, SessionEvent, SessionRedacted, UnknownFact
from swarmkeep.events.fold import fold
from swarmkeep.events.messages import list_fact_files, list_text_hashes
from swarmkeep.events.state import Damage, State, refuse_damaged
from swarmkeep.store.contents import SqlContents, collect_named, find_unsound, is_archived
from swarmkeep.store.hashing import SealedEvent
from swarmkeep.store.heads import find_heads
from swarmkeep.store.integrity import NO_KEYS, IntegrityKeys, LogCheck
from swarmkeep.store.person_keys import PARTIAL, VIEW, EncryptedPayload, attach_keys, read_key_id, read_text
from swarmkeep.store.records import SessionHead, SessionKey
from swarmkeep.store.statements import Database, PreparedStatement, Row
from swarmkeep.store.tables import (
    Verbatim,
    as_bytes,
    as_text,
    events,
    is_as_written,
    of_bound_session,
    of_session,
    session_columns,
    sessions,
    stored_bytes,
    unescape,
)
from swarmkeep.store.threads import FEW_EVENTS, free_aside, free_state_aside, run_off_loop

# Stored payloads to current facts: the one place that knows how events looked in earlier releases.

Upcasters = Mapping[tuple[str, int], Callable[[Json], Json]]

UPCASTERS: Upcasters = {}
"""By type and version: lifts that version's payload to the next version's. Pure; facts keep their meaning."""

Reader = tuple[int, Callable[[str], SessionEvent]]


class _Readers(dict[str, Reader | None]):
    """Each is made when it is first asked for; of unknown types nothing is kept."""

    def __missing__(self, type: str) -> Reader | None:
        cls = FACTS.get(type)
        if cls is None:
            return None
        reader = self[type] = (cls.version, build_decoder(cls).decode)
        return reader


READERS = _Readers()
"""By type: its version now, and what reads payloads of that version or a later one; None for a type that is not known.

Quicker than `upcast`. It raises UNREADABLE where only that knows what to make of a payload.
"""
UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)


def upcast(type: str, version: int, payload: str, upcasters: Upcasters = UPCASTERS) -> SessionEvent:
    """The fact that a stored payload states. Total: what this release cannot read becomes an UnknownFact.

    That is so for types and versions of a later release, and for a payload that was damaged, which `verify` finds.
    """
    cls = FACTS.get(type)
    if cls is None:
        return _make_unknown(payload)
    try:
        if version >= cls.version:
            return decode(payload, cls)  # type: ignore[return-value]
        value = decode(payload)
        for old in range(version, cls.version):
            value = upcasters[type, old](value)
        return convert(value, cls)  # type: ignore[return-value]
    except (MalformedJson, msgspec.ValidationError, LookupError, TypeError):
        return _make_unknown(payload)


def _make_unknown(payload: str) -> UnknownFact:
    try:
        return UnknownFact(data=decode(payload))
    except MalformedJson:
        return UnknownFact()


# Decoding of rows. It is total: a damaged row is read as far as it goes, and `verify` reports it.

# The texts come as they are stored: a conversion by SQLAlchemy costs more than all else for a row.
EVENT_COLUMNS = (
    events.c.seq,
    type_coerce(events.c.type, Text),
    events.c.version,
    type_coerce(events.c.run_id, Text),
    type_coerce(events.c.agent, Text),
    events.c.recorded_at,
    events.c.hash,
    events.c.payload,
)
SEALED_COLUMNS = (*EVENT_COLUMNS, events.c.salt, events.c.commitment)
PAYLOAD = EVENT_COLUMNS.index(events.c.payload)


def decode_event(session_id: str, row: Sequence[Any]) -> RecordedEvent:
    """An event from a row of EVENT_COLUMNS."""
    seq, type_, version, run_id, agent, at, digest, payload = row
    reader = READERS[type_]
    # `type` of a value costs less than its `__class__`, and this is asked for each row.
    if (
        reader is not None
        and type(agent) is type(at) is type(payload) is str
        and (run_id is None or (type(run_id) is str and '"' not in run_id))
        and type(version) is int
        and type(digest) is bytes
        and '"' not in agent
        and version >= reader[0]
    ):
        try:
            fact = reader[1](payload)
            return RecordedEvent(session_id, seq, type_, version, run_id, agent, at, digest.hex(), payload, fact)
        except UNREADABLE:
            pass
    return _decode_any_event(session_id, row)


def _decode_any_event(session_id: str, row: Sequence[Any]) -> RecordedEvent:
    """An event with text that is escaped, or a payload that is not read as it is, or damage.

    SQLite holds a value of any type in any column.
    """
    seq, type_, version, run_id, agent, at, digest, payload = row
    if type(payload) is EncryptedPayload:
        return decode_event(session_id, (*row[:-1], payload.decrypt(seq)[0]))
    type_, payload = as_text(type_), as_text(payload)
    version = version if isinstance(version, int) else 0
    return RecordedEvent(
        session_id=session_id,
        seq=seq,
        type=unescape(type_),
        version=version,
        run_id=None if run_id is None else unescape(as_text(run_id)),
        agent=unescape(as_text(agent)),
        at=as_text(at),
        hash=as_bytes(digest).hex(),
        payload=payload,
        # By the type as it is stored, for that is how `verify` reads it.
        fact=upcast(type_, version, payload),
    )


def decode_sealed(session_id: str, row: Sequence[Any]) -> SealedEvent:
    """An event from a row of SEALED_COLUMNS."""
    if type(row[PAYLOAD]) is EncryptedPayload:
        return _decode_encrypted(session_id, row)
    salt, commitment = row[-2:]
    salt = salt if salt is None or isinstance(salt, bytes) else as_bytes(salt)
    return SealedEvent(decode_event(session_id, row[:-2]), salt, as_bytes(commitment), _is_row_as_written(row))


def _decode_encrypted(session_id: str, row: Sequence[Any]) -> SealedEvent:
    seq, held, salt = row[0], row[PAYLOAD], row[-2]
    payload, own_salt = held.decrypt(seq)
    plain = decode_sealed(session_id, (*row[:PAYLOAD], payload, own_salt, row[-1]))
    is_as_written = plain.as_written and salt == b""
    return msgspec.structs.replace(plain, erased=held.is_erased, as_written=is_as_written)


def _is_row_as_written(row: Sequence[Any]) -> bool:
    seq, type_, version, run_id, agent, at, digest, payload, salt, commitment = row
    return (
        type(seq) is type(version) is int
        and type(at) is type(payload) is str
        and type(digest) is type(commitment) is bytes
        and (salt is None or type(salt) is bytes)
        and (run_id is None or is_as_written(run_id))
        and is_as_written(type_)
        and is_as_written(agent)
    )


class RawRows:
    """The rows of a session in a table, without the conversions that would fail on what is damaged."""

    def __init__(self, table: Table, *conditions: Any) -> None:
        self.columns = list(table.c)
        raw = [type_coerce(one, Text) if isinstance(one.type, Verbatim) else one for one in self.columns]
        self.statement = PreparedStatement(select(*raw).where(*of_bound_session(table), *conditions))


def read_raw_rows(connection: Connection, rows: RawRows, key: SessionKey, **bounds: int) -> Iterator[Row]:
    for row in rows.statement.fetch_all(connection, {**session_columns(key), **bounds}):
        yield {column.name: _decode_value(column, value) for column, value in zip(rows.columns, row, strict=True)}


def _decode_value(column: Column[Any], value: Any) -> Any:
    # What is not written as a server writes it stays as it is: it would read the same, but a query would not find it.
    return unescape(value) if isinstance(column.type, Verbatim) and is_as_written(value) else value


_HEAD = RawRows(sessions)


def read_head_row(connection: Connection, key: SessionKey) -> Row | None:
    """A session's head row, column by column; None if there is none."""
    row = next(read_raw_rows(connection, _HEAD, key), None)
    if row is None:
        return None
    # By which key its view is encrypted, not by what the row says.
    held = read_key_id(row["view"])
    if held is None and row["person_key"] is None:
        return {**row, "view_key": None}
    decrypted = {
        "view": read_text(connection, row["view"], VIEW),
        "partial": read_text(connection, row["partial"], PARTIAL),
    }
    return {**row, **decrypted, "view_key": held}


# Folded states, kept so that a session's next read costs its new events only.

# A decoded message takes a few times the bytes of its text, and an empty session still takes some.
_BYTES_PER_BYTE = 4
_BYTES_PER_STATE = 4096


def _estimate_bytes(state: State) -> int:
    return state.size * _BYTES_PER_BYTE + _BYTES_PER_STATE


class StateCache:
    """The states used last, bounded by an estimate of their memory. Anything in it may be stale."""

    def __init__(self, max_bytes: int) -> None:
        self._states: LRUCache[SessionKey, State] = LRUCache(maxsize=max_bytes, getsizeof=_estimate_bytes)

    def get(self, key: SessionKey) -> State | None:
        return self._states.get(key)

    def put(self, key: SessionKey, state: State) -> None:
        self.drop(key)
        if _estimate_bytes(state) <= self._states.maxsize:
            self._states[key] = state

    def drop(self, key: SessionKey) -> None:
        self._states.pop(key, None)


T = TypeVar("T")

MAX_BIGINT = 2**63 - 1
_MIN_BIGINT = -(2**63)
# One with so much to decode is counted as another one.
_BYTES_PER_EVENT = 4096
_PAGE_EVENTS = 500
_PAGE_BYTES = 1_000_000


class SqlEventReader(SqlContents):
    """Reads of the log."""

    def __init__(self, database: Database, *, cache_bytes: int, integrity_keys: IntegrityKeys = NO_KEYS) -> None:
        SqlContents.__init__(self, database)
        self.integrity_keys = integrity_keys
        self._cache = StateCache(cache_bytes)
        # Of these an append was refused, on what may be the last state: if nothing follows that, all of it is read.
        self._doubted: set[SessionKey] = set()

    async def state(self, key: SessionKey, *, at: int | None = None, fresh: bool = True) -> State:
        """The session's state, now or after event `at`. `fresh=False` may answer from memory, and be stale.

        What is read for it is checked: `State.damage` of the last state says what is not as it was recorded. The state
        `at` an event is only to be shown. Raises SessionNotFound, EventNotFound when `at` is not in 1..seq, and
        HistoryDamaged if there is nothing left to show.
        """
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
        """Events with after < seq <= upto, oldest first. Empty for a session that does not exist.

        With `max_bytes` they end with the one whose payload fills that many (see `is_full_page`).
        """

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
            rows = list(await self.read_present(key, query))
        work = _count_work((row[PAYLOAD] for row in rows), len(rows))
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

        rows = await self.read_present(key, read_few)
        if len(rows) != FEW_EVENTS + 1:
            return rows
        return await self.read_present(
            key,
            lambda connection: list(iterate_event_rows(connection, key, after=after, upto=upto, types=types)),
            at_one_moment=True,
        )

    async def read_head(self, key: SessionKey) -> SessionHead | None:
        """Read where one session ends, None if there is no such session."""
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
        """Events with the salts and commitments that their hashes are made of, oldest first: for auditors."""
        last = MAX_BIGINT if upto is None else upto
        return await self.read_present(
            key,
            lambda connection: read_sealed(connection, key, after=after, upto=last, limit=limit, max_bytes=max_bytes),
        )

    async def read_redacted_payloads(self, key: SessionKey) -> dict[int, str]:
        """The events that have lost their payload, and the texts that stand in its place."""
        return await self.read_present(key, lambda connection: read_redacted_payloads(connection, key))

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
        head, rows = await self.read_present(key, lambda connection: read_log(connection, key), at_one_moment=True)
        if not rows and head is None:
            return None
        state = await run_off_loop(_count_rows(rows), lambda: self.check_log(key, head, rows))
        free_state_aside(state)
        if state.damage is not None and await self.database.read(lambda connection: is_archived(connection, key)):
            await self.require_present(key)
        set_aside = head is not None and head["damaged_seq"] is not None
        if state.damage is None and (set_aside or with_contents):
            state = replace(state, damage=await self._find_damaged_content(key, state))
        if (state.damage is not None) != set_aside:
            await self.note_damage(key, state.damage)
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

    async def note_damage(self, key: SessionKey, damage: Damage | None) -> None:
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
        """The state, read again and checked with all texts and files; what is found is remembered, or forgotten.

        Raises SessionNotFound, and HistoryDamaged if there is nothing left to show.
        """
        self._cache.drop(key)
        self._files.drop(key)
        state = await self._read_whole(key, with_contents=True)
        if state is None:
            raise SessionNotFound(key.id)
        return state

    async def sound_state(self, key: SessionKey, *, at: int | None = None) -> State:
        """The state to go on from, checked with all that follows event `at`. Raises HistoryDamaged, too."""
        state = await self.state(key)
        refuse_damaged(key.id, state)
        if at is None or at == state.seq:
            return state
        if not 0 < at < state.seq:
            raise EventNotFound.out_of_range(key.id, state.seq, at)
        # With what follows, up to the head: that a beginning holds together proves nothing.
        head, rows = await self.read_present(key, lambda connection: read_log(connection, key), at_one_moment=True)
        found: list[State] = []
        whole = await run_off_loop(_count_rows(rows), lambda: self.check_log(key, head, rows, at=at, found=found))
        free_state_aside(whole)
        if whole.damage is not None:
            self._cache.drop(key)
            await self.note_damage(key, whole.damage)
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
        person_key = None if head is None else head["person_key"]
        if person_key is not None and found:
            found[0] = replace(found[0], person_key=person_key)
        return replace(state, damage=check.findings.make_damage(state.seq), person_key=person_key)

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
        found = _ALL_SEALED.fetch_all(connection, {**session_columns(key), "after": after})
        return list(attach_keys(connection, found, PAYLOAD))
    rows: list[Sequence[Any]] = []
    while True:
        last = find_page_end(connection, key, after=after, upto=None, limit=_PAGE_EVENTS, max_bytes=_PAGE_BYTES)
        upto = MAX_BIGINT if last is None else last
        page = _SEALED_QUERY.fetch_all(
            connection, {**session_columns(key), "after": after, "upto": upto, "limit": _PAGE_EVENTS}
        )
        rows += attach_keys(connection, page, PAYLOAD)
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
    return _count_work((row[PAYLOAD] for row in rows), len(rows))


def _count_work(payloads: Iterable[str], count: int) -> int:
    """Count these events, a large one taken for several; of many it does not matter any more."""
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
        return attach_keys(connection, connection.execute(statement, used).all(), PAYLOAD)
    rows = _prepare_events_query(upto is not None, limit is not None).fetch_all(connection, row)
    return attach_keys(connection, rows, PAYLOAD)


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

    Looked for first, because to read all that comes until there is enough would take it into memory.
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
    rows = attach_keys(connection, _SEALED_QUERY.fetch_all(connection, row), PAYLOAD)
    return [decode_sealed(key.id, found) for found in rows]


def read_head_seq(connection: Connection, key: SessionKey) -> int | None:
    """The last seq of a session; None if there is no such session."""
    return connection.scalar(select(sessions.c.head_seq).where(*of_session(sessions, key)))


def read_redacted_payloads(connection: Connection, key: SessionKey) -> dict[int, str]:
    """The texts that stand in the place of removed payloads, by seq."""
    found = select(events.c.seq, events.c.payload).where(*of_session(events, key), events.c.salt.is_(None))
    return {row.seq: row.payload for row in connection.execute(found.order_by(events.c.seq))}
