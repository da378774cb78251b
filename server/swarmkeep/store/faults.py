"""A database's own errors, in the store's words."""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from swarmkeep.domain.errors import Overloaded
from swarmkeep.store.port import SchemaBehind, StoreUnavailable

UPGRADE = "run `swarmkeep db upgrade`"

# Conditions of the file, the disk or another process; any other error of SQLite's is a mistake of ours and stays one.
_SQLITE = {
    "SQLITE_CANTOPEN", "SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_READONLY",
    "SQLITE_PERM", "SQLITE_AUTH", "SQLITE_PROTOCOL", "SQLITE_NOMEM", "SQLITE_NOLFS",
}  # fmt: skip
_BUSY = {"SQLITE_BUSY", "SQLITE_LOCKED"}

# Classes of SQLSTATE: connection, authorization, resources, operator's intervention, system error.
_POSTGRES = {"08", "28", "3D", "53", "57", "58", "25"}
_NO_SUCH_TABLE = {"42P01", "42703", "3F000"}
_ABORTED = {"40001", "40P01", "55P03"}


def missing_schema(display: str) -> SchemaBehind:
    return SchemaBehind(f"the database at {display} has not the schema of this release; {UPGRADE}")


def of_sqlite(error: Exception, display: str) -> Exception:
    """The store's error for one of SQLite's; anything else as it is."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if not isinstance(cause, sqlite3.Error):
        return error
    # "SQLITE_IOERR_FSYNC" and the like extend their class's name.
    name = "_".join(getattr(cause, "sqlite_errorname", "").split("_")[:2])
    if name in _BUSY:
        return Overloaded()
    if "no such table" in str(cause) or "no such column" in str(cause):
        return missing_schema(display)
    return StoreUnavailable(f"cannot use the database at {display}: {cause}") if name in _SQLITE else error


def of_postgres(error: Exception, display: str) -> Exception:
    """The store's error for one of PostgreSQL's; anything else as it is."""
    if isinstance(error, PoolTimeout):
        return Overloaded()
    if not isinstance(error, DBAPIError):
        return StoreUnavailable(f"cannot use the database at {display}: {error}") if _is_network(error) else error
    state = getattr(error.orig, "sqlstate", None) or ""
    if state in _NO_SUCH_TABLE:
        return missing_schema(display)
    if state in _ABORTED:
        return Overloaded()
    if error.connection_invalidated or state[:2] in _POSTGRES:
        return StoreUnavailable(f"cannot use the database at {display}: {error.orig}")
    return error


def lost_connection(error: Exception) -> bool:
    """Whether the connection broke, rather than what was asked of it."""
    return _is_network(error) or (isinstance(error, DBAPIError) and error.connection_invalidated)


def _is_network(error: Exception) -> bool:
    return isinstance(error, OSError | TimeoutError | EOFError)
