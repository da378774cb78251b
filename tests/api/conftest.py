"""Servers with this release's schema, on each kind of database and with each kind of model."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from swarmkeep.store import schema
from tests.api.service import Service, serving, settings
from tests.support.postgres import Postgres
from tests.support.scripted import ScriptedModel


def _upgrade(url: str) -> None:
    schema.upgrade(url)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "swarmkeep.db"
    _upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_ready(sqlite_url: str, migrated_file: Path) -> str:
    shutil.copy(migrated_file, sqlite_url.removeprefix("sqlite:///"))
    return sqlite_url


@pytest.fixture
def postgres_ready(postgres: Postgres) -> Iterator[str]:
    url = postgres.create(postgres.template("schema", _upgrade))
    yield url
    postgres.drop(url)


@pytest.fixture(params=["sqlite", "postgres"])
def ready_url(request: pytest.FixtureRequest) -> str:
    """A database with the schema and nothing in it, of each kind in turn."""
    url = request.getfixturevalue(f"{request.param}_ready")
    assert isinstance(url, str)
    return url


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    """A model that says what the test wrote, and fails it for anything else."""
    with ScriptedModel() as scripted:
        yield scripted


@pytest.fixture
async def service(ready_url: str, model: ScriptedModel) -> AsyncIterator[Service]:
    """A server on each kind of database in turn."""
    given = settings(
        database_url=ready_url, offline=False, openai_api_key="test", openai_base_url=model.url, model_retries=0
    )
    async with serving(given) as running:
        yield running


@pytest.fixture
async def plain(sqlite_ready: str) -> AsyncIterator[Service]:
    """A server for what has nothing to do with the database."""
    async with serving(settings(database_url=sqlite_ready)) as running:
        yield running
