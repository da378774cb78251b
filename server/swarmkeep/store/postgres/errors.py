"""Translates PostgreSQL's errors into the store's."""

from __future__ import annotations

from typing import NoReturn

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from swarmkeep.domain.errors import Overloaded
from swarmkeep.store.ports.errors import TOO_SLOW_DETAIL, StoreUnavailable, missing_schema_error
from swarmkeep.store.urls import PostgresServer

# Classes of SQLSTATE: connection, authorization, resources, operator's intervention, system error.
_UNAVAILABLE = {"08", "28", "3D", "53", "57", "58", "25"}
_NO_SCHEMA = {"42P01", "42703", "3F000"}
_READ_ONLY = "25006"
_FORBIDDEN = "42501"
_TOO_SLOW = "57014"
_LOCKED_OUT = "55P03"
_BUSY = {"40001", "40P01", _LOCKED_OUT}
# Another transaction was there first, with the same key or the same row.
_OVERTAKEN = {"23505", "40001", "40P01"}
# The server ends the connection with these.
_ENDING = {"57P01", "57P02", "57P03", "57P05", "25P03"}


def raise_store_error(error: Exception, server: PostgresServer) -> NoReturn:
    """Raise PostgreSQL's error as the store's; from within `except`."""
    fault = translate_postgres_error(error, server.display)
    if fault is error:
        raise error
    raise fault from error


def translate_postgres_error(error: Exception, display: str) -> Exception:
    """The store's error for one of PostgreSQL's; anything else as it is."""
    if isinstance(error, PoolTimeout):
        return Overloaded(detail="all connections to the database are in use, or it does not answer; try again")
    if _is_network_error(error):
        return StoreUnavailable(f"cannot use the database at {display}: {error}")
    state = _get_state(error)
    if state in _NO_SCHEMA:
        return missing_schema_error(display)
    if state in _BUSY:
        return Overloaded()
    if state == _FORBIDDEN:
        cause = error.orig if isinstance(error, DBAPIError) else error
        return StoreUnavailable(
            f"cannot use the database at {display}: {cause}; use the role that owns the tables, or "
            "give this one the rights that it lacks; `swarmkeep doctor` names them"
        )
    if state == _TOO_SLOW:
        return Overloaded(detail=TOO_SLOW_DETAIL)
    if is_connection_lost(error) or state[:2] in _UNAVAILABLE:
        cause = error.orig if isinstance(error, DBAPIError) else error
        return StoreUnavailable(f"cannot use the database at {display}: {cause}")
    return error


def is_connection_lost(error: Exception) -> bool:
    """Whether the connection broke, rather than what was asked of it."""
    return _is_network_error(error) or (isinstance(error, DBAPIError) and error.connection_invalidated)


def is_server_read_only(error: Exception) -> bool:
    """Whether the connection leads to a server that takes no writes, as one does that was the primary before."""
    return _get_state(error) == _READ_ONLY


def is_overtaken(error: Exception) -> bool:
    """Whether a statement was undone because another transaction was quicker."""
    return _get_state(error) in _OVERTAKEN


def is_locked_out(error: Exception) -> bool:
    """Whether somebody else kept what was asked for locked, for longer than anybody should."""
    return _get_state(error) == _LOCKED_OUT


def is_out_of_time(error: Exception) -> bool:
    """Whether the driver gave up: behind a pooler, which takes no settings, nothing else ends the wait for a lock."""
    # Who got no connection waited for no lock, and gets none to look for one.
    is_connected = not isinstance(error, StoreUnavailable)
    return is_connected and (isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError))


def breaks_connection(error: Exception) -> bool:
    """Whether the driver's error, of a statement, says that there is nobody at the other end any more."""
    state = _get_state(error)
    return _is_network_error(error) or state[:2] == "08" or state in _ENDING


def _get_state(error: Exception) -> str:
    """The SQLSTATE of an error of the driver's, be it wrapped or not; empty for any other."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlstate", None) or ""


def _is_network_error(error: Exception) -> bool:
    return isinstance(error, OSError | TimeoutError | EOFError)
