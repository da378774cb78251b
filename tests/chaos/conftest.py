"""Server clusters to crash, on each kind of database."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swarmkeep.store import schema
from tests.chaos.cluster import LEASE_SECONDS, ServerCluster
from tests.chaos.parallel import OpenCluster, ParallelTests, read_kind
from tests.chaos.storm import Report
from tests.support.postgres import Postgres

REPORT = Report(LEASE_SECONDS)


@pytest.fixture(scope="session")
def open_cluster(
    request: pytest.FixtureRequest, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> OpenCluster:
    """Makes clusters, each with a new database of the kind that it is asked for. Threads may share it."""
    alone = threading.Lock()

    @contextmanager
    def database(kind: str, folder: Path) -> Iterator[str]:
        if kind == "sqlite":
            shutil.copy(sqlite_template, folder / "swarmkeep.db")
            yield f"sqlite:///{folder / 'swarmkeep.db'}"
            return
        postgres: Postgres = request.getfixturevalue("postgres")
        with alone:
            url = postgres.create(postgres.template("schema", schema.upgrade))
        yield url
        postgres.drop(url)

    @contextmanager
    def open(kind: str) -> Iterator[ServerCluster]:
        with alone:
            folder = tmp_path_factory.mktemp("cluster")
        with database(kind, folder) as url, ServerCluster(url, folder) as cluster:
            yield cluster

    return open


@pytest.fixture(scope="session", autouse=True)
def parallel_tests(request: pytest.FixtureRequest, open_cluster: OpenCluster) -> Iterator[ParallelTests]:
    """Plays what is going to be looked at. It begins with the first test of this folder, whichever that is."""
    ahead = [item for item in request.session.items if hasattr(getattr(item, "function", None), "test_body")]
    if any(read_kind(item) == "postgres" for item in ahead):
        request.getfixturevalue("postgres")
    parallel_tests = ParallelTests(open_cluster)
    parallel_tests.submit(ahead)
    yield parallel_tests
    parallel_tests.close()


@pytest.fixture
def report() -> Report:
    """Where the random runs put their figures."""
    return REPORT


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if REPORT.rows:
        terminalreporter.section("chaos")
        terminalreporter.write_line(REPORT.text())
        REPORT.write()
