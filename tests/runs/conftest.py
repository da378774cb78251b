"""The scripted model and clients of it; and, for what lives on the log, engines on a database as servers have them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.runs.cluster import EngineCluster
from tests.runs.swarm.runners import open_async, open_sync
from tests.support.scripted import ScriptedModel


@pytest.fixture
def client(model: ScriptedModel) -> Iterator[OpenAI]:
    with open_sync(model.url) as opened:
        yield opened


@pytest.fixture
async def async_client(model: ScriptedModel) -> AsyncIterator[AsyncOpenAI]:
    async with open_async(model.url) as opened:
        yield opened


@pytest.fixture
async def cluster(ready_url: str, async_client: AsyncOpenAI) -> AsyncIterator[EngineCluster]:
    async with EngineCluster(ready_url, async_client) as opened:
        yield opened
