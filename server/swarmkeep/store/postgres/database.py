"""PostgreSQL: each job in a task and a connection of its own, done again when the connection breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import greenlet_spawn

from swarmkeep.domain.errors import Overloaded
from swarmkeep.store.ports import OutcomeUnknown, SessionKey, StoreUnavailable
from swarmkeep.store.ports.database import Render, Rows
from swarmkeep.store.postgres.connections import connect, make_engine, pin_moment, run_query
from swarmkeep.store.postgres.errors import (
    is_connection_lost,
    is_locked_out,
    is_out_of_time,
    is_overtaken,
    is_server_read_only,
    raise_store_error,
)
from swarmkeep.store.postgres.notifications import Notifications
from swarmkeep.store.postgres.snapshots import SnapshotThread
from swarmkeep.store.postgres.standstill import end_standing_transactions
from swarmkeep.store.postgres.statements import ConnectionBroken, drop_connections, run_statement
from swarmkeep.store.urls import PostgresServer

T = TypeVar("T")

_SNAPSHOTS = 2
# A server that takes no writes refuses it, though there is nothing that it would change.
_TRIAL = "UPDATE totals SET sessions = 0 WHERE false"
# Of `write_each`: all else needs connections, too.
_ITEMS_AT_ONCE = 4


class PostgresDatabase:
    """A PostgreSQL database as a Database. The engine belongs to the loop of its first use."""

    def __init__(self, server: PostgresServer, *, read_only: bool = False, max_waiting: int = 1000) -> None:
        self._server = server
        self._read_only = read_only
        self._max_waiting = max_waiting
        self._engine: AsyncEngine | None = None
        self._reading: AsyncEngine | None = None
        # They share a thread, so that more at once would only wait for one another.
        self._snapshots = asyncio.Semaphore(_SNAPSHOTS)
        self._snapshot_thread = SnapshotThread(server)
        self._writes: set[asyncio.Task[Any]] = set()
        self._notifications = Notifications(lambda: connect(server, {}))
        self._closed = False
        self._has_written = self._has_failed = False

    async def read(self, query: Callable[[Connection], T], *, seconds: float | None = None) -> T:
        engine, reading = self._open_engines()
        if seconds is None:
            return await self._read(reading, query)
        # In a transaction, so that the limit ends with it.
        return await self._read(engine, partial(_query_in_time, query, seconds))

    async def read_snapshot(self, query: Callable[[Connection], T]) -> T:
        self._open_engines()
        async with self._snapshots:
            return await self._repeat(lambda: self._snapshot_thread.run(query))

    async def read_at_one_moment(self, query: Callable[[Connection], T]) -> T:
        return await self._read(pin_moment(self._open_engines()[0]), query)

    async def _read(self, engine: AsyncEngine, query: Callable[[Connection], T]) -> T:
        return await self._repeat(lambda: greenlet_spawn(run_query, engine.sync_engine, query))

    async def _repeat(self, run: Callable[[], Awaitable[T]]) -> T:
        """Run a query, again if the connection was lost."""
        for last in (False, True):
            try:
                return await run()
            except Exception as error:
                if last or not is_connection_lost(error):
                    raise_store_error(error, self._server)
        raise AssertionError

    async def write(self, job: Callable[[Connection], T], *, erases: bool = False) -> T:
        return await self._finish_write(self._write(self._open_to_write(), job))

    async def write_each(
        self,
        job: Callable[[Connection, Sequence[T]], None],
        items: Sequence[T],
        *,
        render: Callable[[T], Render | None],
    ) -> Sequence[Exception | None]:
        # A transaction for each, which holds no row longer than that takes.
        gate = asyncio.Semaphore(_ITEMS_AT_ONCE)

        async def write(item: T) -> Exception | None:
            async with gate:
                try:
                    statement = render(item)
                    if statement is None or not await self.write_statement(statement):
                        await self.write(lambda connection: job(connection, [item]))
                except Exception as error:
                    return error
            return None

        return await asyncio.gather(*map(write, items))

    async def write_statement(self, render: Render) -> Rows:
        return await self._finish_write(self._write_statement(self._open_to_write(), render))

    def _open_to_write(self) -> AsyncEngine:
        engine = self._open_engines()[0]
        if self._read_only:
            raise StoreUnavailable(f"the database at {self._server.display} is open read-only")
        if len(self._writes) >= self._max_waiting:
            raise Overloaded
        return engine

    async def _finish_write(self, work: Coroutine[Any, Any, T]) -> T:
        # A task of its own: cancelled half way, nobody would know whether it was committed.
        task = asyncio.get_running_loop().create_task(work)
        self._writes.add(task)
        task.add_done_callback(self._forget_write)
        try:
            result = await asyncio.shield(task)
        except StoreUnavailable:
            self._has_failed = True
            raise
        self._has_written = True
        return result

    def _forget_write(self, task: asyncio.Task[Any]) -> None:
        self._writes.discard(task)
        if not task.cancelled():
            # Whoever was cancelled meanwhile is not told that it was refused: no reason for an error in the log.
            task.exception()

    async def write_from_anywhere(self, job: Callable[[Connection], T]) -> T:
        # The pool's connections belong to the loop that they were made in.
        engine = make_engine(self._server, pooled=False)
        try:
            return await self._write(engine, job)
        finally:
            await engine.dispose()

    async def check_writable(self) -> None:
        if self._has_written and self._has_failed:
            await self.write(lambda connection: connection.exec_driver_sql(_TRIAL))
            self._has_failed = False

    @property
    def waiting_writes(self) -> int:
        return len(self._writes)

    def notify(self, key: SessionKey) -> None:
        self._notifications.notify(key)

    async def listen(self, on_change: Callable[[SessionKey], None]) -> None:
        # What pools connections passes no notifications on.
        if self._server.prepares_statements:
            await self._notifications.run(on_change)

    async def close(self) -> None:
        self._closed = True
        if self._writes:
            await asyncio.wait(self._writes)
        await self._snapshot_thread.close()
        if self._engine is not None:
            await self._engine.dispose()

    def _open_engines(self) -> tuple[AsyncEngine, AsyncEngine]:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if self._engine is None or self._reading is None:
            self._engine = make_engine(self._server, read_only=self._read_only)
            # The same pool. A query that is one statement needs no BEGIN and ROLLBACK around it.
            self._reading = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        return self._engine, self._reading

    async def _write(self, engine: AsyncEngine, job: Callable[[Connection], T]) -> T:
        for last in (False, True):
            transaction = _Transaction(job)
            try:
                return await greenlet_spawn(transaction.run, engine.sync_engine)
            except Exception as error:
                if transaction.committing and is_connection_lost(error):
                    raise self._make_outcome_unknown() from error
                # Before the commit nothing has happened, so to do it again is to do it once.
                is_demoted = not self._read_only and is_server_read_only(error)
                if is_demoted:
                    # Each connection of the pool leads there, and would be kept for as long as it works.
                    drop_connections(engine.sync_engine)
                if last or not (await _is_freed(engine, error) or is_demoted or is_connection_lost(error)):
                    raise_store_error(error, self._server)
        raise AssertionError

    async def _write_statement(self, engine: AsyncEngine, render: Render) -> Rows:
        is_in_doubt = False
        for last in (False, True):
            try:
                rows = await greenlet_spawn(run_statement, engine.sync_engine, render)
            except Exception as error:
                is_lost, is_demoted = isinstance(error, ConnectionBroken), is_server_read_only(error)
                is_in_doubt |= isinstance(error, ConnectionBroken) and error.is_in_doubt
                if is_demoted:
                    drop_connections(engine.sync_engine)
                if is_overtaken(error) and not is_in_doubt:
                    return ()
                if not last and (await _is_freed(engine, error) or is_lost or is_demoted):
                    continue
                if is_in_doubt:
                    raise self._make_outcome_unknown() from error
                raise_store_error(error, self._server)
            # Done already, or refused: nobody can say.
            if is_in_doubt and not rows:
                raise self._make_outcome_unknown()
            return rows
        raise AssertionError

    def _make_outcome_unknown(self) -> OutcomeUnknown:
        message = f"the connection to {self._server.display} broke during a commit; "
        return OutcomeUnknown(message + "it is not known whether the commit succeeded")


async def _is_freed(engine: AsyncEngine, error: Exception) -> bool:
    """Whether the error was that something is locked, and whoever kept it locked does so no more."""
    may_be_locked = is_locked_out(error) or is_out_of_time(error)
    return may_be_locked and await greenlet_spawn(end_standing_transactions, engine.sync_engine) > 0


def _query_in_time(query: Callable[[Connection], T], seconds: float, connection: Connection) -> T:
    connection.exec_driver_sql(f"SET LOCAL statement_timeout = {max(1, round(seconds * 1000))}")
    return query(connection)


class _Transaction(Generic[T]):
    """A job and its commit, as one call. `committing` tells a break before the commit from one during it."""

    def __init__(self, job: Callable[[Connection], T]) -> None:
        self._job = job
        self.committing = False

    def run(self, engine: Engine) -> T:
        with engine.connect() as connection, connection.begin():
            result = self._job(connection)
            self.committing = True
        return result
