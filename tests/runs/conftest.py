"""The scripted model and clients of it; and, for what lives on the log, engines on a database as servers have them."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI, OpenAI

from swarmkeep.store import schema
from tests.runs.cluster import EngineCluster
from tests.runs.swarm.runners import open_async, open_sync
from tests.support.postgres import Postgres
from tests.support.scripted import ScriptedModel


@pytest.fixture
def client(model: ScriptedModel) -> Iterator[OpenAI]:
    with open_sync(model.url) as opened:
        yield opened


@pytest.fixture
async def async_client(model: ScriptedModel) -> AsyncIterator[AsyncOpenAI]:
    async with open_async(model.url) as opened:
        yield opened


@pytest.fixture(scope="session")
def sqlite_with_schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "swarmkeep.db"
    schema.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_ready(sqlite_url: str, sqlite_with_schema: Path) -> str:
    shutil.copy(sqlite_with_schema, sqlite_url.removeprefix("sqlite:///"))
    return sqlite_url


@pytest.fixture(scope="session")
def postgres_with_schema(postgres: Postgres) -> Iterator[str]:
    url = postgres.create(postgres.template("schema", schema.upgrade))
    yield url
    postgres.drop(url)


@pytest.fixture
def postgres_ready(postgres_with_schema: str) -> str:
    """One database for all, because to make one takes longer than most tests; `cluster` empties it."""
    return postgres_with_schema


@pytest.fixture
async def cluster(ready_url: str, async_client: AsyncOpenAI) -> AsyncIterator[EngineCluster]:
    async with EngineCluster(ready_url, async_client) as opened:
        yield opened
