"""Translates a database's own errors into the store's."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from swarmkeep.domain.errors import Overloaded
from swarmkeep.store.ports import SchemaBehind, StoreUnavailable

UPGRADE_HINT = "run `swarmkeep db upgrade`"

# Conditions of the file, the disk or another process; any other error of SQLite's is a mistake of ours and stays one.
_SQLITE_UNAVAILABLE = {
    "SQLITE_CANTOPEN", "SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_READONLY",
    "SQLITE_PERM", "SQLITE_AUTH", "SQLITE_PROTOCOL", "SQLITE_NOMEM", "SQLITE_NOLFS",
}  # fmt: skip
_SQLITE_BUSY = {"SQLITE_BUSY", "SQLITE_LOCKED"}

# Classes of SQLSTATE: connection, authorization, resources, operator's intervention, system error.
_POSTGRES_UNAVAILABLE = {"08", "28", "3D", "53", "57", "58", "25"}
_POSTGRES_NO_SCHEMA = {"42P01", "42703", "3F000"}
_POSTGRES_BUSY = {"40001", "40P01", "55P03"}


def missing_schema_error(display: str) -> SchemaBehind:
    return SchemaBehind(f"the database at {display} does not have this release's schema; {UPGRADE_HINT}")


def translate_sqlite_error(error: Exception, display: str) -> Exception:
    """The store's error for one of SQLite's; anything else as it is."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if not isinstance(cause, sqlite3.Error):
        return error
    # "SQLITE_IOERR_FSYNC" and the like extend their class's name.
    name = "_".join(getattr(cause, "sqlite_errorname", "").split("_")[:2])
    if name in _SQLITE_BUSY:
        return Overloaded()
    if "no such table" in str(cause) or "no such column" in str(cause):
        return missing_schema_error(display)
    return StoreUnavailable(f"cannot use the database at {display}: {cause}") if name in _SQLITE_UNAVAILABLE else error


def translate_postgres_error(error: Exception, display: str) -> Exception:
    """The store's error for one of PostgreSQL's; anything else as it is."""
    if isinstance(error, PoolTimeout):
        return Overloaded()
    if not isinstance(error, DBAPIError):
        return StoreUnavailable(f"cannot use the database at {display}: {error}") if _is_network_error(error) else error
    state = getattr(error.orig, "sqlstate", None) or ""
    if state in _POSTGRES_NO_SCHEMA:
        return missing_schema_error(display)
    if state in _POSTGRES_BUSY:
        return Overloaded()
    if error.connection_invalidated or state[:2] in _POSTGRES_UNAVAILABLE:
        return StoreUnavailable(f"cannot use the database at {display}: {error.orig}")
    return error


def is_connection_lost(error: Exception) -> bool:
    """Whether the connection broke, rather than what was asked of it."""
    return _is_network_error(error) or (isinstance(error, DBAPIError) and error.connection_invalidated)


def _is_network_error(error: Exception) -> bool:
    return isinstance(error, OSError | TimeoutError | EOFError)
