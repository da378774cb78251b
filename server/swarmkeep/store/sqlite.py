"""SQLite: one thread that writes, with group commit, and a few that read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, TypeVar

from sqlalchemy import Connection, Transaction
from sqlalchemy.exc import OperationalError

from swarmkeep.events.errors import Overloaded
from swarmkeep.store import sqlite_files
from swarmkeep.store.records import OutcomeUnknown, SessionKey, StoreUnavailable
from swarmkeep.store.statements import Render, Rows
from swarmkeep.store.urls import SqliteFile

# Jobs that wait to be written, and the transaction that several of them share.


class Job:
    """A write that waits, and where its outcome goes. `outcome` is what it returned or raised."""

    __slots__ = ("erases", "failed", "future", "loop", "outcome", "run")

    def __init__(self, run: Callable[[Connection], Any], erases: bool) -> None:
        self.run = run
        self.erases = erases
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.outcome: Any = None
        self.failed = False

    def fail(self, error: Exception) -> None:
        self.outcome, self.failed = error, True


class RolledBack(Exception):
    """SQLite rolled the whole transaction back by itself, as it does when the disk is full."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class CommitFailed(RolledBack):
    """It failed as it was to be committed."""


def commit(connection: Connection, batch: Sequence[Job], display: str) -> None:
    """Do all jobs in one transaction; one that fails is undone alone."""
    if not _commit_whole(connection, batch, display):
        _commit_rest(connection, batch, display)


def _commit_whole(connection: Connection, batch: Sequence[Job], display: str) -> bool:
    """Do all jobs, or none of several if one of them fails: to do them again is then to do them once.

    There are no savepoints: SQLite copies each page that is changed after one, and soon into a file of its own.
    """
    with connection.begin() as transaction:
        for job in batch:
            try:
                job.outcome = job.run(connection)
            except Exception as error:
                _check_open(connection, error)
                transaction.rollback()
                if len(batch) == 1:
                    job.fail(sqlite_files.translate_sqlite_error(error, display))
                return len(batch) == 1
        _end(transaction)
    return True


def _commit_rest(connection: Connection, batch: Sequence[Job], display: str) -> None:
    """Do those jobs that do not fail."""
    with connection.begin() as transaction:
        raw: Any = connection.connection.dbapi_connection
        for job in batch:
            raw.execute("SAVEPOINT job")
            try:
                job.outcome = job.run(connection)
            except Exception as error:
                _check_open(connection, error)
                job.fail(sqlite_files.translate_sqlite_error(error, display))
                raw.execute("ROLLBACK TO job")
            raw.execute("RELEASE job")
        _end(transaction)


def _check_open(connection: Connection, error: Exception) -> None:
    raw: Any = connection.connection.dbapi_connection
    if not raw.in_transaction:
        raise RolledBack(error) from error


def _end(transaction: Transaction) -> None:
    try:
        transaction.commit()
    except Exception as error:
        raise CommitFailed(error) from error


def deliver(batch: list[Job]) -> None:
    for loop in {job.loop for job in batch}:
        # The loop may have ended while the job waited; then there is no one to tell.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve_futures, [job for job in batch if job.loop is loop])


def _resolve_futures(batch: list[Job]) -> None:
    for job in batch:
        if job.future.done():
            continue
        if job.failed:
            job.future.set_exception(job.outcome)
        else:
            job.future.set_result(job.outcome)


# Reads of a SQLite file, without a trace beside it where that is wanted.

T = TypeVar("T")


class ReadOnlyFile:
    """Reads of one thread.

    With `no_trace`, a file that is not open elsewhere is read as if it could not change, since any other way SQLite
    makes two files beside it. Whether it changed after all is checked after each read, which is then done again the
    ordinary way.
    """

    def __init__(self, file: SqliteFile, *, no_trace: bool) -> None:
        self._file = file
        self._no_trace = no_trace
        self._connection: Connection | None = None
        self._stamp: tuple[int, ...] | None = None

    def run(self, query: Callable[[Connection], T]) -> T:
        if self._no_trace and self._stamp is not None and self._stamp != _read_stamp(self._file):
            self.close()
        connection = self._connection
        if connection is None:
            connection = self._connection = self._open()
        try:
            result = _query_leniently(query, connection)
        except BaseException:
            if self._still_current():
                raise
        else:
            if self._still_current():
                return result
        # Once, and the ordinary way: another process has the file open now.
        self.close()
        self._no_trace = False
        return self.run(query)

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
            self._connection.engine.dispose()
            self._connection = None

    def _open(self) -> Connection:
        self._stamp = _read_stamp(self._file) if self._no_trace else None
        mode: sqlite_files.Mode = "ro" if self._stamp is None else "immutable"
        return sqlite_files.make_engine(self._file, mode, begin="BEGIN").connect()

    def _still_current(self) -> bool:
        return self._stamp is None or self._stamp == _read_stamp(self._file)


def _query_leniently(query: Callable[[Connection], T], connection: Connection) -> T:
    """Run a query; text that was damaged so that it is no UTF-8 any more comes with U+FFFD in it."""
    try:
        with connection.begin():
            return query(connection)
    except (OperationalError, sqlite3.OperationalError) as error:
        if "Could not decode to UTF-8" not in str(error):
            raise
    raw: Any = connection.connection.dbapi_connection
    # Slower, so not from the start.
    raw.text_factory = lambda data: data.decode(errors="replace")
    with connection.begin():
        return query(connection)


def _read_stamp(file: SqliteFile) -> tuple[int, ...] | None:
    """Values that change when the file does; None while a process may be writing to it."""
    for suffix in ("-wal", "-journal"):
        with contextlib.suppress(OSError):
            if os.stat(f"{file.path}{suffix}").st_size:
                return None
    try:
        found = os.stat(file.path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


_MAX_BATCH = 128
_READERS = 2
_SNAPSHOT_READERS = 2
# Of `write_each`: what is to be written meanwhile waits for no more.
_ITEMS_AT_ONCE = 16
# Of the virtual machine that runs statements: about a millisecond.
_STEPS_BETWEEN_LOOKS = 20_000


class SqliteDatabase:
    """A SQLite file as a Database. Threads and connections are made when first needed."""

    def __init__(
        self,
        file: SqliteFile,
        *,
        read_only: bool = False,
        max_waiting: int = 1000,
        busy_seconds: float = sqlite_files.BUSY_SECONDS,
    ) -> None:
        self._file = file
        self._max_waiting = max_waiting
        self._busy_seconds = busy_seconds
        self._read_only = read_only
        self._jobs: queue.SimpleQueue[Job | Literal["look"] | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="swarmkeep-read")
        # Of their own, because other reads are not to wait for those that take their time.
        self._snapshot_readers = ThreadPoolExecutor(_SNAPSHOT_READERS, thread_name_prefix="swarmkeep-snapshot")
        self._local = threading.local()
        self._readable: list[ReadOnlyFile] = []
        self._display = file.display
        self._files = sqlite_files.OpenFiles(file)
        self._closed = False
        self._has_failed = False
        self._trial: asyncio.Task[None] | None = None

    async def read(self, query: Callable[[Connection], T], *, seconds: float | None = None) -> T:
        self._check_open()
        if seconds is not None:
            query = partial(_query_in_time, query, seconds)
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, query)

    async def read_at_one_moment(self, query: Callable[[Connection], T]) -> T:
        return await self.read(query)

    async def read_snapshot(self, query: Callable[[Connection], T]) -> T:
        # Any read is one transaction, and so sees one moment.
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._snapshot_readers, self._read, query)

    async def write(self, job: Callable[[Connection], T], *, erases: bool = False) -> T:
        self._check_open()
        if self._read_only:
            raise StoreUnavailable(f"the database at {self._display} is open read-only")
        if self._jobs.qsize() >= self._max_waiting:
            raise Overloaded
        if self._writer is None:
            # A daemon, so that a program which forgets to close can still end; what it waits for is done by then.
            self._writer = threading.Thread(target=self._run_writer, name="swarmkeep-write", daemon=True)
            self._writer.start()
        waiting = Job(job, erases)
        self._jobs.put(waiting)
        try:
            result: T = await waiting.future
        except StoreUnavailable:
            self._has_failed = True
            raise
        return result

    async def write_each(
        self,
        job: Callable[[Connection, Sequence[T]], None],
        items: Sequence[T],
        *,
        render: Callable[[T], Render | None],
    ) -> Sequence[Exception | None]:
        errors: list[Exception | None] = []
        for start in range(0, len(items), _ITEMS_AT_ONCE):
            errors += await self._write_items(job, items[start : start + _ITEMS_AT_ONCE])
        return errors

    async def _write_items(
        self, job: Callable[[Connection, Sequence[T]], None], items: Sequence[T]
    ) -> list[Exception | None]:
        """Write a job for items at once; if it fails, nothing of it is done, and it is done for each by itself."""
        try:
            await self.write(lambda connection: job(connection, items))
        except Exception as error:
            if len(items) == 1 or isinstance(error, StoreUnavailable | OutcomeUnknown | Overloaded):
                return [error] * len(items)
            return [each for item in items for each in await self._write_items(job, [item])]
        return [None] * len(items)

    async def write_statement(self, render: Render) -> Rows:
        """Nothing is done: SQLite changes one table with a statement, and a job costs no round trips here."""
        return ()

    async def write_from_anywhere(self, job: Callable[[Connection], T]) -> T:
        # The thread that writes answers each caller in the loop that it came from.
        return await self.write(job)

    async def check_writable(self) -> None:
        # No server is begun on a file that it may only read.
        if self._has_failed and not self._read_only:
            # One for all who ask meanwhile: each takes room, which the others and the runs would miss.
            if self._trial is None:
                self._trial = asyncio.create_task(self._try_room())
            await asyncio.shield(self._trial)

    async def _try_room(self) -> None:
        try:
            await asyncio.to_thread(sqlite_files.check_room, self._file)
            await self.write(_try_to_write)
            self._has_failed = False
        finally:
            self._trial = None

    @property
    def waiting_writes(self) -> int:
        return self._jobs.qsize()

    def notify(self, key: SessionKey) -> None:
        """Nothing to do: SQLite has no notifications, so other processes poll."""

    async def listen(self, on_change: Callable[[SessionKey], None]) -> None:
        """Nothing, ever."""

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._finish)

    def _finish(self) -> None:
        self._readers.shutdown(wait=True)
        self._snapshot_readers.shutdown(wait=True, cancel_futures=True)
        for file in self._readable:
            file.close()
        # Last, because the last writing connection to close removes the write-ahead log.
        if self._writer is not None:
            self._jobs.put(None)
            self._writer.join()
        elif self._readable and not self._read_only:
            # Nothing was written, but those that read have made the log's files, and may not remove them.
            with contextlib.suppress(Exception):
                _discard(sqlite_files.connect(self._file, "rw", busy_seconds=self._busy_seconds))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")

    def _read(self, query: Callable[[Connection], T]) -> T:
        file: ReadOnlyFile | None = getattr(self._local, "file", None)
        if file is None:
            file = self._local.file = ReadOnlyFile(self._file, no_trace=self._read_only)
            self._readable.append(file)
        try:
            if not self._read_only:
                # A connection stays with the file that it was made to.
                (self._files.check if file.is_open else self._files.check_now)()
            return file.run(query)
        except sqlite_files.FilesChanged:
            if self._writer is not None:
                # A writer can still save what is in the log.
                self._jobs.put("look")
            raise
        except Exception as error:
            # It may be this connection that broke, so the next read makes another.
            file.close()
            sqlite_files.raise_store_error(error, self._file)

    def _run_writer(self) -> None:
        connection: Connection | None = None
        scrubber = sqlite_files.LogScrubber(self._display)
        erasers: list[Job] = []
        while (batch := self._take_batch(scrubber.wait_seconds)) is not None:
            connection = self._write_batch(connection, batch, scrubber)
            if erasing := [job for job in batch if job.erases]:
                scrubber.note_erased()
                batch = [job for job in batch if not job.erases]
                erasers += erasing
            # Regardless of the log, what is committed is committed. An eraser is told once that was tried.
            deliver(batch)
            if connection is not None:
                scrubber.scrub(connection)
            if erasers and (connection is None or not scrubber.is_waited_for):
                deliver(erasers)
                erasers = []
        if connection is not None:
            scrubber.scrub(connection, is_last=True)
            try:
                self._files.check_now()
            except sqlite_files.FilesChanged:
                self._files.save_log(connection)
            _discard(connection)
        deliver(erasers)

    def _write_batch(
        self, connection: Connection | None, batch: list[Job], scrubber: sqlite_files.LogScrubber
    ) -> Connection | None:
        """The connection to go on with; None after an error, which the jobs have then."""
        try:
            if connection is None:
                # One to a file that takes the first one's place would be kept, and be written to once that is back.
                self._files.check_now()
                connection = sqlite_files.connect(self._file, "rw", busy_seconds=self._busy_seconds)
            self._files.check()
            if batch:
                commit(connection, batch, self._display)
                self._files.note_written()
        except sqlite_files.FilesChanged as error:
            # The connection stays: it has open what a user may put back, or what is to be saved.
            if connection is not None:
                self._files.save_log(connection)
            for job in batch:
                job.fail(sqlite_files.FilesChanged(*error.args))
        except Exception as error:
            # A new error for each: a task that raises one adds its own traceback to it.
            for job in batch:
                job.fail(self._translate_error(error))
            # First: with its last connection SQLite deletes the log, and a reader would take it for lost.
            self._files.note_closed()
            if connection is not None:
                _discard(connection)
            scrubber.break_off()
            return None
        return connection

    def _take_batch(self, wait_seconds: float | None) -> list[Job] | None:
        """The jobs that wait, at least one unless none came in that time; None when it is time to stop."""
        try:
            first = self._jobs.get(timeout=wait_seconds)
        except queue.Empty:
            return []
        if first is None:
            return None
        batch = [] if first == "look" else [first]
        with contextlib.suppress(queue.Empty):
            while len(batch) < _MAX_BATCH:
                job = self._jobs.get_nowait()
                if job is None:
                    self._jobs.put(None)
                    break
                if job != "look":
                    batch.append(job)
        return batch

    def _translate_error(self, error: Exception) -> Exception:
        if isinstance(error, CommitFailed):
            return OutcomeUnknown(sqlite_files.describe_failed_commit(error.cause, self._display))
        cause = error.cause if isinstance(error, RolledBack) else error
        fault = sqlite_files.translate_sqlite_error(cause, self._display)
        if fault is cause and not isinstance(cause, StoreUnavailable):
            return StoreUnavailable(f"cannot write to the database at {self._display}: {cause}")
        return Overloaded(detail=str(fault)) if isinstance(fault, Overloaded) else type(fault)(*fault.args)


def _discard(connection: Connection) -> None:
    with contextlib.suppress(Exception):
        connection.close()
    connection.engine.dispose()


def _query_in_time(query: Callable[[Connection], T], seconds: float, connection: Connection) -> T:
    raw: Any = connection.connection.dbapi_connection
    deadline = time.monotonic() + seconds
    raw.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_LOOKS)
    try:
        return query(connection)
    finally:
        raw.set_progress_handler(None, 0)


def _try_to_write(connection: Connection) -> None:
    """Have a page written as it is: where there is nothing to write, SQLite would not notice that the disk is full."""
    raw: Any = connection.connection.dbapi_connection
    [version] = raw.execute("PRAGMA user_version").fetchone()
    raw.execute(f"PRAGMA user_version = {version}")
