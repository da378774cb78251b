"""Stores on each kind of database in turn; `other` is on one of the other kind, and empty as well."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from swarmkeep.store import schema
from swarmkeep.store.sql import SqlStore, open_store
from tests.support.postgres import Postgres


def _upgrade(url: str) -> None:
    schema.upgrade(url)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "swarmkeep.db"
    _upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_ready(sqlite_url: str, sqlite_template: Path) -> str:
    shutil.copy(sqlite_template, sqlite_url.removeprefix("sqlite:///"))
    return sqlite_url


@pytest.fixture
def postgres_ready(postgres: Postgres) -> Iterator[str]:
    url = postgres.create(postgres.template("schema", _upgrade))
    yield url
    postgres.drop(url)


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def store(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[SqlStore]:
    """A store on each kind of database in turn. Tests never ask which."""
    opened = open_store(request.getfixturevalue(f"{kind}_ready"))
    yield opened
    await opened.close()


@pytest.fixture
async def other(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[SqlStore]:
    """A store on the kind of database that `store` is not on."""
    opened = open_store(request.getfixturevalue(f"{'postgres' if kind == 'sqlite' else 'sqlite'}_ready"))
    yield opened
    await opened.close()
