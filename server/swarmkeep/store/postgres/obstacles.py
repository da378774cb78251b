"""What in a PostgreSQL database, or in the role that a server has there, will be in its way: said before it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, text

from swarmkeep.store.ports.errors import StoreUnavailable

# SQL_ASCII converts nothing: it gives back the bytes that it was given, which are UTF-8.
_FIT_ENCODINGS = ("UTF8", "SQL_ASCII")
# The pool, two for checks of whole sessions, and the one that listens.
CONNECTIONS = 11
# A commit under load, and a page of a large list, take a part of that.
_SHORTEST_STATEMENT_MS = 5_000

_CONDITIONS = text("""
SELECT current_setting('server_encoding') AS encoding,
    current_setting('transaction_read_only') = 'on' OR pg_is_in_recovery() AS is_read_only,
    (SELECT reset_val::bigint FROM pg_settings WHERE name = 'statement_timeout') AS statement_ms,
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int AS connections,
    (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user) AS role_connections,
    current_user AS role,
    ARRAY(
        SELECT name FROM unnest(CAST(:names AS text[])) AS name, to_regclass(quote_ident(name)) AS found
        WHERE found IS NOT NULL AND NOT (
            has_table_privilege(found, 'SELECT') AND has_table_privilege(found, 'INSERT')
            AND has_table_privilege(found, 'UPDATE') AND has_table_privilege(found, 'DELETE'))
        ORDER BY name
    ) AS forbidden,
    ARRAY(
        SELECT name FROM unnest(CAST(:names AS text[])) AS name, to_regclass(quote_ident(name)) AS found
        WHERE found IS NOT NULL AND row_security_active(found::oid) ORDER BY name
    ) AS filtered
""")


class Obstacle(NamedTuple):
    """With one `is_fatal`, some requests can only fail."""

    is_fatal: bool
    description: str


def find_obstacles(connection: Connection, tables: Iterable[str], *, servers: int = 1) -> list[Obstacle]:
    """What so many servers, of one process each, will meet as the role of this connection; those of the `tables` that
    there are not yet are left out."""
    row = connection.execute(_CONDITIONS, {"names": list(tables)}).one()
    return [*_find_fatal(row), *_find_others(row, CONNECTIONS * servers)]


def _find_fatal(row: Row[Any]) -> Iterator[Obstacle]:
    if row.encoding not in _FIT_ENCODINGS:
        yield Obstacle(True, _describe_encoding(row.encoding))
    if row.forbidden:
        yield Obstacle(
            True,
            f"the role {row.role!r} may not read and change {_count_tables(row.forbidden)}: GRANT SELECT, INSERT, "
            "UPDATE, DELETE ON ALL TABLES to it",
        )
    if row.filtered:
        yield Obstacle(
            True,
            f"row-level security is on for {_count_tables(row.filtered)}, so the role {row.role!r} does not see or "
            "write every row: turn it off, or use the role that owns the tables",
        )


def _find_others(row: Row[Any], connections: int) -> Iterator[Obstacle]:
    if row.is_read_only:
        yield Obstacle(False, "it takes no writes: it is a standby, or default_transaction_read_only is on")
    if 0 < row.statement_ms < _SHORTEST_STATEMENT_MS:
        yield Obstacle(
            False,
            f"statement_timeout is {row.statement_ms} ms, which ends statements that are in order; leave it out, as "
            "the server has time limits of its own",
        )
    allowed = min(limit for limit in (row.connections, row.role_connections) if limit >= 0)
    if allowed < connections:
        yield Obstacle(
            False,
            f"it allows {allowed} connections, and the server uses up to {connections}; raise max_connections or the "
            "role's CONNECTION LIMIT",
        )


def refuse_encoding(connection: Connection) -> None:
    """Raises StoreUnavailable for a new database that could not hold every text."""
    encoding: Any = connection.scalar(text("SELECT current_setting('server_encoding')"))
    if encoding not in _FIT_ENCODINGS:
        raise StoreUnavailable(f"this database cannot be used: {_describe_encoding(encoding)}")


def _describe_encoding(encoding: str) -> str:
    return (
        f"its encoding is {encoding}, which has no place for most of the world's characters: make another one with "
        "ENCODING 'UTF8' TEMPLATE template0 (`swarmkeep backup` and `restore` move what is there)"
    )


def _count_tables(tables: list[str]) -> str:
    return f"the table {tables[0]}" if len(tables) == 1 else f"{len(tables)} tables, such as {tables[0]}"
