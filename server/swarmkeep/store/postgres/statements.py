"""Statements that go to asyncpg itself, on a connection of the pool, each of them a transaction of its own.

What SQLAlchemy adds to a statement (a cursor, types of the result, a BEGIN and a COMMIT around it) costs more than the
statement does.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from sqlalchemy import Engine, PoolProxiedConnection
from sqlalchemy.util import await_only

from swarmkeep.store.ports.database import Render, Rows
from swarmkeep.store.postgres.errors import breaks_connection


class ConnectionBroken(ConnectionError):
    """The connection is gone. `is_in_doubt`: the statement was sent, so it may have been done."""

    def __init__(self, cause: Exception | None) -> None:
        super().__init__(str(cause or "the connection was closed"))
        self.is_in_doubt = cause is not None


def run_statement(engine: Engine, render: Render) -> Rows:
    """Run a statement, in a greenlet. Raises ConnectionBroken, and the driver's errors."""
    with closing(engine.raw_connection()) as pooled:
        driver: Any = pooled.driver_connection
        if driver.is_closed():
            drop_connections(engine, pooled)
            raise ConnectionBroken(None)
        sql, values = render(engine.dialect)
        try:
            rows: Rows = await_only(driver.fetch(sql, *values))
        except Exception as error:
            if not (driver.is_closed() or breaks_connection(error)):
                raise
            drop_connections(engine, pooled)
            raise ConnectionBroken(error) from error
    return rows


def drop_connections(engine: Engine, broken: PoolProxiedConnection | None = None) -> None:
    """Use none of the connections again that were made before now, or before this one broke: they lead to the same end.

    What is in use goes on, and is closed when it is done.
    """
    # What SQLAlchemy does when a statement of its own finds out. A pool that is disposed of forgets what is in use.
    engine.pool._invalidate(broken)  # type: ignore[arg-type]
