"""Connections to a SQLite file, and reading one without leaving a trace beside it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import StaticPool

from swarmkeep.store.driver_errors import UPGRADE_HINT, translate_sqlite_error
from swarmkeep.store.ports import StoreUnavailable
from swarmkeep.store.urls import SqliteFile

T = TypeVar("T")
Mode = Literal["rw", "rwc", "ro", "immutable"]

BUSY_SECONDS = 10.0


def make_engine(file: SqliteFile, mode: Mode, *, begin: str, busy_seconds: float = BUSY_SECONDS) -> Engine:
    """An engine with one connection, used by one thread at a time. `begin` starts its transactions.

    A lock that another process holds is waited for `busy_seconds`.
    """

    def open_file() -> sqlite3.Connection:
        if mode != "rwc" and not file.path.exists():
            raise StoreUnavailable(f"no database at {file.display}; to create it, {UPGRADE_HINT}")
        query = "mode=ro&immutable=1" if mode == "immutable" else f"mode={mode}"
        # Without an isolation level the driver begins no transactions by itself, so that `begin` can.
        raw = sqlite3.connect(
            f"{file.path.as_uri()}?{query}",
            uri=True,
            timeout=busy_seconds,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            _configure(raw, mode)
        except BaseException:
            raw.close()
            raise
        return raw

    engine = create_engine("sqlite://", creator=open_file, poolclass=StaticPool)

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        # A plain BEGIN that reads and then writes fails at once with "database is locked", whatever the busy timeout
        # says, because its snapshot is stale. Taking the write lock first makes it wait instead.
        raw: Any = connection.connection.dbapi_connection
        raw.execute(begin)

    return engine


def _configure(raw: sqlite3.Connection, mode: Mode) -> None:
    if mode in ("ro", "immutable"):
        raw.execute("PRAGMA query_only = ON")
        return
    # NORMAL could lose commits when the power fails; group commit makes FULL affordable.
    raw.execute("PRAGMA synchronous = FULL")
    # What is deleted is overwritten, not only unlinked.
    raw.execute("PRAGMA secure_delete = ON")
    # A write-ahead log that one large transaction made large does not stay so.
    raw.execute("PRAGMA journal_size_limit = 67108864")
    if mode == "rw":
        raw.execute("PRAGMA journal_mode = WAL")


def connect(file: SqliteFile, mode: Mode, *, busy_seconds: float = BUSY_SECONDS) -> Connection:
    return make_engine(file, mode, begin="BEGIN IMMEDIATE", busy_seconds=busy_seconds).connect()


def raise_store_error(error: Exception, file: SqliteFile) -> NoReturn:
    """Raise SQLite's error as the store's; from within `except`."""
    fault = translate_sqlite_error(error, file.display)
    if fault is error:
        raise error
    if "unable to open" in str(fault) or file.path.is_dir():
        fault = StoreUnavailable(f"cannot open the database at {file.display}: {_explain_unopenable(file.path)}")
    raise fault from error


def _explain_unopenable(path: Path) -> str:
    """Why a file cannot be opened, which SQLite does not say."""
    if path.is_dir():
        return "it is a folder; give the path of a file"
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    if not path.exists():
        return f"cannot create a file in {path.parent}: permission denied"
    return "the file, or one next to it, cannot be opened: check its permissions"


class ReadOnlyFile:
    """Reads of one thread.

    With `no_trace`, a file that nobody has open is read as if it could not change, since any other way SQLite makes
    two files beside it. Whether it changed after all is checked after each read, which is then done again the
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
        # Once, and the ordinary way: somebody has the file open now.
        self.close()
        self._no_trace = False
        return self.run(query)

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
            self._connection.engine.dispose()
            self._connection = None

    def _open(self) -> Connection:
        self._stamp = _read_stamp(self._file) if self._no_trace else None
        mode: Mode = "ro" if self._stamp is None else "immutable"
        return make_engine(self._file, mode, begin="BEGIN").connect()

    def _still_current(self) -> bool:
        return self._stamp is None or self._stamp == _read_stamp(self._file)


def _query_leniently(query: Callable[[Connection], T], connection: Connection) -> T:
    """Run a query; text that somebody damaged so that it is no UTF-8 any more comes with U+FFFD in it."""
    try:
        with connection.begin():
            return query(connection)
    except OperationalError as error:
        if "Could not decode to UTF-8" not in str(error):
            raise
    raw: Any = connection.connection.dbapi_connection
    # Slower, so not from the start.
    raw.text_factory = lambda data: data.decode(errors="replace")
    with connection.begin():
        return query(connection)


def _read_stamp(file: SqliteFile) -> tuple[int, ...] | None:
    """Values that change when the file does; None while somebody may be writing to it."""
    for suffix in ("-wal", "-journal"):
        with contextlib.suppress(OSError):
            if os.stat(f"{file.path}{suffix}").st_size:
                return None
    try:
        found = os.stat(file.path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
