"""Empties the write-ahead log after a write that erases, and merges the index of words: removed text would stay
readable there.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from typing import Any

from sqlalchemy import Connection

log = logging.getLogger(__name__)

# How long to leave between attempts to empty the write-ahead log while a reader still needs it, or the disk is full.
_RETRY_SECONDS = 0.5
# A large index takes its time to be merged: for each second so many without it.
_MERGE_REST = 20
# So many pages of it are merged in one write, so that others write in between.
_MERGE_PAGES = 20
# Whoever erases waits for the merge, but no longer.
_LONGEST_WAIT_SECONDS = 2.0
# Each merge of all parts adds levels to the index, and SQLite takes one with 2,000 of them for damaged.
_MOST_LEVELS = 1000
_LEVELS_ID = 10


class LogScrubber:
    """What is left to do for the write-ahead log of a file. A failed attempt changes nothing that was committed."""

    def __init__(self, display: str) -> None:
        self.is_due = False
        self.is_merging = False
        """Whether it goes on at once, as soon as those that wait have written."""
        self._display = display
        self._has_failed = False
        self._is_merge_due = False
        self._merge_again_at = 0.0
        self._merge_began_at = 0.0
        self._merge_seconds = 0.0

    @property
    def wait_seconds(self) -> float | None:
        """How long to wait for somebody who writes; None if there is nothing to do besides."""
        if self.is_merging:
            return 0.0
        return _RETRY_SECONDS if self.is_due else None

    @property
    def is_waited_for(self) -> bool:
        return self.is_merging and time.monotonic() - self._merge_began_at < _LONGEST_WAIT_SECONDS

    def scrub(self, connection: Connection, *, is_last: bool = False) -> None:
        """Do a part of the merge, or empty the log, if that is due; it stays due when a reader is in the way, or it
        fails, which is said once. The `last` time all is done."""
        if not self.is_due:
            return
        try:
            is_more = self._merge_some(connection, is_last)
            while is_last and (is_more or self._is_merge_due):
                is_more = self._merge_some(connection, is_last)
            if not self.is_merging:
                self.is_due = not truncate_log(connection) or self._is_merge_due
            self._has_failed = False
        except Exception as error:
            self.break_off()
            level = logging.DEBUG if self._has_failed else logging.WARNING
            self._has_failed = True
            text = "cannot empty the write-ahead log of the database at %s, which still has removed text: %s; "
            log.log(level, text + "trying again", self._display, error)

    def note_erased(self) -> None:
        """Something was erased, which is to leave no trace."""
        self.is_due = self._is_merge_due = True

    def break_off(self) -> None:
        """The connection failed: a merge that goes on is begun anew."""
        self._is_merge_due = self._is_merge_due or self.is_merging
        self.is_merging = False

    def _merge_some(self, connection: Connection, is_last: bool) -> bool:
        """Whether there is more of it."""
        began = time.monotonic()
        begins = not self.is_merging
        if begins:
            if not self._is_merge_due or (began < self._merge_again_at and not is_last):
                return False
            # What is erased from now on is for another merge.
            self._is_merge_due = False
            self._merge_began_at, self._merge_seconds = began, 0.0
        self.is_merging = True
        self.is_merging = _merge_words(connection.connection.dbapi_connection, begins)
        ended = time.monotonic()
        self._merge_seconds += ended - began
        if not self.is_merging:
            self._merge_again_at = ended + self._merge_seconds * _MERGE_REST
        return self.is_merging


def _merge_words(raw: Any, begins: bool) -> bool:
    """What was taken out of the index of words is only marked so, until all its parts are merged. True if some are
    left."""
    try:
        if begins and _count_levels(raw) >= _MOST_LEVELS:
            _rebuild_words(raw)
            return False
        before = raw.total_changes
        # A negative one has all parts that there are merged into one; others go on with that, and take in no more.
        pages = -_MERGE_PAGES if begins else _MERGE_PAGES
        raw.execute("INSERT INTO search_index (search_index, rank) VALUES ('merge', ?)", (pages,))
    except sqlite3.OperationalError as error:
        # A database of an earlier release has none.
        if "no such table" not in str(error):
            raise
        return False
    # One that found nothing to do counts as one change.
    return bool(raw.total_changes - before >= 2)


def _count_levels(raw: Any) -> int:
    """As FTS5 keeps it: behind four bytes, in sevens of bits, the highest first."""
    (block,) = raw.execute("SELECT block FROM search_index_data WHERE id = ?", (_LEVELS_ID,)).fetchone()
    levels = 0
    for byte in block[4:]:
        levels = levels << 7 | byte & 0x7F
        if byte < 0x80:
            break
    return levels


def _rebuild_words(raw: Any) -> None:
    """Make the index anew, in one write, from the words that it is of."""
    raw.execute("BEGIN IMMEDIATE")
    try:
        raw.execute("INSERT INTO search_index (search_index) VALUES ('delete-all')")
        raw.execute("INSERT INTO search_index (rowid, words) SELECT number, words FROM search")
        raw.execute("COMMIT")
    except BaseException:
        raw.execute("ROLLBACK")
        raise


def truncate_log(connection: Connection) -> bool:
    """Empty the write-ahead log. False if a reader is in the way."""
    raw: Any = connection.connection.dbapi_connection
    wait = raw.execute("PRAGMA busy_timeout").fetchone()[0]
    raw.execute("PRAGMA busy_timeout = 100")
    try:
        busy: int = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    finally:
        raw.execute(f"PRAGMA busy_timeout = {wait}")
    return busy == 0
