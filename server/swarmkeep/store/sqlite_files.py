"""Empties the write-ahead log after a write that erases, and merges the index of words: removed text would stay
readable there.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NoReturn

from sqlalchemy import Connection, Engine, create_engine, event, inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from swarmkeep.events.errors import Overloaded
from swarmkeep.store.records import TOO_SLOW_DETAIL, UPGRADE_HINT, StoreUnavailable, missing_schema_error
from swarmkeep.store.tables import current_revision, mark_words
from swarmkeep.store.urls import SqliteFile

log = logging.getLogger(__name__)

# How long to leave between attempts to empty the write-ahead log while a reader still needs it, or the disk is full.
_RETRY_SECONDS = 0.5
# A large index takes its time to be merged: for each second so many without it.
_MERGE_REST = 20
# So many pages of it are merged in one write, so that others write in between.
_MERGE_PAGES = 20
# An eraser waits for the merge, but no longer.
_LONGEST_WAIT_SECONDS = 2.0
# Each merge of all parts adds levels to the index, and SQLite takes one with 2,000 of them for damaged.
_MOST_LEVELS = 1000
_LEVELS_ID = 10


class LogScrubber:
    """The work left to do for the write-ahead log of a file. A failed attempt changes nothing that was committed."""

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
        """The time to wait for another writer; None if there is nothing to do besides."""
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
        """The connection failed: a merge that goes on is begun again."""
        self._is_merge_due = self._is_merge_due or self.is_merging
        self.is_merging = False

    def _merge_some(self, connection: Connection, is_last: bool) -> bool:
        """Merge some of it; tell if there is more."""
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
    """Merge the parts of the index of words, until which its removals are only marked so. True if some are
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
    """Rebuild the index, in one write, from the words that it is of."""
    raw.execute("BEGIN IMMEDIATE")
    try:
        raw.execute("INSERT INTO search_index (search_index) VALUES ('delete-all')")
        raw.execute(f"INSERT INTO search_index (rowid, words) SELECT number, {mark_words('words')} FROM search")
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


# The files that were opened: they may be replaced or removed while a server uses them.

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


# Files that can be neither written nor made: SQLite says so only when it is tried, or not at all.

READ_ONLY_HINT = "make it and its folder writable, or name another database with --database-url"


def refuse_read_only(file: SqliteFile) -> None:
    """Raises StoreUnavailable for a file, or a folder, that this process may not write to."""
    for path in (file.path, file.path.parent):
        if path.exists() and not _is_writable(path):
            raise StoreUnavailable(f"the database at {file.display} is read-only: {READ_ONLY_HINT}")


def refuse_orphaned_log(file: SqliteFile) -> None:
    """Raises StoreUnavailable if the log of a database is there without its file: SQLite would delete it."""
    log = file.path.with_name(f"{file.path.name}-wal")
    if not file.path.exists() and log.exists() and log.stat().st_size:
        raise StoreUnavailable(
            f"the file of the database at {file.display} is missing, and {log.name} beside it holds what was committed "
            "last: put the file back, or move the log away to begin with an empty database"
        )


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


# SQLite's errors as the store's.

# Conditions of the file, the disk or another process; any other error of SQLite's is a mistake of ours and stays one.
_UNAVAILABLE = {
    "SQLITE_CANTOPEN", "SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_READONLY",
    "SQLITE_PERM", "SQLITE_AUTH", "SQLITE_PROTOCOL", "SQLITE_NOMEM", "SQLITE_NOLFS",
}  # fmt: skip
# Remedies for those that have one.
_HINTS = {
    "SQLITE_FULL": "free some space on its disk",
    "SQLITE_IOERR": "its disk may be full, or failing",
    "SQLITE_READONLY": READ_ONLY_HINT,
    "SQLITE_CORRUPT": "restore it from a backup; `swarmkeep verify --all` says which sessions are intact",
    "SQLITE_NOTADB": "it is not a database; name one with --database-url",
}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ROOM_BYTES = 1_000_000
# There is one writer in each process.
HELD_DETAIL = "another program holds the database file; try again once it has ended"
_BUSY = {"SQLITE_BUSY", "SQLITE_LOCKED"}


def raise_store_error(error: Exception, file: SqliteFile) -> NoReturn:
    """Raise SQLite's error as the store's; from within `except`."""
    fault = translate_sqlite_error(error, file.display)
    if fault is error:
        raise error
    if "unable to open" in str(fault) or file.path.is_dir():
        fault = StoreUnavailable(f"cannot open the database at {file.display}: {_explain_unopenable(file.path)}")
    raise fault from error


def _explain_unopenable(path: Path) -> str:
    """Explain why a file cannot be opened, which SQLite does not say."""
    if path.is_dir():
        return "it is a folder; give the path of a file"
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist; make it first"
    if not path.exists():
        return f"cannot create a file in {path.parent}: permission denied"
    return "the file, or one next to it, cannot be opened: check its permissions"


def translate_sqlite_error(error: Exception, display: str) -> Exception:
    """The store's error for one of SQLite's; anything else as it is."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if not isinstance(cause, sqlite3.Error):
        return error
    name = _find_class(cause)
    if name in _BUSY:
        return Overloaded(detail=HELD_DETAIL)
    if name == "SQLITE_INTERRUPT":
        return Overloaded(detail=TOO_SLOW_DETAIL)
    if "no such table" in str(cause) or "no such column" in str(cause):
        return missing_schema_error(display)
    if name not in _UNAVAILABLE:
        return error
    return StoreUnavailable(f"cannot use the database at {display}: {cause}{_make_hint(name)}")


def describe_failed_commit(error: Exception, display: str) -> str:
    """Describe a commit that SQLite broke off; it is unknown whether the file has it."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    hint = _make_hint(_find_class(cause))
    return f"the database at {display} failed during a commit: {cause}{hint}; check whether it was recorded"


def check_room(file: SqliteFile) -> None:
    """Raises StoreUnavailable where the disk has no room for what a turn writes.

    A page or two may still find some in the write-ahead log, which keeps what failed writes have taken.
    """
    try:
        with tempfile.TemporaryFile(dir=file.path.parent) as trial:
            trial.write(os.urandom(_ROOM_BYTES))
            trial.flush()
    except OSError as error:
        if error.errno in _NO_ROOM:
            why = f"{error.strerror}{_make_hint('SQLITE_FULL')}"
            raise StoreUnavailable(f"cannot use the database at {file.display}: {why}") from None


def _find_class(cause: object) -> str:
    """`SQLITE_IOERR_FSYNC` and the like extend their class's name."""
    return "_".join(getattr(cause, "sqlite_errorname", "").split("_")[:2])


def _make_hint(name: str) -> str:
    return f"; {_HINTS[name]}" if name in _HINTS else ""


# A SQLite file is for its owner alone: it holds every conversation in plain text.

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def create_private_file(path: Path) -> None:
    """Make the file, for its owner alone, if there is none; SQLite gives the files beside it the same mode."""
    # What keeps it from being made is said when it is opened.
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def find_exposed_files(path: Path) -> list[Path]:
    """The database's files that other users of this machine may read or write."""
    if os.name != "posix":
        return []
    beside = [path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))]
    return [file for file in beside if file.exists() and file.stat().st_mode & _OTHERS]


def describe_exposure(files: list[Path]) -> str:
    names = ", ".join(map(str, files))
    return f"other users of this machine may read or change {names}; chmod 600 prevents this"


# Connections to a SQLite file.

Mode = Literal["rw", "rwc", "ro", "immutable"]

BUSY_SECONDS = 10.0


def make_engine(file: SqliteFile, mode: Mode, *, begin: str, busy_seconds: float = BUSY_SECONDS) -> Engine:
    """An engine with one connection, used by one thread at a time. `begin` starts its transactions.

    A lock that another process holds is waited for `busy_seconds`.
    """

    def open_file() -> sqlite3.Connection:
        refuse_orphaned_log(file)
        if mode != "rwc" and not file.path.exists():
            raise StoreUnavailable(f"no database at {file.display}; to create it, {UPGRADE_HINT}")
        if mode == "rwc":
            create_private_file(file.path)
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

    # Texts of sessions are not for the server's log.
    engine = create_engine(
        "sqlite://",
        creator=open_file,
        poolclass=StaticPool,
        hide_parameters=True,
        execution_options={"keyring": file.keyring},
    )

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        # A plain BEGIN that reads and then writes fails at once with "database is locked", for any busy timeout
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


# A SQLite file with one user alone: a migration, or a restore.

_WAIT_SECONDS = 60.0


@contextlib.contextmanager
def open_alone(file: SqliteFile, mode: Mode) -> Iterator[Connection]:
    """Open a connection in a transaction with no other readers or writers. A file that was made for it goes again if
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
