"""Quotas: what one tenant, or one session, may take of a server; each refusal names its limit."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest

from swarmkeep.domain.errors import QuotaExceeded
from swarmkeep.engine.limits import ForkQuota
from tests.api.auth.keys import create_key
from tests.api.server import check_problem, scripted, start_server
from tests.support.scripted import ScriptedModel

HANGING = {"input": "hi", "background": True}


@pytest.fixture
async def servers() -> Any:
    async with AsyncExitStack() as opened:
        yield opened


def check_quota(answer: httpx2.Response, setting: str) -> None:
    assert f"SWARMKEEP_{setting}" in check_problem(answer, 429, "quota_exceeded")["detail"]


async def test_a_queue_takes_no_more_than_its_quota(
    ready_url: str, model: ScriptedModel, servers: AsyncExitStack
) -> None:
    service = await servers.enter_async_context(start_server(scripted(ready_url, model, max_queued_runs=2)))
    model.hang(then="first")
    model.say("second")
    model.say("third")
    session = await service.session()
    await service.run(session, background=True)
    await model.wait_for_requests_async(1)
    queued = HANGING | {"on_busy": "queue"}
    key = {"Idempotency-Key": "one"}
    last = [(await service.post(f"{session}/runs", queued, headers=key)).json() for _ in range(2)]
    assert last[0]["id"] == last[1]["id"]
    run = (await service.post(f"{session}/runs", queued)).json()
    check_quota(await service.post(f"{session}/runs", queued), "MAX_QUEUED_RUNS")
    # Asked for again, what is in the queue is no new run.
    assert (await service.post(f"{session}/runs", queued, headers=key)).json()["id"] == last[0]["id"]
    model.release()
    async with asyncio.timeout(20):
        await service.read_stream(f"{session}/runs/{run['id']}/stream")
    assert len((await service.get(f"{session}/runs")).json()["data"]) == 3


async def test_one_tenant_fills_its_share_of_a_server_and_no_other_is_refused(
    ready_url: str, model: ScriptedModel, servers: AsyncExitStack
) -> None:
    service = await servers.enter_async_context(start_server(scripted(ready_url, model, max_runs_per_tenant=1)))
    ours, theirs = [await create_key(service, tenant) for tenant in ("ours", "theirs")]
    for number in range(2):
        await service.post("/v1/sessions", {"id": f"s{number}"}, headers=ours)
    await service.post("/v1/sessions", {"id": "t"}, headers=theirs)
    model.hang(then="first")
    assert (await service.post("/v1/sessions/s0/runs", HANGING, headers=ours)).status_code == 202
    await model.wait_for_requests_async(1)
    refused = await service.post("/v1/sessions/s1/runs", HANGING, headers=ours)
    check_quota(refused, "MAX_RUNS_PER_TENANT")
    assert refused.headers["retry-after"] == "1"
    model.say("theirs")
    assert (await service.post("/v1/sessions/t/runs", {"input": "hi"}, headers=theirs)).status_code == 200
    model.release()
    async with service.stream("/v1/sessions/s0/events", **ours) as frames:
        await frames.until("run.completed")
    model.say("ours")
    assert (await service.post("/v1/sessions/s1/runs", {"input": "hi"}, headers=ours)).json()["status"] == "completed"


async def test_a_session_with_enough_events_takes_nothing_more_but_can_be_forked(
    ready_url: str, model: ScriptedModel, servers: AsyncExitStack
) -> None:
    service = await servers.enter_async_context(start_server(scripted(ready_url, model, max_session_events=3)))
    model.say("done")
    session = await service.session()
    assert (await service.run(session))["status"] == "completed"
    seq = (await service.get(session)).json()["seq"]
    assert seq > 3
    check_quota(await service.post(f"{session}/runs", {"input": "hi"}), "MAX_SESSION_EVENTS")
    check_quota(await service.patch(session, {"metadata": {"a": 1}}), "MAX_SESSION_EVENTS")
    assert (await service.get(session)).json()["seq"] == seq
    fork = (await service.post(f"{session}/fork", {"at": 1})).json()
    assert (await service.patch(f"/v1/sessions/{fork['id']}", {"metadata": {"a": 1}})).status_code == 200


async def test_forks_are_counted_by_the_minute(ready_url: str, model: ScriptedModel, servers: AsyncExitStack) -> None:
    service = await servers.enter_async_context(start_server(scripted(ready_url, model, max_forks_per_minute=2)))
    session = await service.session()
    for _ in range(2):
        assert (await service.post(f"{session}/fork", {})).status_code == 201
    refused = await service.post(f"{session}/fork", {})
    check_quota(refused, "MAX_FORKS_PER_MINUTE")
    assert 1 <= int(refused.headers["retry-after"]) <= 30


def test_the_minute_passes_and_tenants_do_not_count_for_one_another() -> None:
    now = 0.0
    quota = ForkQuota(2, lambda: now)
    for tenant in ("a", "a", "b", "b"):
        quota.count(tenant)
    with pytest.raises(QuotaExceeded) as refused:
        quota.count("a")
    assert refused.value.retry_after_seconds == 30
    now = 30.0
    quota.count("a")
    with pytest.raises(QuotaExceeded):
        quota.count("a")
    now = 1_000.0
    quota.count("a")
    quota.count("a")
    with pytest.raises(QuotaExceeded):
        quota.count("a")
