"""Quotas: what one tenant, or one session, may take of a server; each refusal names its limit."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest

from swarmkeep.events.errors import QuotaExceeded
from swarmkeep.runs.limits import ForkQuota
from swarmkeep.store.records import OutcomeUnknown, StoreUnavailable
from tests.http.auth.keys import create_key
from tests.http.server import RunningServer, check_problem, scripted, start_server
from tests.support.scripted import ScriptedModel

HANGING = {"input": "hi", "background": True}


@pytest.fixture
async def servers() -> Any:
    async with AsyncExitStack() as opened:
        yield opened


def check_quota(answer: httpx2.Response, setting: str) -> None:
    assert f"SWARMKEEP_{setting}" in check_problem(answer, 429, "quota_exceeded")["detail"]


async def test_queue_is_bounded_by_quota(ready_url: str, model: ScriptedModel, servers: AsyncExitStack) -> None:
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
    check_quota(await service.post(f"{session}/runs", queued), "MAX_QUEUED_RUNS); wait until one begins, or cancel one")
    # Asked for again, what is in the queue is no new run.
    assert (await service.post(f"{session}/runs", queued, headers=key)).json()["id"] == last[0]["id"]
    model.release()
    async with asyncio.timeout(20):
        await service.read_stream(f"{session}/runs/{run['id']}/stream")
    assert len((await service.get(f"{session}/runs")).json()["data"]) == 3


async def test_one_tenant_exhausts_only_own_share(
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


async def test_full_session_only_forks(ready_url: str, model: ScriptedModel, servers: AsyncExitStack) -> None:
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


def test_uncertain_fork_counts_against_quota() -> None:
    quota = ForkQuota(1, lambda: 0.0)
    with pytest.raises(StoreUnavailable), quota.count("a"):
        raise StoreUnavailable("not made")
    with pytest.raises(OutcomeUnknown), quota.count("a"):
        raise OutcomeUnknown("perhaps made")
    with pytest.raises(QuotaExceeded), quota.count("a"):
        pass


def test_tenant_minutes_pass_independently() -> None:
    now = 0.0
    quota = ForkQuota(2, lambda: now)

    def fork(tenant: str) -> None:
        with quota.count(tenant):
            pass

    for tenant in ("a", "a", "b", "b"):
        fork(tenant)
    with pytest.raises(QuotaExceeded) as refused:
        fork("a")
    assert refused.value.retry_after_seconds == 30
    now = 30.0
    fork("a")
    with pytest.raises(QuotaExceeded):
        fork("a")
    now = 1_000.0
    fork("a")
    fork("a")
    with pytest.raises(QuotaExceeded):
        fork("a")


async def read_quotas(service: RunningServer, **headers: str) -> Any:
    answer = await service.get("/v1/quotas", headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_tenant_sessions_counted_over_servers(
    ready_url: str, model: ScriptedModel, servers: AsyncExitStack
) -> None:
    one, two = [
        await servers.enter_async_context(start_server(scripted(ready_url, model, max_sessions=3))) for _ in range(2)
    ]
    ours, theirs = [await create_key(one, tenant) for tenant in ("ours", "theirs")]
    made = {"id": "a", "metadata": {"n": 1}}
    assert (await one.post("/v1/sessions", made, headers=ours)).status_code == 201
    assert (await two.post("/v1/sessions/a/fork", {"id": "f"}, headers=ours)).status_code == 201
    assert (await one.post("/v1/sessions", {"id": "b"}, headers=ours)).status_code == 201
    for refused in (
        await two.post("/v1/sessions", {}, headers=ours),
        await two.post("/v1/sessions/a/fork", {}, headers=ours),
        await two.post("/v1/import?from=chat", {"messages": [{"role": "user", "content": "hi"}]}, headers=ours),
    ):
        check_quota(refused, "MAX_SESSIONS")
        assert "retry-after" not in refused.headers
    # Asked for again, what is there is no new session.
    assert (await two.post("/v1/sessions", made, headers=ours)).status_code == 200
    assert (await two.post("/v1/sessions", {}, headers=theirs)).status_code == 201
    assert (await read_quotas(two, **ours))["sessions"] == {"used": 3, "limit": 3}
    assert (await read_quotas(two, **theirs))["sessions"] == {"used": 1, "limit": 3}
    assert (await one.delete("/v1/sessions/b", headers=ours)).status_code == 204
    assert (await two.post("/v1/sessions", {}, headers=ours)).status_code == 201


async def test_concurrent_creations_overshoot_by_connections(
    ready_url: str, model: ScriptedModel, servers: AsyncExitStack
) -> None:
    service = await servers.enter_async_context(start_server(scripted(ready_url, model, max_sessions=5)))
    answers = await asyncio.gather(*(service.post("/v1/sessions", {}) for _ in range(40)))
    made = [answer for answer in answers if answer.status_code == 201]
    assert {answer.status_code for answer in answers} == {201, 429}
    assert 5 <= len(made) <= (5 if ready_url.startswith("sqlite") else 13)
    assert (await read_quotas(service))["sessions"]["used"] == len(made)


async def test_full_tenant_keeps_and_ends_existing(
    ready_url: str, model: ScriptedModel, servers: AsyncExitStack
) -> None:
    service = await servers.enter_async_context(start_server(scripted(ready_url, model, max_stored_bytes=20_000)))
    session = await service.session()
    model.hang(then="y" * 20_000)
    run = await service.run(session, background=True)
    await model.wait_for_requests_async(1)
    before = (await read_quotas(service))["stored_bytes"]
    assert 0 < before["used"] < before["limit"] == 20_000
    model.release()
    async with asyncio.timeout(20):
        await service.read_stream(f"{session}/runs/{run['id']}/stream")
    # A run that goes on records what it has.
    assert (await service.get(f"{session}/runs/{run['id']}")).json()["status"] == "completed"
    for refused in (
        await service.post(f"{session}/runs", {"input": "hi"}),
        await service.post("/v1/sessions", {}),
        await service.patch(session, {"metadata": {"a": 1}}),
        await service.post(f"{session}/fork", {}),
    ):
        check_quota(refused, "MAX_STORED_BYTES")
    assert (await service.delete(session)).status_code == 204
    assert (await read_quotas(service))["stored_bytes"]["used"] == 0
    assert (await service.post("/v1/sessions", {})).status_code == 201


async def test_daily_token_overrun_fails_then_refuses(
    ready_url: str, model: ScriptedModel, servers: AsyncExitStack
) -> None:
    service = await servers.enter_async_context(start_server(scripted(ready_url, model, max_tokens_per_day=10)))
    # After its tool call the model would have to be asked again: it has no reply for that.
    model.call("get_weather", {"city": "Rome"})
    session = await service.session()
    run = await service.run(session)
    used = (await read_quotas(service))["tokens_today"]
    assert used["used"] >= used["limit"] == 10
    assert (run["status"], run["error"]["code"]) == ("failed", "quota_exceeded")
    assert "SWARMKEEP_MAX_TOKENS_PER_DAY" in run["error"]["message"]
    assert run["error"]["retryable"] is True
    messages = (await service.get(f"{session}/messages")).json()["data"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert len(model.requests) == 1
    refused = await service.post(f"{session}/runs", {"input": "hi"})
    check_quota(refused, "MAX_TOKENS_PER_DAY")
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    # Deleting what used them gives none back.
    assert (await service.delete(session)).status_code == 204
    check_quota(await service.post(f"{await service.session()}/runs", {"input": "hi"}), "MAX_TOKENS_PER_DAY")
