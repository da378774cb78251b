"""Jobs that wait to be written, and the transaction that several of them share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Transaction

from swarmkeep.store.sqlite.errors import translate_sqlite_error


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
                    job.fail(translate_sqlite_error(error, display))
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
                job.fail(translate_sqlite_error(error, display))
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
    loops = {job.loop for job in batch}
    for loop in loops:
        # The loop may have ended while the job waited; then there is nobody to tell.
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
