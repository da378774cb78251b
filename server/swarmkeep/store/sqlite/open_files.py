"""Whether a database's files are still those that were opened.

SQLite goes on with files that somebody has deleted, moved or replaced: it reads and writes what has no name any more,
and is gone for good when the process ends.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from typing import Any

from sqlalchemy import Connection

from swarmkeep.store.ports.errors import StoreUnavailable
from swarmkeep.store.sqlite.scrubbing import truncate_log
from swarmkeep.store.urls import SqliteFile

_Identity = tuple[int, int]
# Each look makes a busy server's threads wait for one another; of several commits within this time, one looks.
_PAUSE_SECONDS = 0.05


class FilesChanged(StoreUnavailable):
    """The files are others than those that were opened, or none. The connections that have them open are in order."""


class OpenFiles:
    """The files of a database that a process has open, known by what they are rather than by their names.

    `has_lost_log`: connections that have different logs, or indexes of it, would damage the database, so this is for
    good.
    """

    def __init__(self, file: SqliteFile) -> None:
        self._path = str(file.path)
        self._log_path, self._index_path = f"{file.path}-wal", f"{file.path}-shm"
        self._database: _Identity | None = None
        self._log: _Identity | None = None
        self._index: _Identity | None = None
        # Else a log could be closed, and so deleted, while another thread looks whether it is there.
        self._log_lock = threading.Lock()
        self._next_look = 0.0
        self.has_lost_log = False

    def check(self) -> None:
        """Before each use; the first one says which file it is.

        Raises FilesChanged: for the database until it is back, for its log for good.
        """
        if time.monotonic() >= self._next_look:
            self.check_now()

    def check_now(self) -> None:
        """`check`, however short ago the last one was: before a connection is made that would stay with its file."""
        now = time.monotonic()
        # Once they are others, each use looks.
        self._next_look = 0.0
        self._check_database()
        self._check_log()
        self._next_look = now + _PAUSE_SECONDS

    def _check_database(self) -> None:
        found = _identify(self._path)
        self._database = self._database or found
        if self._database is not None and found is None:
            raise FilesChanged(
                f"the database's file {self._path} was deleted or moved while the server had it open; put it back, "
                "or restart the server without what it holds"
            )
        if found != self._database:
            raise FilesChanged(
                f"the database's file {self._path} was replaced while the server had it open; put the first one "
                "back, or restart the server with this one"
            )

    def _check_log(self) -> None:
        with self._log_lock:
            self.has_lost_log |= self._log is not None and (
                _identify(self._log_path) != self._log or _identify(self._index_path) != self._index
            )
        if self.has_lost_log:
            raise FilesChanged(
                f"the write-ahead log {self._log_path}, or its index {self._index_path}, was deleted or replaced while "
                "the server had it open; restart the server, which has written to the database what was in it"
            )

    def note_written(self) -> None:
        """The connection that writes has committed, so there is a log; it stays as long as that connection is open."""
        if self._log is None:
            self._index, self._log = _identify(self._index_path), _identify(self._log_path)

    def note_closed(self) -> None:
        """The connection that writes is about to be closed: the next one may make another log."""
        with self._log_lock:
            self._log = None

    def save_log(self, connection: Connection) -> None:
        """Write to the database, wherever it is now, what is in the log that the connection has open.

        The log of a database that was moved is emptied, too: it has the name of that of the file in its place, which
        SQLite would damage with it. What fails is left for the next call.
        """
        raw: Any = connection.connection.dbapi_connection
        with contextlib.suppress(sqlite3.Error):
            if self._log is not None and not self.has_lost_log and _identify(self._log_path) == self._log:
                truncate_log(connection)
            else:
                # Others may have another log by now, whose index this one shares.
                raw.execute("PRAGMA wal_checkpoint(PASSIVE)")


def _identify(path: str) -> _Identity | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
