"""Change notifications over PostgreSQL's NOTIFY: one connection sends which sessions changed, and receives the same
from other processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar

from sqlalchemy import Connection, Engine, Row, bindparam, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from swarmkeep.events.errors import Overloaded
from swarmkeep.events.wording import pluralize
from swarmkeep.store.records import TOO_SLOW_DETAIL, SessionKey, StoreUnavailable, missing_schema_error
from swarmkeep.store.urls import PostgresServer

log = logging.getLogger(__name__)

CHANNEL = "swarmkeep"

# PostgreSQL takes at most 7,999 bytes in one notification.
_MAX_BYTES = 7900
# Changes within this time are sent together: a server that appends a thousand times a second notifies a hundred.
_SEND_INTERVAL_SECONDS = 0.01
# Nothing else finds out that the other end is gone without a word.
_CHECK_SECONDS = 15.0
_SEND_TIMEOUT_SECONDS = 10.0
# Who says nothing for this long listens no more: each says something every _CHECK_SECONDS.
_SILENT_SECONDS = 2.5 * _CHECK_SECONDS
# Within this time those who listen already have answered a greeting.
_GREETING_SECONDS = 5.0
_RETRY_SECONDS = (0.1, 5.0)

Connect = Callable[[], Awaitable[Any]]
OnChange = Callable[[SessionKey], None]


class Notifications:
    """Sends and receives which sessions changed, over one connection of its own that comes back when it breaks.

    Never part of a transaction: a commit that notifies waits for every other one that does. And nothing is sent if no
    one else listens: it would come back to this very process. So each greets the others, with an empty payload, when it
    begins, when it hears of a new one, and every few seconds.
    """

    def __init__(self, connect: Connect, *, greeting_seconds: float = _GREETING_SECONDS) -> None:
        self._connect = connect
        self._greeting_seconds = greeting_seconds
        self._pending: dict[SessionKey, None] = {}
        self._wake = asyncio.Event()
        self._open = False
        self._silent_at: dict[int, float] = {}
        """When each of the others, by its backend, is taken to listen no more."""
        self._greeted_at = 0.0

    def notify(self, key: SessionKey) -> None:
        """Notify other processes that a session changed; forgotten without a connection or any other process."""
        if self._open and self._has_listeners():
            self._pending[key] = None
            self._wake.set()

    def _has_listeners(self) -> bool:
        now = asyncio.get_running_loop().time()
        for pid in [pid for pid, at in self._silent_at.items() if at <= now]:
            del self._silent_at[pid]
        # Until there was time to answer this is unknown.
        return bool(self._silent_at) or now < self._greeted_at + self._greeting_seconds

    def _note_listener(self, pid: int) -> None:
        if pid not in self._silent_at:
            # It may not know of this one.
            self._wake.set()
        self._silent_at[pid] = asyncio.get_running_loop().time() + _SILENT_SECONDS

    async def run(self, on_change: OnChange) -> None:
        """Send and receive until cancelled."""
        pause, longest = _RETRY_SECONDS
        while True:
            try:
                async with self._connection(on_change) as connection:
                    pause = _RETRY_SECONDS[0]
                    await self._send_until_closed(connection)
            except Exception as error:
                # For any error: those who are hinted to look by themselves as well, only later.
                log.debug("change notifications are off for %g s: %s", pause, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    @contextlib.asynccontextmanager
    async def _connection(self, on_change: OnChange) -> Any:
        connection = await self._connect()
        try:
            mine = connection.get_server_pid()

            def receive(_: Any, pid: int, channel: str, payload: str) -> None:
                if pid != mine:
                    self._note_listener(pid)
                    for key in _decode_keys(payload):
                        on_change(key)

            connection.add_termination_listener(lambda _: self._wake.set())
            await connection.add_listener(CHANNEL, receive)
            self._greeted_at = asyncio.get_running_loop().time()
            self._open = True
            self._wake.set()
            yield connection
        finally:
            self._open = False
            self._pending.clear()
            self._silent_at.clear()
            connection.terminate()

    async def _send_until_closed(self, connection: Any) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            if connection.is_closed():
                raise StoreUnavailable("the connection was closed")
            keys, self._pending = list(self._pending), {}
            async with asyncio.timeout(_SEND_TIMEOUT_SECONDS):
                for payload in _encode_payloads(keys) or ("",):
                    await connection.execute(f"SELECT pg_notify('{CHANNEL}', $1)", payload)
            await asyncio.sleep(_SEND_INTERVAL_SECONDS)


def _encode_payloads(keys: list[SessionKey]) -> list[str]:
    payloads: list[str] = []
    parts: list[str] = []
    size = 0
    for key in keys:
        # Text that only escapes can write is written with escapes.
        part = json.dumps([key.tenant, key.id], separators=(",", ":"))
        if len(part) > _MAX_BYTES:
            continue
        if parts and size + len(part) + 1 > _MAX_BYTES:
            payloads.append(f"[{','.join(parts)}]")
            parts, size = [], 0
        parts.append(part)
        size += len(part) + 1
    return [*payloads, f"[{','.join(parts)}]"] if parts else payloads


def _decode_keys(payload: str) -> Iterator[SessionKey]:
    """The sessions that a notification names; anybody may send one, so it may be anything."""
    try:
        pairs = json.loads(payload or "[]")
        for tenant, name in pairs:
            yield SessionKey(str(tenant), str(name))
    except (ValueError, TypeError):
        log.debug("ignoring a notification from another program: %.100r", payload)


# Obstacles: settings of a PostgreSQL database or role that would stop a server, found before it starts.

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
    """Find the obstacles that so many servers, of one process each, will meet as this connection's role; those of the
    `tables` that there are not yet are left out."""
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


# PostgreSQL's errors as the store's.

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
    """Tell if the connection broke, rather than what was asked of it."""
    return _is_network_error(error) or (isinstance(error, DBAPIError) and error.connection_invalidated)


def is_server_read_only(error: Exception) -> bool:
    """Tell if the connection leads to a server that takes no writes, as one does that was the primary before."""
    return _get_state(error) == _READ_ONLY


def is_overtaken(error: Exception) -> bool:
    """Tell if a statement was undone because another transaction was quicker."""
    return _get_state(error) in _OVERTAKEN


def is_locked_out(error: Exception) -> bool:
    """Tell if another transaction kept what was asked for locked, for longer than any should."""
    return _get_state(error) == _LOCKED_OUT


def is_out_of_time(error: Exception) -> bool:
    """Tell if the driver gave up: behind a pooler, which takes no settings, nothing else ends the wait for a lock."""
    # Who got no connection waited for no lock, and gets none to look for one.
    is_connected = not isinstance(error, StoreUnavailable)
    return is_connected and (isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError))


def breaks_connection(error: Exception) -> bool:
    """Tell if the driver's error, of a statement, says that the other end is gone."""
    state = _get_state(error)
    return _is_network_error(error) or state[:2] == "08" or state in _ENDING


def _get_state(error: Exception) -> str:
    """The SQLSTATE of an error of the driver's, be it wrapped or not; empty for any other."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlstate", None) or ""


def _is_network_error(error: Exception) -> bool:
    return isinstance(error, OSError | TimeoutError | EOFError)


# Connections to a PostgreSQL server: asyncpg under SQLAlchemy's engine, with a bounded pool.

T = TypeVar("T")

_POOL_SIZE = 8
_POOL_SECONDS = 30.0
_COMMAND_SECONDS = 60.0


# No one is held up for longer by a process that stands still in the middle of a transaction, or by a row that another
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
        # Texts of sessions are not for the server's log.
        hide_parameters=True,
        execution_options={"keyring": server.keyring},
        connect_args={} if server.prepares_statements else {"prepared_statement_cache_size": 0},
        **pool,
    )


# Locks of processes that stand still in the middle of a transaction, and their release.

# Only what has locked something, as this program and this user: no other transaction is ours to end.
_END = text(
    "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND usename = current_user AND backend_xid IS NOT NULL"
    " AND application_name = current_setting('application_name') AND pid <> pg_backend_pid()"
    " AND state = 'active' AND wait_event_type = 'Client' AND wait_event = 'ClientRead'"
    " AND state_change < clock_timestamp() - make_interval(secs => :seconds) AND query NOT ILIKE 'copy%'"
).bindparams(bindparam("seconds"))


def end_standing_transactions(engine: Engine) -> int:
    """End transactions of this program's that have waited too long for the rest of a statement; returns how many."""
    try:
        with engine.connect() as connection:
            ended = connection.scalar(_END, {"seconds": STANDSTILL_SECONDS}) or 0
    except (SQLAlchemyError, StoreUnavailable, OSError, TimeoutError) as error:
        log.warning("cannot look for stalled transactions: %s", type(error).__name__)
        return 0
    if ended:
        stalled = pluralize(ended, "transaction that was", "transactions that were")
        log.warning("ended %s stalled for more than %g s", stalled, STANDSTILL_SECONDS)
    return ended
