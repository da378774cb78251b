"""OpenAI's own client, against a server with each database in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI

from tests.http.server import RunningServer


@pytest.fixture
async def openai(service: RunningServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{service.url}/openai/v1", api_key="none", max_retries=0) as client:
        yield client
