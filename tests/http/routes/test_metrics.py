"""Metrics and readiness: what happened, under labels that no caller chooses, and whether requests are welcome."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families as families

import swarmkeep
from swarmkeep.http.routes.health import sum_up
from swarmkeep.mcp.statuses import ServerStatus
from tests.http.auth.keys import bearer_headers, key_store
from tests.http.server import PATIENCE_SECONDS, RunningServer, check_problem, server_settings, start_server
from tests.support.disk import full_disk
from tests.support.scripted import USAGE, ScriptedModel

pytestmark = pytest.mark.one_database

Labels = frozenset[tuple[str, str]]


async def read_metrics(service: RunningServer, **headers: str) -> dict[tuple[str, Labels], float]:
    answer = await service.get("/metrics", headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = [sample for family in families(answer.text) for sample in family.samples]
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def value_of(found: dict[tuple[str, Labels], float], name: str, **labels: str) -> float:
    return found.get((f"swarmkeep_{name}", frozenset(labels.items())), 0.0)


async def test_what_happens_is_counted(service: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    model.call("no_such_tool", {}, id="c2")
    model.say("Done.")
    model.fail(401)
    session = await service.session()
    await service.run(session)
    assert (await service.run(session))["status"] == "failed"
    found = await read_metrics(service)
    assert value_of(found, "runs_total", event="started") == 2
    assert value_of(found, "runs_total", event="completed") == value_of(found, "runs_total", event="failed") == 1
    assert value_of(found, "run_errors_total", code="provider_authentication") == 1
    assert value_of(found, "model_call_seconds_count") == 3
    assert value_of(found, "tokens_total", kind="prompt") == 3 * USAGE["prompt_tokens"]
    assert value_of(found, "tokens_total", kind="completion") == 3 * USAGE["completion_tokens"]
    assert value_of(found, "tool_call_seconds_count", status="ok") == 1
    assert value_of(found, "tool_call_seconds_count", status="error") == 1
    events = await service.events(session)
    assert 2 < value_of(found, "append_seconds_count", outcome="ok") <= len(events)
    route = "/v1/sessions/{session_id}/runs"
    assert value_of(found, "http_requests_total", method="POST", route=route, status="200") == 2
    assert value_of(found, "http_requests_total", method="POST", route="/v1/sessions", status="201") == 1
    assert value_of(found, "sessions_driven") == value_of(found, "stream_readers") == 0
    # What searches read is written behind the turns; then nothing waits any more.
    async with asyncio.timeout(PATIENCE_SECONDS):
        while value_of(await read_metrics(service), "writes_waiting") > 0:
            pass


async def test_what_goes_on_is_shown(service: RunningServer, model: ScriptedModel) -> None:
    model.hang()
    session = await service.session()
    async with service.stream(f"{session}/runs", {"input": "hi", "stream": True}, method="POST") as stream:
        await stream.until("message.started")
        found = await read_metrics(service)
        assert value_of(found, "sessions_driven") == value_of(found, "stream_readers") == 1
        model.release()
        await stream.read_rest()


async def test_callers_choose_no_label(plain: RunningServer) -> None:
    for number in range(20):
        await plain.get(f"/v1/nothing-{number}")
        await plain.get(f"/v1/sessions/secret-{number}")
        await plain.client.request("PROPFIND", f"/somewhere/{number}")
    session = await plain.session(id="secret-session", metadata={"secret-key": "x"})
    await plain.run(session, model="secret-model")
    answer = await plain.get("/metrics")
    assert "secret" not in answer.text
    assert "PROPFIND" not in answer.text
    found = await read_metrics(plain)
    assert value_of(found, "http_requests_total", method="any", route="none", status="404") >= 20
    assert value_of(found, "http_requests_total", method="GET", route="/v1/sessions/{session_id}", status="404") == 20


async def test_keyed_server_requires_metrics_token(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready)) as server:
        assert (await server.get("/metrics")).status_code == 200
        _, secret = await key_store(server).create("default", name="desk")
    async with start_server(server_settings(database_url=sqlite_ready)) as server:
        answer = await server.get("/metrics")
        check_problem(answer, 401, "unauthenticated")
        assert "SWARMKEEP_METRICS_TOKEN" in answer.json()["detail"]
        # It counts all tenants' doings, so that a tenant's key does not do.
        check_problem(await server.get("/metrics", headers=bearer_headers(secret)), 401, "unauthenticated")
    async with start_server(server_settings(database_url=sqlite_ready, metrics_token="sesame")) as server:
        answer = await server.get("/metrics")
        check_problem(answer, 401, "unauthenticated")
        assert answer.headers["www-authenticate"].startswith("Bearer")
        for wrong in ("Bearer sesam", "Bearer", "Basic sesame", "sesame", "Bearer sésame"):
            check_problem(
                await server.get("/metrics", headers={"Authorization": wrong.encode()}), 401, "unauthenticated"
            )  # type: ignore[dict-item]
        metrics = await read_metrics(server, authorization="Bearer sesame")
        assert value_of(metrics, "info", version=swarmkeep.__version__) == 1


async def test_configured_token_is_always_required(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready, metrics_token="sesame")) as server:
        check_problem(await server.get("/metrics"), 401, "unauthenticated")
        assert (await server.get("/v1/sessions")).status_code == 200


# Whether requests are welcome, and what the server says of the MCP servers of its agents.

READY = "/health/ready"


def make_status(name: str, status: str) -> ServerStatus:
    return ServerStatus(name=name, address="x", status=status, error=None, tools=None)


def test_unresponsive_server_of_shared_name_told() -> None:
    found = [make_status("notes", "unreachable"), make_status("notes", "connected"), make_status("mail", "connected")]
    for servers in (found, found[::-1]):
        assert sum_up(servers) == {"notes": "unreachable", "mail": "connected"}


async def test_server_unable_to_record_is_unready(plain: RunningServer) -> None:
    session = await plain.session()
    with full_disk():
        assert (await plain.get(READY)).status_code == 200, "it does not know yet"
        check_problem(await plain.post("/v1/sessions", {}), 503, "store_unavailable")
        for _ in range(2):
            check_problem(await plain.get(READY), 503, "store_unavailable")
        assert (await plain.get(session)).status_code == 200
    assert (await plain.get(READY)).status_code == 200
