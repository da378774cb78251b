"""Every answer carries an id, a caller's own if it is usable, and the log lines of the request carry it, too."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from swarmkeep.store.keys import parse_key_id
from tests.http.auth.keys import create_key, key_store
from tests.http.server import RunningServer, check_problem, scripted, server_settings, start_server
from tests.support.log_lines import read_log_lines
from tests.support.scripted import ScriptedModel

MINE = {"X-Request-Id": "mine-1"}


@pytest.fixture
async def locked(sqlite_ready: str) -> AsyncIterator[RunningServer]:
    settings = server_settings(database_url=sqlite_ready, cors_origins=["https://page.example"])
    async with start_server(settings) as running:
        await key_store(running).create("default", role="read")
        yield running


async def test_caller_request_id_is_returned(plain: RunningServer) -> None:
    for sent in ("mine-1", "a b", "x" * 128, '{"a": "1"}'):
        assert (await plain.get("/v1/agents", headers={"X-Request-Id": sent})).headers["x-request-id"] == sent


async def test_unloggable_request_id_is_replaced(plain: RunningServer) -> None:
    answers = [await plain.get("/v1/agents")]
    for sent in (b"", b"x" * 129, b"a\tb", b"\xc3\xa9", b"a\x85b"):
        answers.append(await plain.get("/v1/agents", headers=httpx2.Headers([(b"x-request-id", sent)])))
    two = httpx2.Headers([("x-request-id", "a"), ("x-request-id", "b")])
    answers.append(await plain.get("/v1/agents", headers=two))
    made = [answer.headers["x-request-id"] for answer in answers]
    assert all(answer.status_code == 200 for answer in answers)
    assert all(found.startswith("req_") and len(found) == 36 for found in made)
    assert len(set(made)) == len(made)


async def test_refusals_of_every_kind_carry_it(locked: RunningServer) -> None:
    assert check_problem(await locked.get("/v1/agents", headers=MINE), 401, "unauthenticated")
    for method, path, status in (
        ("GET", "/v1/agents", 401),
        ("GET", "/nowhere", 404),
        ("PUT", "/health/live", 405),
        ("GET", "/metrics", 401),
        ("GET", "/health/ready?a=1", 400),
        ("GET", "/health/ready", 200),
        ("GET", "/", 200),
        ("GET", "/openapi.json", 200),
    ):
        answer = await locked.client.request(method, path, headers=MINE)
        assert (answer.status_code, answer.headers.get_list("x-request-id")) == (status, ["mine-1"]), path
    asked = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    preflight = await locked.client.options("/v1/sessions", headers=asked | MINE)
    assert preflight.headers["x-request-id"] == "mine-1"
    assert {"x-request-id", "x-session-id"} <= set(preflight.headers["access-control-allow-headers"].split(", "))
    read = await locked.get("/v1/agents", headers={"Origin": "https://page.example"})
    assert {"X-Request-Id", "X-Session-Id"} <= set(read.headers["access-control-expose-headers"].split(", "))


async def test_error_body_has_no_request_id(plain: RunningServer) -> None:
    """Two callers who ask for the same are told the same: what tells them apart stands in the head."""
    one, two = [await plain.get("/v1/sessions/none") for _ in range(2)]
    assert one.headers["x-request-id"] != two.headers["x-request-id"]
    assert one.content == two.content


async def test_streams_carry_it(plain: RunningServer) -> None:
    session = await plain.session()
    async with plain.stream(f"{session}/runs", {"input": "hi", "stream": True}, method="POST", x_request_id="s") as run:
        assert run.answer.headers["x-request-id"] == "s"
        await run.read_rest()


async def test_handshakes_carry_it(locked: RunningServer) -> None:
    url = f"{locked.url.replace('http', 'ws', 1)}/v1/sessions/s/live"
    for path, status in ((url, 401), (f"{url}/nowhere", 403)):
        with pytest.raises(InvalidStatus) as refused:
            await connect(path, additional_headers=MINE).__aenter__()
        assert refused.value.response.status_code == status
        assert refused.value.response.headers.get_all("x-request-id") == ["mine-1"]


async def test_a_connection_carries_it(sqlite_ready: str) -> None:
    with read_log_lines() as lines:
        async with start_server(server_settings(database_url=sqlite_ready)) as service:
            session = await service.session()
            url = f"{service.url.replace('http', 'ws', 1)}{session}/live"
            async with connect(url, additional_headers=MINE) as socket:
                assert socket.response is not None
                assert socket.response.headers.get_all("x-request-id") == ["mine-1"]
                assert json.loads(await socket.recv())["event"] == "session.created"
    line = lines.read("swarmkeep.http.access")[-1]
    assert (line["method"], line["path"], line["status"]) == ("WebSocket", f"{session}/live", 101)
    assert (line["request_id"], line["tenant"]) == ("mine-1", "default")


async def test_each_request_is_a_line(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready)) as service:
        key = await create_key(service, "acme", name="billing")
        secret = key["Authorization"].removeprefix("Bearer ")
        with read_log_lines() as lines:
            headers = key | MINE
            created = await service.post("/v1/sessions?", {"id": "s"}, headers=headers)
            missing = await service.get("/v1/sessions/gone/messages?limit=1", headers=headers)
            refused = await service.get("/v1/agents", headers=MINE)
            await service.get("/health/live")
    assert [answer.status_code for answer in (created, missing, refused)] == [201, 404, 401]
    found = lines.read("swarmkeep.http.access")
    assert all(0 < line.pop("duration_ms") < 60_000 and line.pop("time") and line.pop("message") for line in found)
    common = {"level": "info", "logger": "swarmkeep.http.access", "request_id": "mine-1"}
    caller = {"tenant": "acme", "key": f"{parse_key_id(secret)} (billing)"}
    assert found == [
        {**common, **caller, "method": "POST", "path": "/v1/sessions", "status": 201},
        {
            **common,
            **caller,
            "method": "GET",
            "path": "/v1/sessions/gone/messages",
            "status": 404,
            "session_id": "gone",
        },
        {**common, "method": "GET", "path": "/v1/agents", "status": 401},
    ]
    assert secret not in json.dumps(lines.read())
    (told,) = lines.read("swarmkeep.http.auth")
    assert told["request_id"] == "mine-1"


async def test_lines_can_be_turned_off(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready, access_log=False)) as service:
        with read_log_lines() as lines:
            answer = await service.get("/v1/agents", headers=MINE)
    assert answer.headers["x-request-id"] == "mine-1"
    assert lines.read("swarmkeep") == []


async def test_run_logged_with_its_request(ready_url: str, model: ScriptedModel) -> None:
    async with start_server(scripted(ready_url, model, model_retries=1)) as service:
        session = await service.session(id="s")
        model.fail(503)
        model.say("Hello.")
        with read_log_lines() as lines:
            answer = await service.post(f"{session}/runs", {"input": "hi"}, headers=MINE)
    run_id = answer.json()["id"]
    (retry,) = lines.read("swarmkeep.models")
    assert {"request_id": "mine-1", "session_id": "s", "run_id": run_id, "attempt": 1}.items() <= retry.items()
    (access,) = lines.read("swarmkeep.http.access")
    assert {"request_id": "mine-1", "session_id": "s", "run_id": run_id}.items() <= access.items()


async def test_waiting_run_keeps_its_own_request(ready_url: str, model: ScriptedModel) -> None:
    async with start_server(scripted(ready_url, model, model_retries=1)) as service:
        session = await service.session(id="s")
        model.hang(then="One.")
        await service.post(f"{session}/runs", {"input": "one", "background": True}, headers=MINE)
        await model.wait_for_requests_async(1)
        body = {"input": "two", "background": True, "on_busy": "queue"}
        second = (await service.post(f"{session}/runs", body, headers={"X-Request-Id": "other"})).json()
        model.fail(503)
        model.say("Two.")
        with read_log_lines() as lines:
            model.release()
            frames = await service.read_stream(f"{session}/runs/{second['id']}/stream")
    assert frames[-1].data["output_text"] == "Two."
    (retry,) = lines.read("swarmkeep.models")
    assert {"session_id": "s", "run_id": second["id"]}.items() <= retry.items()
    assert "request_id" not in retry
