"""Fixtures that every room's tests share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmkeep.store.schema import upgrade
from tests.support import postgres as support
from tests.support.postgres import Postgres

# What these share is started once and used by all of their tests: that wants one process.
ONE_PROCESS_FOLDERS = ("chaos", "web")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a room in one process where that spares more time than it costs."""
    tests = Path(__file__).parent
    for item in items:
        room = item.path.relative_to(tests).parts[0]
        if room in ONE_PROCESS_FOLDERS:
            item.add_marker(pytest.mark.xdist_group(room))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A running PostgreSQL, started when the first test asks for it."""
    with support.postgres_for_tests() as server:
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
    _upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_ready(sqlite_url: str, sqlite_template: Path) -> str:
    """An SQLite file with this release's schema and nothing in it."""
    shutil.copy(sqlite_template, sqlite_url.removeprefix("sqlite:///"))
    return sqlite_url


@pytest.fixture
def postgres_ready(postgres: Postgres) -> Iterator[str]:
    """A PostgreSQL database with this release's schema and nothing in it."""
    url = postgres.create(postgres.template("schema", _upgrade))
    yield url
    postgres.drop(url)


@pytest.fixture(params=["sqlite", "postgres"])
def ready_url(request: pytest.FixtureRequest) -> str:
    """A database with the schema and nothing in it, of each kind in turn. Tests never ask which."""
    url = request.getfixturevalue(f"{request.param}_ready")
    assert isinstance(url, str)
    return url


def _upgrade(url: str) -> None:
    upgrade(url)
