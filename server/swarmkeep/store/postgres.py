"""PostgreSQL: each job in a task and a connection of its own, done again when the connection breaks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine, PoolProxiedConnection
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only, greenlet_spawn

from swarmkeep.events.errors import Overloaded
from swarmkeep.store import postgres_connections
from swarmkeep.store.records import OutcomeUnknown, SessionKey, StoreUnavailable
from swarmkeep.store.statements import Render, Rows
from swarmkeep.store.urls import PostgresServer

# Reads that take their time, in a thread and a loop of their own: no one waits for what they decode and check.

T = TypeVar("T")


class SnapshotThread:
    """Runs queries, each of which sees the database at one moment. The thread is made when it is first needed.

    The engine is this loop's own: connections belong to the loop that they were made in.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._engine: AsyncEngine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def run(self, query: Callable[[Connection], T]) -> T:
        """Run a query; what it raises comes as it is. Cancelled, it ends at its next statement."""
        loop = self._loop or self._start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._read(query), loop))

    def _start(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.new_event_loop()
        # A daemon, so that a program which forgets to close can still end.
        self._thread = threading.Thread(target=self._loop.run_forever, name="swarmkeep-snapshot", daemon=True)
        self._thread.start()
        return self._loop

    async def _read(self, query: Callable[[Connection], T]) -> T:
        if self._engine is None:
            self._engine = postgres_connections.make_engine(self._server)
        return await greenlet_spawn(
            postgres_connections.run_query, postgres_connections.pin_moment(self._engine).sync_engine, query
        )

    async def close(self) -> None:
        """End what goes on, and the thread. A second time does nothing."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._finish(), loop))
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()

    async def _finish(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._engine is not None:
            await self._engine.dispose()


# Statements that go to asyncpg itself, on a connection of the pool, each of them a transaction of its own.


class ConnectionBroken(ConnectionError):
    """The connection is gone. `is_in_doubt`: the statement was sent, so it may have been done."""

    def __init__(self, cause: Exception | None) -> None:
        super().__init__(str(cause or "the connection was closed"))
        self.is_in_doubt = cause is not None


def run_statement(engine: Engine, render: Render) -> Rows:
    """Run a statement, in a greenlet. Raises ConnectionBroken, and the driver's errors."""
    with closing(engine.raw_connection()) as pooled:
        driver: Any = pooled.driver_connection
        if driver.is_closed():
            drop_connections(engine, pooled)
            raise ConnectionBroken(None)
        sql, values = render(engine.dialect)
        try:
            rows: Rows = await_only(driver.fetch(sql, *values))
        except Exception as error:
            if not (driver.is_closed() or postgres_connections.breaks_connection(error)):
                raise
            drop_connections(engine, pooled)
            raise ConnectionBroken(error) from error
    return rows


def drop_connections(engine: Engine, broken: PoolProxiedConnection | None = None) -> None:
    """Use none of the connections again that were made before now, or before this one broke: they lead to the same end.

    What is in use goes on, and is closed when it is done.
    """
    # What SQLAlchemy does when a statement of its own finds out. A pool that is disposed of forgets what is in use.
    engine.pool._invalidate(broken)  # type: ignore[arg-type]


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
        self._notifications = postgres_connections.Notifications(lambda: postgres_connections.connect(server, {}))
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
        return await self._read(postgres_connections.pin_moment(self._open_engines()[0]), query)

    async def _read(self, engine: AsyncEngine, query: Callable[[Connection], T]) -> T:
        return await self._repeat(lambda: greenlet_spawn(postgres_connections.run_query, engine.sync_engine, query))

    async def _repeat(self, run: Callable[[], Awaitable[T]]) -> T:
        """Run a query, again if the connection was lost."""
        for last in (False, True):
            try:
                return await run()
            except Exception as error:
                if last or not postgres_connections.is_connection_lost(error):
                    postgres_connections.raise_store_error(error, self._server)
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
        # A task of its own: cancelled half way, it would be unknown whether it was committed.
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
            # A caller that was cancelled meanwhile is not told of the refusal: no reason for an error in the log.
            task.exception()

    async def write_from_anywhere(self, job: Callable[[Connection], T]) -> T:
        # The pool's connections belong to the loop that they were made in.
        engine = postgres_connections.make_engine(self._server, pooled=False)
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
            self._engine = postgres_connections.make_engine(self._server, read_only=self._read_only)
            # The same pool. A query that is one statement needs no BEGIN and ROLLBACK around it.
            self._reading = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        return self._engine, self._reading

    async def _write(self, engine: AsyncEngine, job: Callable[[Connection], T]) -> T:
        for last in (False, True):
            transaction = _Transaction(job)
            try:
                return await greenlet_spawn(transaction.run, engine.sync_engine)
            except Exception as error:
                if transaction.committing and postgres_connections.is_connection_lost(error):
                    raise self._make_outcome_unknown() from error
                # Before the commit nothing has happened, so to do it again is to do it once.
                is_demoted = not self._read_only and postgres_connections.is_server_read_only(error)
                if is_demoted:
                    # Each connection of the pool leads there, and would be kept for as long as it works.
                    drop_connections(engine.sync_engine)
                if last or not (
                    await _is_freed(engine, error) or is_demoted or postgres_connections.is_connection_lost(error)
                ):
                    postgres_connections.raise_store_error(error, self._server)
        raise AssertionError

    async def _write_statement(self, engine: AsyncEngine, render: Render) -> Rows:
        is_in_doubt = False
        for last in (False, True):
            try:
                rows = await greenlet_spawn(run_statement, engine.sync_engine, render)
            except Exception as error:
                is_lost, is_demoted = (
                    isinstance(error, ConnectionBroken),
                    postgres_connections.is_server_read_only(error),
                )
                is_in_doubt |= isinstance(error, ConnectionBroken) and error.is_in_doubt
                if is_demoted:
                    drop_connections(engine.sync_engine)
                if postgres_connections.is_overtaken(error) and not is_in_doubt:
                    return ()
                if not last and (await _is_freed(engine, error) or is_lost or is_demoted):
                    continue
                if is_in_doubt:
                    raise self._make_outcome_unknown() from error
                postgres_connections.raise_store_error(error, self._server)
            # Done already, or refused: that is unknown.
            if is_in_doubt and not rows:
                raise self._make_outcome_unknown()
            return rows
        raise AssertionError

    def _make_outcome_unknown(self) -> OutcomeUnknown:
        message = f"the connection to {self._server.display} broke during a commit; "
        return OutcomeUnknown(message + "it is not known whether the commit succeeded")


async def _is_freed(engine: AsyncEngine, error: Exception) -> bool:
    """Tell if the error was that something is locked, and its holder keeps it locked no more."""
    may_be_locked = postgres_connections.is_locked_out(error) or postgres_connections.is_out_of_time(error)
    return (
        may_be_locked and await greenlet_spawn(postgres_connections.end_standing_transactions, engine.sync_engine) > 0
    )


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
