"""Empties the write-ahead log after a write that erases: removed text would stay readable there."""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import Connection

log = logging.getLogger(__name__)

# How long to leave between attempts to empty the write-ahead log while a reader still needs it, or the disk is full.
RETRY_SECONDS = 0.5


class LogScrubber:
    """What is left to do for the write-ahead log of a file. A failed attempt changes nothing that was committed."""

    def __init__(self, display: str) -> None:
        self.is_due = False
        self._display = display
        self._has_failed = False

    def scrub(self, connection: Connection) -> None:
        """Empty the log, if that is due; it stays due when a reader is in the way, or it fails, which is said once."""
        if not self.is_due:
            return
        try:
            self.is_due = not _truncate_log(connection)
            self._has_failed = False
        except Exception as error:
            level = logging.DEBUG if self._has_failed else logging.WARNING
            self._has_failed = True
            text = "cannot empty the write-ahead log of the database at %s, so removed text is still in it: %s; "
            log.log(level, text + "trying again", self._display, error)


def _truncate_log(connection: Connection) -> bool:
    """Empty the write-ahead log. False if a reader is in the way."""
    raw: Any = connection.connection.dbapi_connection
    wait = raw.execute("PRAGMA busy_timeout").fetchone()[0]
    raw.execute("PRAGMA busy_timeout = 100")
    try:
        busy: int = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    finally:
        raw.execute(f"PRAGMA busy_timeout = {wait}")
    return busy == 0
