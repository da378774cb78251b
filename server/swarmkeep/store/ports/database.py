"""The database under the SQL: takes jobs (functions of a connection) and runs each in a transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Dialect

from swarmkeep.store.ports.keys import SessionKey

T = TypeVar("T")
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
        Raises OutcomeUnknown when nobody can say whether it was committed.
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

        The trial changes nothing. Without a failure there is none, and none where no write was ever taken: that server
        was begun to be read from, as one on a standby is.
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
        """See ChangeFeed."""
        ...

    async def close(self) -> None: ...
