"""OpenAI's own client, against a server with each database in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI

from tests.http.server import RunningServer


def connect(server: RunningServer, **options: bool) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{server.url}/openai/v1", api_key="none", max_retries=0, timeout=30, **options)


def connect_strictly(server: RunningServer) -> AsyncOpenAI:
    """A client that refuses what its types do not say."""
    return connect(server, _strict_response_validation=True)


@pytest.fixture
async def openai(service: RunningServer) -> AsyncIterator[AsyncOpenAI]:
    async with connect(service) as client:
        yield client


@pytest.fixture
async def client(service: RunningServer) -> AsyncIterator[AsyncOpenAI]:
    """A strict one."""
    async with connect_strictly(service) as strict:
        yield strict
