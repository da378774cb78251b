"""Translates SQLite's errors into the store's."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NoReturn

from sqlalchemy.exc import DBAPIError

from swarmkeep.domain.errors import Overloaded
from swarmkeep.store.ports.errors import TOO_SLOW_DETAIL, StoreUnavailable, missing_schema_error
from swarmkeep.store.sqlite.writable import READ_ONLY_HINT
from swarmkeep.store.urls import SqliteFile

# Conditions of the file, the disk or another process; any other error of SQLite's is a mistake of ours and stays one.
_UNAVAILABLE = {
    "SQLITE_CANTOPEN", "SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_READONLY",
    "SQLITE_PERM", "SQLITE_AUTH", "SQLITE_PROTOCOL", "SQLITE_NOMEM", "SQLITE_NOLFS",
}  # fmt: skip
# What to do about those where somebody can do something.
_HINTS = {
    "SQLITE_FULL": "free some space on its disk",
    "SQLITE_IOERR": "its disk may be full, or failing",
    "SQLITE_READONLY": READ_ONLY_HINT,
    "SQLITE_CORRUPT": "restore it from a backup; `swarmkeep verify --all` says which sessions are intact",
    "SQLITE_NOTADB": "it is not a database; name one with --database-url",
}
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
    """Why a file cannot be opened, which SQLite does not say."""
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
    """What is said of a commit that SQLite broke off; nobody knows whether the file has it."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    hint = _make_hint(_find_class(cause))
    return f"the database at {display} failed during a commit: {cause}{hint}; check whether it was recorded"


def _find_class(cause: object) -> str:
    """`SQLITE_IOERR_FSYNC` and the like extend their class's name."""
    return "_".join(getattr(cause, "sqlite_errorname", "").split("_")[:2])


def _make_hint(name: str) -> str:
    return f"; {_HINTS[name]}" if name in _HINTS else ""
