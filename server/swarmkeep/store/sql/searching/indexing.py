"""Keeps the index of words: what was recorded since a session was indexed last is added to it, behind the appends."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    Connection,
    Select,
    Text,
    bindparam,
    func,
    literal_column,
    select,
    type_coerce,
)

from swarmkeep.domain.codec import Json, decode
from swarmkeep.domain.errors import Overloaded
from swarmkeep.domain.events import MessageAdded
from swarmkeep.domain.facts.history import MessageRemoved
from swarmkeep.domain.finding.words import list_labels, list_said, list_words
from swarmkeep.store.ports.errors import OutcomeUnknown, StoreUnavailable
from swarmkeep.store.ports.index import MANY_BEHIND
from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.sql.columns import as_text, stored_bytes
from swarmkeep.store.sql.database import OnDatabase
from swarmkeep.store.sql.prepared import PreparedStatement
from swarmkeep.store.sql.searching.marks import Mark, add_marks, count_behind, find_marks, void_all
from swarmkeep.store.sql.searching.storing import FoundWords, render_words, store_words
from swarmkeep.store.sql.searching.tokens import join_words
from swarmkeep.store.sql.tables import events, session_columns, sessions
from swarmkeep.store.upcast import upcast

log = logging.getLogger(__name__)

LABELS = 0
"""The seq of a session's id and metadata in the index."""
_EVENTS_AT_ONCE = 500
_BYTES_OF_SESSION = 1_000_000
_BYTES_AT_ONCE = 4_000_000
_SESSIONS_AT_ONCE = 50


class _Part(msgspec.Struct, frozen=True):
    """What is to be indexed of a session next: events as they are stored, oldest first.

    `view`: how lists show it, if that is to be indexed, too.
    """

    mark: Mark
    rows: Sequence[Any]
    upto: int
    view: str | None


class SqlSearchIndexer(OnDatabase):
    """SearchIndexer on a Database."""

    async def index_some(self) -> int:
        """Index the next few sessions; returns how many there were."""
        parts = await self.database.read_snapshot(_read_parts)
        if not parts:
            return 0
        found = await asyncio.to_thread(lambda: [_work_out_or_skip(part) for part in parts])
        for words, error in zip(
            found, await self.database.write_each(store_words, found, render=render_words), strict=True
        ):
            if isinstance(error, StoreUnavailable | OutcomeUnknown | Overloaded):
                raise error
            if error is not None:
                await self.database.write(functools.partial(store_words, some=[_skip(words.mark, words.upto, error)]))
        return len(parts)

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
        rows, size = _read_rows(connection, mark)
        # What is not read now is read next. A seq of another type is damage, which `verify` names.
        upto = rows[-1][0] if rows and isinstance(rows[-1][0], int) else mark.seq
        is_labelled = mark.done == 0 or any(as_text(row[1]).startswith("session.") for row in rows)
        parts.append(_Part(mark, rows, upto, _read_view(connection, mark.key) if is_labelled else None))
        left -= size
        if left <= 0:
            break
    return parts


def _read_rows(connection: Connection, mark: Mark) -> tuple[list[Any], int]:
    """Events that are not indexed yet, and how large they are: so many that the last goes beyond the limit."""
    rows: list[Any] = []
    size = 0
    given = {**session_columns(mark.key), "after": mark.done, "upto": mark.seq}
    for row in _ROWS[connection.dialect.name].iterate(connection, given):
        rows.append(row)
        size += len(as_text(row[3]))
        if size >= _BYTES_OF_SESSION:
            break
    return rows, size


def _read_view(connection: Connection, key: SessionKey) -> str:
    found = _VIEW.fetch_all(connection, session_columns(key))
    return as_text(found[0][0]) if found else "{}"


def _select_rows() -> Select[Any]:
    columns = events.c
    mine = (columns.tenant == bindparam("tenant"), columns.session_id == bindparam("session_id"))
    page = (columns.seq > bindparam("after"), columns.seq <= bindparam("upto"))
    wanted = (columns.seq, type_coerce(columns.type, Text).label("type"), columns.version, columns.payload)
    some = select(*wanted, columns.salt, columns.hash).where(*mine, *page).order_by(columns.seq)
    return some.limit(literal_column(str(_EVENTS_AT_ONCE)))


def _limit_size(rows: Select[Any]) -> Select[Any]:
    """These rows, as far as the limit of a session goes."""
    size = stored_bytes(events.c.payload)
    before = func.sum(size).over(order_by=events.c.seq) - size
    *wanted, so_far = rows.add_columns(before.label("so_far")).subquery().c
    return select(*wanted).where(so_far < literal_column(str(_BYTES_OF_SESSION))).order_by(wanted[0])


_ROWS = {
    # It gives one row after the other, as they are asked for.
    "sqlite": PreparedStatement(_select_rows()),
    "postgresql": PreparedStatement(_limit_size(_select_rows())),
}
_VIEW = PreparedStatement(
    select(sessions.c.view).where(sessions.c.tenant == bindparam("tenant"), sessions.c.id == bindparam("session_id"))
)


def _work_out_or_skip(part: _Part) -> FoundWords:
    try:
        return _work_out(part)
    except Exception as error:
        return _skip(part.mark, part.upto, error)


def _skip(mark: Mark, upto: int, error: Exception) -> FoundWords:
    """Nothing, in the place of what cannot be indexed: it must not keep the others from being found."""
    # Not the error's text, nor where it came from: what somebody said may stand there.
    log.error("session %s: the words of some of its events cannot be indexed: %s", mark.key.id, type(error).__name__)
    return FoundWords(mark, upto, {}, set(), None)


def _work_out(part: _Part) -> FoundWords:
    texts: dict[int, str] = {}
    removed: set[int] = set()
    for seq, type_, version, payload, salt, _ in part.rows:
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
    if part.view is not None:
        removed.add(LABELS)
        texts[LABELS] = list_labels(part.mark.key.id, read_metadata(part.view))
    tenant = part.mark.key.tenant
    found = {seq: join_words(tenant, list_words(text)) for seq, text in texts.items() if seq not in removed or not seq}
    seq, *_, digest = part.rows[-1] if part.rows else (0, None)
    last = (seq, digest) if isinstance(digest, bytes) else None
    return FoundWords(part.mark, part.upto, found, removed, last)


def read_metadata(view: str) -> Json:
    """The metadata of a session as its head row has it; none if that is damaged."""
    try:
        return decode(view, _Labelled).metadata
    except (ValueError, TypeError):
        return {}


class _Labelled(msgspec.Struct, frozen=True):
    metadata: Json = {}
