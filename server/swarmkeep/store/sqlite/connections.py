"""Connections to a SQLite file."""

from __future__ import annotations

import sqlite3
from typing import Any, Literal

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import StaticPool

from swarmkeep.store.ports.errors import UPGRADE_HINT, StoreUnavailable
from swarmkeep.store.sqlite.privacy import create_private_file
from swarmkeep.store.sqlite.writable import refuse_orphaned_log
from swarmkeep.store.urls import SqliteFile

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

    # What somebody said is not for the server's log.
    engine = create_engine("sqlite://", creator=open_file, poolclass=StaticPool, hide_parameters=True)

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        # A plain BEGIN that reads and then writes fails at once with "database is locked", whatever the busy timeout
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
