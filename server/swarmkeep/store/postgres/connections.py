"""Connections to a PostgreSQL server: asyncpg under SQLAlchemy's engine, with a bounded pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from swarmkeep.store.ports.errors import StoreUnavailable
from swarmkeep.store.urls import PostgresServer

T = TypeVar("T")

_POOL_SIZE = 8
_POOL_SECONDS = 30.0
_COMMAND_SECONDS = 60.0


# Nobody is held up for longer by a process that stands still in the middle of a transaction, or by a row that somebody
# keeps locked. A migration, which may take its time, lifts these limits for itself.
STANDSTILL_SECONDS = 5.0
_LOCK_SECONDS = 5.0


async def connect(
    server: PostgresServer, settings: Mapping[str, str], command_seconds: float | None = _COMMAND_SECONDS
) -> Any:
    """A connection of asyncpg's. Raises StoreUnavailable."""
    asyncpg = _load_driver()
    try:
        return await asyncpg.connect(
            server.dsn,
            user=server.user,
            password=server.password,
            timeout=server.connect_seconds,
            command_timeout=command_seconds,
            server_settings=dict(settings),
            **({} if server.prepares_statements else {"statement_cache_size": 0}),
        )
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        reason = str(error) or "it did not answer in time"
        if isinstance(error, OSError | TimeoutError):
            reason += "; check that it is running, and that the address is right"
        raise StoreUnavailable(f"cannot connect to the database at {server.display}: {reason}") from error


def pin_moment(engine: AsyncEngine) -> AsyncEngine:
    """The same engine, for transactions that only read, and see the database as it is at one moment."""
    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def run_query(engine: Engine, query: Callable[[Connection], T]) -> T:
    # Taking the connection, using it and giving it back share one greenlet, as in all that runs in one here: with
    # AsyncEngine's own methods each has its own, which is a quarter of what an append costs.
    with engine.connect() as connection:
        return query(connection)


def _load_driver() -> Any:
    try:
        import asyncpg  # type: ignore[import-untyped]
    except ImportError:
        raise StoreUnavailable("PostgreSQL needs its driver: pip install 'swarmkeep[postgres]'") from None
    return asyncpg


def make_engine(
    server: PostgresServer,
    *,
    read_only: bool = False,
    pooled: bool = True,
    command_seconds: float | None = _COMMAND_SECONDS,
) -> AsyncEngine:
    """An engine for the running loop. Connections are made when they are needed. Raises StoreUnavailable.

    A statement may take `command_seconds`; None is as long as it likes.
    """
    _load_driver()
    settings = {"default_transaction_read_only": "on"} if read_only else {}
    # What pools connections itself refuses settings that it does not know.
    if server.prepares_statements:
        settings["idle_in_transaction_session_timeout"] = f"{STANDSTILL_SECONDS:g}s"
        settings["lock_timeout"] = f"{_LOCK_SECONDS:g}s"
    pool: dict[str, Any] = {"poolclass": NullPool}
    if pooled:
        pool = {"pool_size": _POOL_SIZE, "max_overflow": 0, "pool_timeout": _POOL_SECONDS}
    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=lambda: connect(server, settings, command_seconds),
        isolation_level="READ COMMITTED",
        # What somebody said is not for the server's log.
        hide_parameters=True,
        connect_args={} if server.prepares_statements else {"prepared_statement_cache_size": 0},
        **pool,
    )
