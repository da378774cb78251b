"""Keeps the index of words: what was recorded since a session was indexed last is added to it, behind the appends."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Connection,
    Text,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    text,
    type_coerce,
    update,
)

from swarmkeep.domain.codec import Json, decode
from swarmkeep.domain.errors import Overloaded
from swarmkeep.domain.events import MessageAdded
from swarmkeep.domain.facts.history import MessageRemoved
from swarmkeep.domain.finding.words import list_labels, list_said, list_words
from swarmkeep.store.ports.errors import OutcomeUnknown, StoreUnavailable
from swarmkeep.store.ports.index import MANY_BEHIND
from swarmkeep.store.sql.columns import as_text, stored_bytes
from swarmkeep.store.sql.database import OnDatabase
from swarmkeep.store.sql.prepared import PreparedStatement
from swarmkeep.store.sql.searching.marks import Mark, add_marks, count_behind, find_marks, void_all
from swarmkeep.store.sql.searching.tokens import join_words
from swarmkeep.store.sql.tables import events, of_session, search, search_marks, session_columns, sessions
from swarmkeep.store.upcast import upcast

log = logging.getLogger(__name__)

LABELS = 0
"""The seq of a session's id and metadata in the index."""
_EVENTS_AT_ONCE = 500
_BYTES_OF_SESSION = 1_000_000
_BYTES_AT_ONCE = 4_000_000
_SESSIONS_AT_ONCE = 50
# All else needs connections, too.
_WRITES_AT_ONCE = 8


class _Part(msgspec.Struct, frozen=True):
    """What is to be indexed of a session next: events as they are stored, oldest first, and how lists show it."""

    mark: Mark
    rows: Sequence[Any]
    upto: int
    view: str


class _Words(msgspec.Struct, frozen=True):
    """A part, worked out: words by the seq of a message, and what is not to be found any more.

    `last` is the last event that was read, with its hash: the session must still have it.
    """

    mark: Mark
    upto: int
    words: dict[int, str]
    removed: set[int]
    last: tuple[int, bytes] | None


class _Outdated(Exception):
    """The session is another one by now."""


class SqlSearchIndexer(OnDatabase):
    """SearchIndexer on a Database."""

    async def index_some(self) -> int:
        """Index the next few sessions; returns how many there were."""
        parts = await self.database.read_snapshot(_read_parts)
        if not parts:
            return 0
        found = await asyncio.to_thread(lambda: [_work_out_or_skip(part) for part in parts])
        # Each is a transaction of its own; of several SQLite makes one.
        gate = asyncio.Semaphore(_WRITES_AT_ONCE)
        ends = await asyncio.gather(*(self._store(words, gate) for words in found), return_exceptions=True)
        # None of them is left behind: whoever hears of a failure may close the database.
        for error in ends:
            if error is not None:
                raise error
        return len(parts)

    async def _store(self, words: _Words, gate: asyncio.Semaphore) -> None:
        async with gate:
            await self._store_or_skip(words)

    async def _store_or_skip(self, words: _Words) -> None:
        try:
            await self.database.write(lambda connection: _store(connection, words))
        except _Outdated:
            return
        except (StoreUnavailable, OutcomeUnknown, Overloaded):
            raise
        except Exception as error:
            empty = _skip(words.mark, words.upto, error)
            await self.database.write(lambda connection: _store(connection, empty))

    async def count_sessions_behind(self, most: int | None = MANY_BEHIND) -> int:
        """How many sessions are not found yet by all that is in them; no more than `most` are counted."""
        return await self.database.read(lambda connection: count_behind(connection, most))

    async def void_search_index(self) -> None:
        """Empty the index, so that all of it is made anew."""
        await self.database.write(void_all, erases=True)

    async def add_missing_marks(self) -> None:
        """Have sessions indexed that were made by who does not know the index."""
        await self.database.write(add_marks)


def _read_parts(connection: Connection) -> list[_Part]:
    parts: list[_Part] = []
    left = _BYTES_AT_ONCE
    for mark in find_marks(connection, _SESSIONS_AT_ONCE):
        row = {**session_columns(mark.key), "after": mark.done, "upto": mark.seq}
        sizes = _SIZES.fetch_all(connection, row)
        size, upto = 0, mark.seq
        for place, (seq, payload_bytes) in enumerate(sizes, 1):
            size += payload_bytes or 0
            if size >= _BYTES_OF_SESSION or place == _EVENTS_AT_ONCE:
                # A seq of another type is damage, which `verify` names.
                upto = seq if isinstance(seq, int) else mark.seq
                break
        view = _VIEW.fetch_all(connection, session_columns(mark.key))
        rows = _ROWS.fetch_all(connection, {**row, "upto": upto})
        parts.append(_Part(mark, rows, upto, as_text(view[0][0]) if view else "{}"))
        left -= size
        if left <= 0:
            break
    return parts


def _select_events(*wanted: Any) -> PreparedStatement:
    columns = events.c
    mine = (columns.tenant == bindparam("tenant"), columns.session_id == bindparam("session_id"))
    page = (columns.seq > bindparam("after"), columns.seq <= bindparam("upto"))
    found = select(columns.seq, *wanted).where(*mine, *page).order_by(columns.seq)
    return PreparedStatement(found.limit(literal_column(str(_EVENTS_AT_ONCE))))


_SIZES = _select_events(stored_bytes(events.c.payload))
_ROWS = _select_events(
    type_coerce(events.c.type, Text), events.c.version, events.c.payload, events.c.salt, events.c.hash
)
_VIEW = PreparedStatement(
    select(sessions.c.view).where(sessions.c.tenant == bindparam("tenant"), sessions.c.id == bindparam("session_id"))
)


def _work_out_or_skip(part: _Part) -> _Words:
    try:
        return _work_out(part)
    except Exception as error:
        return _skip(part.mark, part.upto, error)


def _skip(mark: Mark, upto: int, error: Exception) -> _Words:
    """Nothing, in the place of what cannot be indexed: it must not keep the others from being found."""
    # Not the error's text, nor where it came from: what somebody said may stand there.
    log.error("session %s: the words of some of its events cannot be indexed: %s", mark.key.id, type(error).__name__)
    return _Words(mark, upto, {}, set(), None)


def _work_out(part: _Part) -> _Words:
    texts: dict[int, str] = {}
    removed: set[int] = set()
    is_labelled = part.mark.done == 0
    for seq, type_, version, payload, salt, _ in part.rows:
        is_labelled = is_labelled or as_text(type_).startswith("session.")
        # What stands in the place of what was removed says nothing.
        if salt is None or type_ not in (MessageAdded.type, MessageRemoved.type):
            continue
        match upcast(type_, version, as_text(payload)):
            case MessageAdded(message=message):
                texts[seq] = list_said(message)
            case MessageRemoved(message_seq=one, seqs=seqs, content=content):
                removed |= {*seqs, *((one,) if content is True else ())}
            case _:
                continue
    if is_labelled:
        removed.add(LABELS)
        texts[LABELS] = list_labels(part.mark.key.id, read_metadata(part.view))
    tenant = part.mark.key.tenant
    found = {seq: join_words(tenant, list_words(text)) for seq, text in texts.items() if seq not in removed or not seq}
    last = None if not part.rows else (part.rows[-1][0], part.rows[-1][-1])
    return _Words(part.mark, part.upto, found, removed, last)


def read_metadata(view: str) -> Json:
    """The metadata of a session as its head row has it; none if that is damaged."""
    try:
        return decode(view, _Labelled).metadata
    except (ValueError, TypeError):
        return {}


class _Labelled(msgspec.Struct, frozen=True):
    metadata: Json = {}


def _store(connection: Connection, found: _Words) -> None:
    """Put words into the index, unless the session has changed its past since they were read. Raises _Outdated."""
    mark = found.mark
    mine = session_columns(mark.key)
    # First, because it holds the row: nobody removes a session, or what it says, until the words are there.
    if not _MOVE.execute(connection, {**mine, "upto": found.upto, "done_": mark.done, "round_": mark.round}):
        return
    if found.last is not None:
        seq, digest = found.last
        kept = _HASH.fetch_all(connection, {**mine, "seq_": seq})
        if not kept or kept[0][0] != digest:
            raise _Outdated
    for seq in sorted(found.removed):
        connection.execute(delete(search).where(*of_session(search, mark.key), search.c.seq == seq))
    [[number]] = _NUMBERS[connection.dialect.name].fetch_all(connection, {})
    rows = [
        {**mine, "seq": seq, "number": number + place, "words": words}
        for place, (seq, words) in enumerate(found.words.items())
        if words
    ]
    if rows:
        _prepare_insert(connection.dialect.name).insert_many(connection, rows)


_MOVE = PreparedStatement(
    update(search_marks)
    .where(
        search_marks.c.tenant == bindparam("tenant"),
        search_marks.c.session_id == bindparam("session_id"),
        search_marks.c.done == bindparam("done_"),
        search_marks.c.round == bindparam("round_"),
    )
    .values(done=bindparam("upto", type_=BigInteger()))
)


_HASH = PreparedStatement(
    select(events.c.hash).where(
        events.c.tenant == bindparam("tenant"),
        events.c.session_id == bindparam("session_id"),
        events.c.seq == bindparam("seq_", type_=BigInteger()),
    )
)

_NUMBERS = {
    # It is the row's place in the index, which takes less room the smaller the steps are.
    "sqlite": PreparedStatement(text("SELECT coalesce(max(number), 0) + 1 FROM search")),
    "postgresql": PreparedStatement(text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)")),
}


@functools.cache
def _prepare_insert(dialect: str) -> PreparedStatement:
    columns: dict[str, Any] = {name: bindparam(name, type_=each.type) for name, each in search.c.items()}
    if dialect == "postgresql":
        given = bindparam("words", type_=Text())
        columns["words"] = func.array_to_tsvector(func.string_to_array(given, literal_column("' '")))
    return PreparedStatement(insert(search).values(columns))
