"""Responses that are kept nowhere: they live as long as somebody waits for them, and no longer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI, RateLimitError

from swarmkeep.http.metrics import ServerLimits
from tests.http.server import RunningServer, scripted, start_server
from tests.support.scripted import ScriptedModel

ASKED: list[tuple[str, Any]] = [
    ("responses", {"model": "Front", "input": "hi", "store": False}),
    ("chat/completions", {"model": "Front", "messages": [{"role": "user", "content": "hi"}], "store": False}),
]


@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_run_of_leaving_client_cut_off(
    service: RunningServer, model: ScriptedModel, path: str, body: Any
) -> None:
    model.hang()
    waiting = asyncio.create_task(service.post(f"/openai/v1/{path}", body))
    await model.wait_for_requests_async(1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await model.wait_for_disconnects_async(1)
    model.release()


@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_unstored_stream_sends_heartbeats(sqlite_ready: str, model: ScriptedModel, path: str, body: Any) -> None:
    model.hang()
    asked = {**body, "stream": True}
    async with (
        start_server(scripted(sqlite_ready, model), ServerLimits(ping_seconds=0.0)) as service,
        service.client.stream("POST", f"/openai/v1/{path}", json=asked) as answer,
        asyncio.timeout(20),
    ):
        lines = answer.aiter_lines()
        while await anext(lines) != ": ping":
            pass
        model.release()
        rest = [line async for line in lines]
    assert rest[-2:] == ["data: [DONE]", ""]


async def test_active_unstored_runs_count_immediately(sqlite_ready: str, model: ScriptedModel) -> None:
    model.hang()
    settings = scripted(sqlite_ready, model, max_runs_per_tenant=1)
    async with (
        start_server(settings) as service,
        AsyncOpenAI(base_url=f"{service.url}/openai/v1", api_key="none", max_retries=0) as openai,
    ):
        asked = [openai.responses.create(model="Front", input="hi", store=False) for _ in range(3)]
        refused = 0
        for task in asyncio.as_completed(asked):
            try:
                assert (await task).output_text == "released"
            except RateLimitError:
                refused += 1
                if refused == 2:
                    model.release()
        assert refused == 2
        model.say("again")
        assert (await openai.responses.create(model="Front", input="hi", store=False)).output_text == "again"


async def test_stopping_server_grants_time_then_ends(sqlite_ready: str, model: ScriptedModel) -> None:
    model.hang()
    model.hang()
    settings = scripted(sqlite_ready, model, grace_seconds=0.2)
    path, body = ASKED[0]
    async with start_server(settings) as service:
        whole = asyncio.create_task(service.post(f"/openai/v1/{path}", body))
        await model.wait_for_requests_async(1)
        async with service.client.stream("POST", f"/openai/v1/{path}", json={**body, "stream": True}) as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == "event: response.created"
            await model.wait_for_requests_async(2)
            await asyncio.wait_for(service.service.drain(), 20)
            async with asyncio.timeout(20):
                rest = [line async for line in lines]
        assert rest[-2:] == [": the server is shutting down", ""]
        refused = await asyncio.wait_for(whole, 20)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        model.release()


async def test_run_ending_in_grace_time_answered(sqlite_ready: str, model: ScriptedModel) -> None:
    model.hang()
    path, body = ASKED[0]
    async with start_server(scripted(sqlite_ready, model, grace_seconds=20)) as service:
        whole = asyncio.create_task(service.post(f"/openai/v1/{path}", body))
        await model.wait_for_requests_async(1)
        stopping = asyncio.create_task(service.service.drain())
        await service.service.stopping.wait()
        model.release()
        answer = await asyncio.wait_for(whole, 20)
        assert answer.json()["status"] == "completed"
        await asyncio.wait_for(stopping, 20)
