"""How far each session is in the index of words: moved in the transaction of what there is to be found.

An append does so when no run is running after it, once for a turn: a row of its own, because an index of the head rows
would have to be changed with every append. The index itself follows behind (see `indexing`), and nobody waits for it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    bindparam,
    delete,
    exists,
    func,
    literal_column,
    select,
    union,
    update,
)

from swarmkeep.store.ports.keys import SessionKey
from swarmkeep.store.sql.columns import as_text, unescape
from swarmkeep.store.sql.prepared import PreparedStatement, build_insert
from swarmkeep.store.sql.tables import IS_BEHIND, SEARCH_TABLES, of_session, search, search_marks, sessions


class Mark(msgspec.Struct, frozen=True):
    """A session that is to be found up to `seq`, and is up to `done`. It holds for one `round`: see `void_words`."""

    key: SessionKey
    seq: int
    done: int
    round: int


def set_mark(connection: Connection, key: SessionKey, seq: int) -> None:
    """Have a session indexed up to this event."""
    _prepare_mark(connection.dialect.name).execute(connection, _make_row(key, seq))


def set_marks(connection: Connection, ends: Iterable[tuple[SessionKey, int]]) -> None:
    """`set_mark` for some sessions, each of which is named once."""
    _prepare_mark(connection.dialect.name).insert_many(connection, [_make_row(key, seq) for key, seq in ends])


def _make_row(key: SessionKey, seq: int) -> dict[str, Any]:
    return {"tenant": key.tenant, "session_id": key.id, "seq": seq, "done": 0, "round": 0}


@functools.cache
def _prepare_mark(dialect: str) -> PreparedStatement:
    return PreparedStatement.of_rows(move_mark(build_insert(search_marks, dialect)))


def build_marks(dialect: str, heads: Any, *conditions: Any) -> Any:
    """An insert of a mark for each of these head rows, of whose sessions nothing is indexed."""
    zero: Any = literal_column("0")
    source = select(heads.c.tenant, heads.c.id, heads.c.head_seq, zero, zero).where(*conditions)
    return build_insert(search_marks, dialect).from_select([column.name for column in search_marks.c], source)


def move_mark(given: Any) -> Any:
    """Have an insert (see `build_insert`) move the mark that is there."""
    mine = [search_marks.c.tenant, search_marks.c.session_id]
    return given.on_conflict_do_update(index_elements=mine, set_={"seq": given.excluded.seq})


def void_words(connection: Connection, key: SessionKey) -> None:
    """Take a session out of the index, and have it indexed anew.

    Who has read it before this, and writes words of it after, finds another round.
    """
    # First, because it waits for who writes words of it now: then these are there to be deleted.
    again = update(search_marks).where(*of_session(search_marks, key))
    connection.execute(again.values(done=0, round=search_marks.c.round + 1))
    connection.execute(delete(search).where(*of_session(search, key)))


def find_marks(connection: Connection, limit: int) -> list[Mark]:
    """Some sessions that are not indexed up to where they are to be."""
    return [read_mark(row) for row in _FIND.fetch_all(connection, {"most": limit})]


def read_mark(row: Sequence[Any]) -> Mark:
    """A mark from a row of its table's columns, as they are stored."""
    tenant, name, *numbers = row
    return Mark(SessionKey(unescape(as_text(tenant)), unescape(as_text(name))), *numbers)


def count_behind(connection: Connection, most: int | None) -> int:
    """How many sessions are not indexed up to where they are to be; no more than `most` are counted."""
    [[count]] = _COUNT.fetch_all(connection, {"most": _MANY if most is None else most})
    return int(count)


_MANY = (1 << 63) - 1
# In the order of the index, because PostgreSQL takes a third of the rows to be behind: so many that it would rather
# read the table than an index which hardly ever has any.
_IN_ORDER = (search_marks.c.tenant, search_marks.c.session_id)
_FIND = PreparedStatement(select(*search_marks.c).where(IS_BEHIND).order_by(*_IN_ORDER).limit(bindparam("most")))
_BEHIND: Select[Any] = select(literal_column("1")).select_from(search_marks).where(IS_BEHIND).order_by(*_IN_ORDER)
_COUNT = PreparedStatement(select(func.count()).select_from(_BEHIND.limit(bindparam("most")).subquery()))


def void_all(connection: Connection) -> None:
    """Empty the index, and have all sessions indexed anew."""
    delete_strays(connection)
    connection.execute(update(search_marks).values(done=0, round=search_marks.c.round + 1))
    for statement in _VOID[connection.dialect.name]:
        connection.exec_driver_sql(statement)
    add_marks(connection)


_VOID = {
    # Without the trigger, which would take each row out of the index of words by itself.
    "sqlite": (
        "DROP TRIGGER search_removed",
        "DELETE FROM search",
        "INSERT INTO search_index (search_index) VALUES ('delete-all')",
        "CREATE TRIGGER search_removed AFTER DELETE ON search BEGIN"
        " INSERT INTO search_index (search_index, rowid, words) VALUES ('delete', old.number, old.words); END",
    ),
    # So that words are gone from the pages of the index, too, which forgets none that it has had.
    "postgresql": ("TRUNCATE search",),
}


def count_strays(connection: Connection) -> int:
    """How many sessions the index has that were deleted by who does not know it."""
    found = [select(table.c.tenant, table.c.session_id).where(_is_stray(table)) for table in SEARCH_TABLES]
    return connection.scalar(select(func.count()).select_from(union(*found).subquery())) or 0


def delete_strays(connection: Connection) -> None:
    """Remove what there is of these. In the transaction of a `write` that erases."""
    for table in SEARCH_TABLES:
        connection.execute(delete(table).where(_is_stray(table)))


def _is_stray(table: Table) -> ColumnElement[bool]:
    return ~exists().where(sessions.c.tenant == table.c.tenant, sessions.c.id == table.c.session_id)


def add_marks(connection: Connection) -> None:
    """Have every session indexed that has no mark."""
    is_marked = exists().where(search_marks.c.tenant == sessions.c.tenant, search_marks.c.session_id == sessions.c.id)
    # One that was made meanwhile has its own.
    connection.execute(build_marks(connection.dialect.name, sessions, ~is_marked).on_conflict_do_nothing())
