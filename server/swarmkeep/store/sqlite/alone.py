"""A SQLite file for one alone: who migrates it, or fills it from a backup."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Engine, inspect

from swarmkeep.store.revision import current_revision
from swarmkeep.store.sqlite.connections import Mode, make_engine
from swarmkeep.store.sqlite.errors import raise_store_error
from swarmkeep.store.urls import SqliteFile

_WAIT_SECONDS = 60.0


@contextlib.contextmanager
def open_alone(file: SqliteFile, mode: Mode) -> Iterator[Connection]:
    """A connection in a transaction that nobody else reads or writes beside. A file that was made for it goes again if
    it fails.

    Raises StoreUnavailable, and SchemaBehind for the file of another program.
    """
    is_new = mode == "rwc" and not file.path.exists()
    engine = make_engine(file, mode, begin="BEGIN EXCLUSIVE", busy_seconds=_WAIT_SECONDS)
    try:
        with engine.connect() as connection:
            with connection.begin():
                # The file of another program is refused before anything about it is changed.
                current_revision(connection)
            _use_wal(connection)
            with connection.begin():
                yield connection
    except BaseException as error:
        if is_new:
            with contextlib.suppress(Exception):
                _remove_empty(engine, file)
        if not isinstance(error, Exception):
            raise
        raise_store_error(error, file)
    finally:
        engine.dispose()


def _remove_empty(engine: Engine, file: SqliteFile) -> None:
    """Remove a file in which there is nothing; unless others have it open, who may be about to fill it."""
    with engine.connect() as connection:
        raw: Any = connection.connection.dbapi_connection
        # It goes with the files of its log, which otherwise stay without it.
        raw.execute("PRAGMA journal_mode = DELETE")
        with connection.begin():
            if not inspect(connection).get_table_names():
                file.path.unlink()


def _use_wal(connection: Connection) -> None:
    raw: Any = connection.connection.dbapi_connection
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            raw.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            # Two that change the mode at once get "database is locked" at once: no busy timeout applies to it.
            is_locked = error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
            if not is_locked or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
