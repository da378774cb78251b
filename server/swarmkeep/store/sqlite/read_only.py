"""Reads a SQLite file, without leaving a trace beside it where that is wanted."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from swarmkeep.store.sqlite.connections import Mode, make_engine
from swarmkeep.store.urls import SqliteFile

T = TypeVar("T")


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
        mode: Mode = "ro" if self._stamp is None else "immutable"
        return make_engine(self._file, mode, begin="BEGIN").connect()

    def _still_current(self) -> bool:
        return self._stamp is None or self._stamp == _read_stamp(self._file)


def _query_leniently(query: Callable[[Connection], T], connection: Connection) -> T:
    """Run a query; text that somebody damaged so that it is no UTF-8 any more comes with U+FFFD in it."""
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
