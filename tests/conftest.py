"""Fixtures that the tests of every folder share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swarmkeep.store.schema import upgrade
from tests.support import hypothesis_profiles, scratch
from tests.support import postgres as support
from tests.support.postgres import Postgres

hypothesis_profiles.load()

# The folder of the PostgreSQL server that all processes of a test run share.
POSTGRES_HOME = pytest.StashKey[Path]()

# What these share is started once and used by all of their tests: that wants one process. The largest groups are begun
# with, so that the single tests fill up what they leave.
ONE_PROCESS_FOLDERS = ("chaos", "web")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # Where pytest makes the tests' folders; those of its workers are in the first process's.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(scratch.root()))
    worker = getattr(config, "workerinput", None)
    config.stash[POSTGRES_HOME] = Path(worker["postgres_home"]) if worker else support.new_home()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["postgres_home"] = str(node.config.stash[POSTGRES_HOME])


def pytest_unconfigure(config: pytest.Config) -> None:
    # The run's first process ends last, and well even where a worker did not.
    if not hasattr(config, "workerinput") and POSTGRES_HOME in config.stash:
        support.end(config.stash[POSTGRES_HOME])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a folder in one process where that spares more time than it costs."""
    tests = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(tests).parts[0]
        if folder in ONE_PROCESS_FOLDERS:
            item.add_marker(pytest.mark.xdist_group(folder))


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[Postgres]:
    """A running PostgreSQL, started when the first test asks for it."""
    with support.postgres_for_tests(pytestconfig.stash[POSTGRES_HOME]) as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """An empty PostgreSQL database of the test's own."""
    url = postgres.create()
    yield url
    postgres.drop(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """An SQLite file of the test's own, which does not exist yet."""
    return f"sqlite:///{tmp_path / 'swarmkeep.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty database of the test's own, of each supported kind in turn. Tests never ask which."""
    url = request.getfixturevalue(f"{request.param}_url")
    assert isinstance(url, str)
    return url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "swarmkeep.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_ready(sqlite_url: str, sqlite_template: Path) -> str:
    """An SQLite file with this release's schema and nothing in it."""
    shutil.copy(sqlite_template, sqlite_url.removeprefix("sqlite:///"))
    return sqlite_url


@pytest.fixture
def postgres_ready(postgres: Postgres) -> str:
    """A PostgreSQL database with this release's schema and nothing in it."""
    return postgres.reused("schema", _upgrade)


@pytest.fixture(params=["sqlite", "postgres"])
def ready_url(request: pytest.FixtureRequest) -> str:
    """A database with the schema and nothing in it, of each kind in turn. Tests never ask which."""
    url = request.getfixturevalue(f"{request.param}_ready")
    assert isinstance(url, str)
    return url


def _upgrade(url: str) -> None:
    upgrade(url)
