"""Servers with this release's schema, on each kind of database and with each kind of model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.cluster import ServerCluster
from tests.http.server import RunningServer, scripted, server_settings, start_server
from tests.support.scripted import ScriptedModel


@pytest.fixture
def given() -> dict[str, Any]:
    """Settings of the server; `with_settings` has others."""
    return {}


@pytest.fixture
async def service(ready_url: str, model: ScriptedModel, given: dict[str, Any]) -> AsyncIterator[RunningServer]:
    """A server on each kind of database in turn."""
    async with start_server(scripted(ready_url, model, **given)) as running:
        yield running


@pytest.fixture
async def plain(sqlite_ready: str) -> AsyncIterator[RunningServer]:
    """A server for what has nothing to do with the database."""
    async with start_server(server_settings(database_url=sqlite_ready)) as running:
        yield running


@pytest.fixture
async def pair(ready_url: str, model: ScriptedModel) -> AsyncIterator[tuple[RunningServer, RunningServer]]:
    """Two servers on one database, of each kind in turn."""
    given = scripted(ready_url, model)
    async with start_server(given) as one, start_server(given) as other:
        yield one, other


@pytest.fixture
def cluster(ready_url: str, tmp_path: Path) -> Iterator[ServerCluster]:
    """Server processes on each kind of database, to be killed."""
    with ServerCluster(ready_url, tmp_path) as found:
        yield found
