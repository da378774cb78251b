"""A server of one agent, with a session on it."""

from __future__ import annotations

import pytest

from swarmkeep import Agent
from tests.runs.cluster import EngineCluster, Server
from tests.runs.runs.sessions import look, open_engine


@pytest.fixture
async def engine(cluster: EngineCluster) -> Server:
    return await open_engine(cluster, Agent(name="A", functions=[look]))
