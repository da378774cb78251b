"""Statements of the hot path, compiled once per database.

SQLAlchemy finds a statement's compiled form again for each execution and handles its parameters one by one: 60 µs
where the driver takes 6. The SQL is still written with it, once for both databases.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, TypeVar

import msgspec
from sqlalchemy import Connection, Dialect, Table
from sqlalchemy.sql.expression import ClauseElement

from swarmkeep.store.records import SessionKey
from swarmkeep.store.tables import Verbatim, escape

Row = Mapping[str, Any]
T = TypeVar("T")

MAX_PARAMETERS = 500
"""In one statement: below every database's limit."""


def split_parameters(items: Iterable[T]) -> Iterator[list[T]]:
    """As many of the items at a time as one statement may be given, each of which is a parameter."""
    left = list(items)
    for start in range(0, len(left), MAX_PARAMETERS):
        yield left[start : start + MAX_PARAMETERS]


_INSERTED = re.compile(r"(INSERT INTO .+? VALUES )(\(.+?\))( ON CONFLICT .+)?", re.DOTALL)
_FEW = 8
_PARAMETER = re.compile(r"\$(\d+)")


class _Parameter(msgspec.Struct, frozen=True):
    name: str
    verbatim: bool
    default: Any


class _Compiled(msgspec.Struct, frozen=True):
    sql: str
    parameters: tuple[_Parameter, ...]

    def values(self, row: Row) -> tuple[Any, ...]:
        values: list[Any] = []
        for each in self.parameters:
            value = row[each.name] if each.verbatim else row.get(each.name, each.default)
            # Nearly all texts are such that `escape` leaves them as they are.
            if each.verbatim and value and not (value.isascii() and value[0] != '"' and "\0" not in value):
                value = escape(value)
            values.append(value)
        return tuple(values)


@functools.lru_cache(256)
def _repeat(sql: str, parameters: int, count: int) -> str:
    """The insert of one row as one of so many, whose parameters come one after the other."""
    parts = _INSERTED.fullmatch(sql)
    if parts is None or _PARAMETER.search(parts[3] or ""):
        raise ValueError(sql)
    rows = (_shift_parameters(parts[2], parameters * row) for row in range(count))
    return f"{parts[1]}{', '.join(rows)}{parts[3] or ''}"


def _shift_parameters(sql: str, by: int) -> str:
    return _PARAMETER.sub(lambda found: f"${int(found[1]) + by}", sql)


class PreparedStatement:
    """One statement. Its parameters are scalars that the drivers take as they are, and Verbatim text."""

    def __init__(self, statement: ClauseElement, columns: Sequence[str] | None = None) -> None:
        self._statement = statement
        self._columns = columns
        self._compiled: dict[str, _Compiled] = {}

    @classmethod
    def of_rows(cls, insert: Any) -> PreparedStatement:
        """An insert of whole rows: each gives a value for every column."""
        return cls(insert, [column.name for column in insert.table.c])

    def execute(self, connection: Connection, row: Row) -> int:
        """Execute the statement; return how many rows were written."""
        count: int = self._run(connection, row).rowcount
        return count

    def fetch_all(self, connection: Connection, row: Row) -> Sequence[Sequence[Any]]:
        rows: Sequence[Sequence[Any]] = self._run(connection, row).fetchall()
        return rows

    def iterate(self, connection: Connection, row: Row) -> Iterable[Sequence[Any]]:
        """The rows one after the other: SQLite reads each as it is asked for."""
        rows: Iterable[Sequence[Any]] = self._run(connection, row)
        return rows

    def insert_many(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Insert rows.

        On PostgreSQL by whole statements: in the middle of its driver's `executemany` the server waits for the rest
        without a limit, and a process that stands still there would keep locked what it has.
        """
        if connection.dialect.name == "sqlite":
            compiled = self._get_compiled(connection.dialect)
            driver: Any = connection.connection.dbapi_connection
            driver.executemany(compiled.sql, list(map(compiled.values, rows)))
        else:
            self.insert_together(connection, rows)

    def cut(self, connection: Connection, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """Cut the items for one insert statement each, with an item for each row."""
        return _cut(items, MAX_PARAMETERS // len(self._get_compiled(connection.dialect).parameters))

    def insert_together(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Insert rows by whole statements, on SQLite, too."""
        compiled = self._get_compiled(connection.dialect)
        values = [compiled.values(row) for row in rows]
        for some in self.cut(connection, values):
            given = tuple(value for row in some for value in row)
            _run_sql(connection, _repeat(compiled.sql, len(compiled.parameters), len(some)), given)

    def render(self, dialect: Dialect, row: Row) -> tuple[str, tuple[Any, ...]]:
        """The SQL and its parameters, as the database's driver takes them."""
        compiled = self._get_compiled(dialect)
        return compiled.sql, compiled.values(row)

    def _run(self, connection: Connection, row: Row) -> Any:
        dialect = connection.dialect
        compiled = self._compiled.get(dialect.name) or self._get_compiled(dialect)
        return _run_sql(connection, compiled.sql, compiled.values(row))

    def _get_compiled(self, dialect: Dialect) -> _Compiled:
        found = self._compiled.get(dialect.name)
        if found is None:
            found = self._compiled[dialect.name] = self._compile(dialect)
        return found

    def _compile(self, dialect: Dialect) -> _Compiled:
        compiled: Any = self._statement.compile(dialect=dialect, column_keys=self._columns)
        types = {name: bind.type for bind, name in compiled.bind_names.items()}
        return _Compiled(
            compiled.string,
            tuple(
                _Parameter(name, isinstance(types[name], Verbatim), compiled.params.get(name))
                for name in compiled.positiontup
            ),
        )


def _cut(rows: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """A few at once, of many as many as two to some power: so that there are few statements to prepare."""
    start = 0
    while start < len(rows):
        size = min(len(rows) - start, most)
        if size > _FEW:
            size = 1 << (size.bit_length() - 1)
        yield rows[start : start + size]
        start += size


def _run_sql(connection: Connection, sql: str, values: tuple[Any, ...]) -> Any:
    if connection.dialect.name == "sqlite":
        # All that SQLAlchemy adds to its own connection here is 40 µs for each statement.
        return connection.connection.dbapi_connection.execute(sql, values)  # type: ignore[union-attr]
    return connection.exec_driver_sql(sql, values)


def build_insert(table: Table, dialect: str) -> Any:
    """An insert that can say what becomes of a row which is there already: every dialect has its own."""
    # A dialect brings all of its drivers: only the one of this database is loaded.
    return import_module(f"sqlalchemy.dialects.{dialect}").insert(table)


def build_insert_if_absent(table: Table, dialect: str) -> Any:
    """An insert that leaves a row which is there already."""
    return build_insert(table, dialect).on_conflict_do_nothing()


@functools.cache
def prepare_insert_if_absent(table: Table, dialect: str) -> PreparedStatement:
    return PreparedStatement.of_rows(build_insert_if_absent(table, dialect))


# The database under the SQL, which has two implementations; and the base of the store's subjects.

Render = Callable[[Dialect], tuple[str, Sequence[Any]]]
"""A statement as the database's driver takes it, with its parameters."""
Rows = Sequence[Sequence[Any]]


class Database(Protocol):
    """One place to read and write. Jobs are short, know nothing of asyncio, and keep no connection."""

    async def read(self, query: Callable[[Connection], T], *, seconds: float | None = None) -> T:
        """Run a query. It may run twice if the connection breaks.

        Raises Overloaded if one of its statements takes longer than `seconds`.
        """
        ...

    async def read_snapshot(self, query: Callable[[Connection], T]) -> T:
        """Run queries that take their time: all of them see the database as it was at one moment.

        They hold up no other read, and only a few of them run at once. All of it may run twice.
        """
        ...

    async def read_at_one_moment(self, query: Callable[[Connection], T]) -> T:
        """`read`, for several statements that see the database as it was at one moment."""
        ...

    async def write(self, job: Callable[[Connection], T], *, erases: bool = False) -> T:
        """Run a job in a transaction of its own, or in its own part of one, and commit.

        Until that it may be done again, so it changes nothing but the database. What it raises undoes all it did, and
        nothing else. A caller that is cancelled while it waits does not stop the job. `erases`: what it removes must
        not stay readable in the database's files.
        Raises OutcomeUnknown when it is unknown whether it was committed.
        """
        ...

    async def write_each(
        self,
        job: Callable[[Connection, Sequence[T]], None],
        items: Sequence[T],
        *,
        render: Callable[[T], Render | None],
    ) -> Sequence[Exception | None]:
        """`write` a job for each of some items; returns what it raised for each, None where it was done.

        The job is given several of them, or one: SQLite does a few in one transaction, and if that fails, each by
        itself; on PostgreSQL each has its own, so that no row is held while another is written. There it is one
        statement, for an item of which `render` gives one, as for `write_statement`. A failure stops none of the
        others, and nothing goes on when this returns.
        """
        ...

    async def write_statement(self, render: Render) -> Rows:
        """Run one statement that is a transaction of its own, and return its rows.

        No rows: it changed nothing, or it cannot be done so on this database, and a job is to be written instead, which
        finds out why. It must find nothing to change where it was done before, because it is done again when the
        connection breaks. As for the rest, see `write`.
        """
        ...

    async def write_from_anywhere(self, job: Callable[[Connection], T]) -> T:
        """`write`, from a loop that is not the one in which all else is done. Not for many at once."""
        ...

    async def check_writable(self) -> None:
        """Raises StoreUnavailable once a write has failed because the database takes none, until a trial is taken.

        The trial changes nothing. Without a failure there is none, and none where all is only read, as by a server
        that was begun on a standby.
        """
        ...

    @property
    def waiting_writes(self) -> int:
        """The number of writes that have not been committed yet."""
        ...

    def notify(self, key: SessionKey) -> None:
        """Notify other processes, soon, that a session changed."""
        ...

    async def listen(self, on_change: Callable[[SessionKey], None]) -> None:
        """Call `on_change` with each session that another process has just changed; see `SqlStore.listen`."""
        ...

    async def close(self) -> None: ...


class OnDatabase:
    """A subject of the store, on a Database."""

    read_seconds: float | None = None
    """How long a query may take whose shape and cost its caller chose."""

    def __init__(self, database: Database) -> None:
        self.database = database
