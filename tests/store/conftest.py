"""A database with this release's schema, of each kind in turn, and stores on it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
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
def url(request: pytest.FixtureRequest) -> str:
    """A database with the schema and nothing in it. Tests never ask of which kind."""
    ready = request.getfixturevalue(f"{request.param}_ready")
    assert isinstance(ready, str)
    return ready


Opener = Callable[..., SqlStore]


@pytest.fixture
async def opener(url: str) -> AsyncIterator[Opener]:
    """Opens stores on the database, as several processes would, and closes them at the end."""
    async with AsyncExitStack() as stack:

        def open_another(**options: object) -> SqlStore:
            store = open_store(url, **options)  # type: ignore[arg-type]
            stack.push_async_callback(store.close)
            return store

        yield open_another


@pytest.fixture
async def store(opener: Opener) -> SqlStore:
    return opener()
