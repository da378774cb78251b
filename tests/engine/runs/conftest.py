"""A server of one agent, with a session on it."""

from __future__ import annotations

import pytest

from swarmkeep import Agent
from swarmkeep.engine.engine import Engine
from tests.engine.cluster import EngineCluster
from tests.engine.runs.sessions import look, open_engine


@pytest.fixture
async def engine(cluster: EngineCluster) -> Engine:
    return await open_engine(cluster, Agent(name="A", functions=[look]))
