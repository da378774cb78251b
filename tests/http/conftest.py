"""Servers with this release's schema, on each kind of database and with each kind of model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.http.server import RunningServer, scripted, server_settings, start_server
from tests.support.scripted import ScriptedModel


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    """A model that says what the test wrote, and fails it for anything else."""
    with ScriptedModel() as scripted:
        yield scripted


@pytest.fixture
async def service(ready_url: str, model: ScriptedModel) -> AsyncIterator[RunningServer]:
    """A server on each kind of database in turn."""
    async with start_server(scripted(ready_url, model)) as running:
        yield running


@pytest.fixture
async def plain(sqlite_ready: str) -> AsyncIterator[RunningServer]:
    """A server for what has nothing to do with the database."""
    async with start_server(server_settings(database_url=sqlite_ready)) as running:
        yield running
