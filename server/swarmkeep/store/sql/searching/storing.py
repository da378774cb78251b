"""Puts words into the index, with the mark that says how far a session is in it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Connection,
    LargeBinary,
    Text,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal_column,
    text,
    update,
)

from swarmkeep.store.ports.database import Render
from swarmkeep.store.sql.prepared import PreparedStatement
from swarmkeep.store.sql.searching.marks import Mark
from swarmkeep.store.sql.tables import events, of_bound_session, search, search_marks, session_columns

# Each number of rows is a statement of its own, which every connection prepares.
_FEW_ROWS = 8


class FoundWords(msgspec.Struct, frozen=True):
    """A part, worked out: words by the seq of a message, and what is not to be found any more.

    `last` is the last event that was read, with its hash: the session must still have it.
    """

    mark: Mark
    upto: int
    words: dict[int, str]
    removed: set[int]
    last: tuple[int, bytes] | None


def store_words(connection: Connection, some: Sequence[FoundWords]) -> None:
    """Put words into the index, but for sessions that have changed their past since they were read."""
    # First, because it holds the row: nobody removes a session, or what it says, until the words are there.
    current = [words for words in some if _move(connection, words)]
    for words in current:
        for seq in sorted(words.removed):
            _REMOVE.execute(connection, {**session_columns(words.mark.key), "seq": seq})
    found = [(words.mark.key, seq, text) for words in current for seq, text in words.words.items() if text]
    statement = _prepare_insert(connection.dialect.name)
    for few in statement.cut(connection, found):
        # Each statement counts on from the last one's greatest number.
        rows = [
            {**session_columns(key), "seq": seq, "number": place, "words": text}
            for place, (key, seq, text) in enumerate(few, 1)
        ]
        statement.insert_together(connection, rows)


def _move(connection: Connection, words: FoundWords) -> bool:
    mark = words.mark
    row = {**session_columns(mark.key), "upto": words.upto, "done_": mark.done, "round_": mark.round}
    if words.last is not None:
        row |= {"seq_": words.last[0], "hash_": words.last[1]}
    return _prepare_move(connection.dialect.name, words.last is not None).execute(connection, row) > 0


@functools.cache
def _prepare_move(dialect: str, is_same: bool) -> PreparedStatement:
    columns = search_marks.c
    same = (columns.done == bindparam("done_"), columns.round == bindparam("round_"))
    move = (
        update(search_marks)
        .where(*of_bound_session(search_marks), *same)
        .values(done=bindparam("upto", type_=BigInteger()))
    )
    if is_same:
        move = move.where(_HAS_LAST)
    return PreparedStatement(move.returning(text(_NOT_AWAITED)) if dialect == "postgresql" else move)


# The commit is not waited for by who gets the row: after a crash of the database the words may be missing, and with
# them what says that they are there. Then they are put in again.
_NOT_AWAITED = "set_config('synchronous_commit', 'off', true)"
_HAS_LAST = exists().where(
    *of_bound_session(events),
    events.c.seq == bindparam("seq_", type_=BigInteger()),
    events.c.hash == bindparam("hash_"),
)
_REMOVE = PreparedStatement(delete(search).where(*of_bound_session(search), search.c.seq == bindparam("seq")))


_NUMBERS: dict[str, Any] = {
    # It is the row's place in the index, which takes less room the smaller the steps are.
    "sqlite": literal_column("(SELECT coalesce(max(number), 0) FROM search)"),
    "postgresql": literal_column("CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"),
}


@functools.cache
def _prepare_insert(dialect: str) -> PreparedStatement:
    columns: dict[str, Any] = {name: bindparam(name, type_=each.type) for name, each in search.c.items()}
    columns["number"] = _NUMBERS[dialect] + columns["number"]
    if dialect == "postgresql":
        given = bindparam("words", type_=Text())
        columns["words"] = func.array_to_tsvector(func.string_to_array(given, literal_column("' '")))
    return PreparedStatement(insert(search).values(columns))


def render_words(found: FoundWords) -> Render | None:
    """The statement that stores the words of a plain turn on PostgreSQL, in one round trip; none for all else."""
    said = [(seq, words) for seq, words in found.words.items() if words]
    if found.removed or found.last is None or len(said) > _FEW_ROWS:
        return None
    mark, (seq, digest) = found.mark, found.last
    row = {**session_columns(mark.key), "upto": found.upto, "done_": mark.done, "round_": mark.round}
    row |= {"seq_": seq, "hash_": digest}
    for place, (said_seq, words) in enumerate(said):
        row |= {f"seq_{place}": said_seq, f"words_{place}": words}
    return lambda dialect: _prepare_statement(len(said)).render(dialect, row)


@functools.cache
def _prepare_statement(count: int) -> PreparedStatement:
    """A row if it was done, and none where the session has changed its past."""
    moved = (
        "moved AS (UPDATE search_marks SET done = :upto WHERE tenant = :tenant AND session_id = :session_id"
        " AND done = :done_ AND round = :round_ AND EXISTS (SELECT 1 FROM events WHERE events.tenant = :tenant"
        " AND events.session_id = :session_id AND events.seq = :seq_ AND events.hash = :hash_)"
        " RETURNING tenant, session_id)"
    )
    rows = ", ".join(f"(CAST(:seq_{place} AS bigint), {place}, CAST(:words_{place} AS text))" for place in range(count))
    said = (
        ", said AS (INSERT INTO search (tenant, session_id, seq, number, words) SELECT moved.tenant, moved.session_id,"
        f" given.seq, {_NUMBERS['postgresql']} + given.place, array_to_tsvector(string_to_array(given.words, ' '))"
        f" FROM moved CROSS JOIN (VALUES {rows}) AS given (seq, place, words))"
    )
    statement = text(f"WITH {moved}{said if count else ''} SELECT {_NOT_AWAITED} FROM moved")
    types: dict[str, Any] = {"tenant": search.c.tenant.type, "session_id": search.c.session_id.type}
    types |= dict.fromkeys(("upto", "done_", "round_", "seq_"), BigInteger()) | {"hash_": LargeBinary()}
    return PreparedStatement(statement.bindparams(*(bindparam(name, type_=of) for name, of in types.items())))
