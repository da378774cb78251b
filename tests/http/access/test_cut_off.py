"""What a request is told that was still under way when its server had waited long enough."""

from __future__ import annotations

import asyncio

import pytest
from openai import AsyncOpenAI, InternalServerError

from tests.http.server import RunningServer, check_problem, scripted, start_server
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


def cut_off(service: RunningServer) -> None:
    """What the HTTP server does at last with requests that are under way."""
    for connection in service.connections:
        for task in connection.tasks:
            task.cancel()


async def test_it_is_refused_rather_than_failed(sqlite_ready: str, model: ScriptedModel) -> None:
    async with start_server(scripted(sqlite_ready, model)) as service:
        session = await service.session()
        model.hang()
        model.hang()
        asked = asyncio.create_task(service.post(f"{session}/runs", {"input": "hi"}))
        client = AsyncOpenAI(base_url=f"{service.url}/openai/v1", api_key="none", max_retries=0)
        responded = asyncio.create_task(client.responses.create(model="Front", input="hi"))
        await model.wait_for_requests_async(2)
        service.service.drained.set()
        cut_off(service)
        answer = await asked
        check_problem(answer, 503, "draining")
        assert answer.headers["x-request-id"].startswith("req_")
        with pytest.raises(InternalServerError) as refused:
            await responded
        assert (refused.value.status_code, refused.value.code) == (503, "draining")
        assert refused.value.response.headers["x-should-retry"] == "false"
        await client.close()
