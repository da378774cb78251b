"""Access: other origins, HEAD, compression, long addresses, the ids of requests, and a server that stops."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI, InternalServerError
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from swarmkeep.http.parameters import takes_gzip
from swarmkeep.store.keys import parse_key_id
from tests.http.auth.keys import create_key, key_store
from tests.http.server import PATIENCE_SECONDS, RunningServer, check_problem, scripted, server_settings, start_server
from tests.support.growth import count_holders
from tests.support.log_lines import read_log_lines
from tests.support.scripted import ScriptedModel

GZIP = {"accept-encoding": "gzip"}
PLAIN = {"accept-encoding": "identity"}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, br", False),
        ("br", False),
        ("xgzip", False),
        ("", False),
    ],
)
def test_gzip_support_read_from_header(said: str, expected: bool) -> None:
    assert takes_gzip([(b"Accept-Encoding", said.encode())]) is expected


async def read_raw(service: RunningServer, path: str, headers: dict[str, str]) -> tuple[dict[str, str], bytes]:
    async with service.client.stream("GET", path, headers=headers) as answer:
        raw = b"".join([piece async for piece in answer.aiter_raw()])
        return dict(answer.headers), raw


@pytest.mark.parametrize("size", [10, 5_000, 500_000])
async def test_compressed_answer_has_same_content(plain: RunningServer, size: int) -> None:
    session = await plain.session(messages=[{"role": "user", "content": "ä" * size}])
    as_it_is, whole = await read_raw(plain, f"{session}/messages", PLAIN)
    compressed, small = await read_raw(plain, f"{session}/messages", GZIP)
    assert "content-encoding" not in as_it_is
    if size < 1_000:
        assert (compressed.get("content-encoding"), small) == (None, whole)
        return
    assert (compressed["content-encoding"], compressed["vary"]) == ("gzip", "Accept-Encoding")
    assert gzip.decompress(small) == whole
    assert int(compressed["content-length"]) == len(small) < len(whole) / 10
    # What the rest of the head says is the same.
    for name in ("content-type", "cache-control", "x-content-type-options"):
        assert compressed[name] == as_it_is[name]


async def test_streams_are_not_compressed(service: RunningServer, model: ScriptedModel) -> None:
    model.say("word " * 1_000)
    session = await service.session()
    body = {"input": "hello " * 1_000, "stream": True}
    async with service.client.stream("POST", f"{session}/runs", json=body, headers=GZIP) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in answer.headers
        text = b"".join([piece async for piece in answer.aiter_raw()])
    assert b"event: done" in text
    lines, _ = await read_raw(service, f"{session}/events", {**GZIP, "accept": "application/x-ndjson"})
    assert "content-encoding" not in lines


async def test_page_files_few_and_content_addressed(plain: RunningServer) -> None:
    headers, raw = await read_raw(plain, "/", GZIP)
    index = gzip.decompress(raw).decode()
    assert headers["cache-control"] == "no-cache"
    files = re.findall(r'(?:href|src)="(page/[0-9a-f]{16}/[\w.-]+)"', index)
    assert [path.rpartition("/")[2] for path in files] == ["page.css", "prefetch.js", "main.js"]
    sizes = len(raw)
    place = files[0].rpartition("/")[0]
    for path in (*files, f"{place}/timeline.js", f"{place}/highlighter.js"):
        headers, raw = await read_raw(plain, f"/{path}", GZIP)
        assert headers["cache-control"] == "public, max-age=31536000, immutable"
        assert (headers["content-encoding"], headers["vary"]) == ("gzip", "Accept-Encoding")
        assert "content-security-policy" in headers
        sizes += len(raw) if path in files else 0
        _, whole = await read_raw(plain, f"/{path}", PLAIN)
        assert gzip.decompress(raw) == whole
    # What the lists of agents and sessions take comes on top.
    assert sizes < 67_000


async def test_other_release_file_served_uncached(plain: RunningServer) -> None:
    answer = await plain.get("/page/0123456789abcdef/main.js")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")
    # Of a page from before they were joined, too.
    assert (await plain.get("/page/0123456789abcdef/dom.js")).headers["cache-control"] == "no-cache"
    for path in (
        "/page/0123456789abcdef/none.js",
        "/page/0123456789abcdef/..%2findex.html",
        "/page/none.js",
        "/page/0123456789abcdef/index.html",
    ):
        assert (await plain.get(path)).status_code == 404


# Pages of other origins: what their requests may carry, and that they can read every answer.

PAGE = "https://page.example"
# What Chromium asks of `openai.chat.completions.create` of the npm package openai 6.49.
OPENAI_JS = (
    "authorization,content-type,idempotency-key,openai-beta,openai-organization,openai-project,user-agent,"
    "x-session-id,x-stainless-arch,x-stainless-helper-method,x-stainless-lang,x-stainless-os,"
    "x-stainless-package-version,x-stainless-retry-count,x-stainless-runtime,x-stainless-runtime-version,"
    "x-stainless-timeout"
)


@pytest.fixture
async def named(sqlite_ready: str) -> AsyncIterator[RunningServer]:
    given = server_settings(database_url=sqlite_ready, cors_origins=PAGE, openai_session_headers="X-Chat")
    async with start_server(given) as service:
        yield service


async def preflight(
    service: RunningServer, wish: str, *, path: str = "/openai/v1/responses", origin: str = PAGE, method: str = "POST"
) -> httpx2.Response:
    asked = {"Origin": origin, "Access-Control-Request-Method": method, "Access-Control-Request-Headers": wish}
    return await service.client.options(path, headers=asked)


def list_allowed(answer: httpx2.Response) -> set[str]:
    return set(answer.headers.get("access-control-allow-headers", "").split(", "))


@pytest.mark.parametrize("path", ["/openai/v1/chat/completions", "/openai/v1/responses", "/v1/sessions", "/nowhere"])
async def test_preflight_allows_what_openai_js_sends(named: RunningServer, path: str) -> None:
    await create_key(named, "acme")
    answer = await preflight(named, f"{OPENAI_JS},x-stainless-of-tomorrow,x-chat", path=path)
    assert (answer.status_code, answer.content) == (204, b"")
    assert list_allowed(answer) >= {*OPENAI_JS.split(","), "x-stainless-of-tomorrow", "x-chat"}
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["vary"] == "Origin"
    assert {"POST", "DELETE"} <= set(answer.headers["access-control-allow-methods"].split(", "))


async def test_preflight_names_no_other_headers(named: RunningServer) -> None:
    hostile = ["x-forwarded-for", "x-stainless-", "x-stainless-a b", "x-stainless-" + "a" * 65, "*"]
    answer = await preflight(named, ", ".join([*hostile, *(f"X-Stainless-{number}" for number in range(500))]))
    allowed = list_allowed(answer)
    assert not allowed & set(hostile)
    assert sum(name.startswith("x-stainless-") for name in allowed) == 100


@pytest.mark.parametrize("origin", ["https://evil.example", f"{PAGE}.evil.example", "null"])
async def test_preflight_of_other_origins_allows_nothing(named: RunningServer, origin: str) -> None:
    answer = await preflight(named, OPENAI_JS, origin=origin)
    assert not [name for name in answer.headers if name.startswith("access-control-")]


async def test_pages_read_answers_and_every_refusal(named: RunningServer) -> None:
    await create_key(named, "acme")
    for method, path in (("GET", "/health/live"), ("POST", "/openai/v1/responses"), ("GET", "/v1/none"), ("PUT", "/")):
        answer = await named.client.request(method, path, headers={"Origin": PAGE})
        assert answer.headers.get_list("access-control-allow-origin") == [PAGE], path
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert {"X-Request-Id", "Retry-After", "X-Should-Retry"} <= set(exposed)
        assert "Origin" in answer.headers["vary"]


# HEAD: what GET would answer, without the body.

PATHS = (
    "/v1/sessions", "/v1/sessions/s1", "/v1/sessions/none", "/v1/agents", "/openai/v1/models", "/none",
    "/", "/page/main.js", "/docs", "/openapi.json", "/health/live",
)  # fmt: skip
SAME = ("content-type", "content-length", "etag")


async def test_head_matches_get_status_and_headers(plain: RunningServer) -> None:
    await plain.session(id="s1")
    for path in PATHS:
        got = await plain.get(path, headers=PLAIN)
        answer = await plain.client.head(path, headers=PLAIN)
        assert (answer.status_code, answer.content) == (got.status_code, b"")
        if path != "/none":
            assert [answer.headers.get(name) for name in SAME] == [got.headers.get(name) for name in SAME]


async def test_head_is_counted_for_its_route(plain: RunningServer) -> None:
    await plain.client.head("/v1/sessions/none")
    counted = 'swarmkeep_http_requests_total{method="HEAD",route="/v1/sessions/{session_id}",status="404"} 1.0'
    assert counted in (await plain.get("/metrics")).text.splitlines()


async def test_head_of_stream_leaves_no_reader(plain: RunningServer) -> None:
    session = await plain.session()
    async with asyncio.timeout(PATIENCE_SECONDS):
        for path in ("/v1/sessions", f"{session}/events"):
            answer = await plain.client.head(path, headers={"Accept": "text/event-stream"})
            assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            assert answer.content == b""


async def test_head_without_get_refused(plain: RunningServer) -> None:
    answer = await plain.client.head("/v1/sessions/s1/fork")
    assert (answer.status_code, answer.headers["allow"]) == (405, "OPTIONS, POST")


# What is left of requests with long addresses.

# In none of this file's own texts.
MARKER = "-".join(("long", "address"))


async def test_of_long_addresses_nothing_is_kept(plain: RunningServer) -> None:
    async def ask(numbers: range) -> tuple[int, dict[str, int]]:
        made = [f"{MARKER}-{number}" + "x" * 1000 for number in numbers]
        for long in made:
            for path in (f"/v1/sessions/{long}", f"/v1/sessions?metadata.team={long}", f"/docs?{long}=1", f"/{long}"):
                answer = await plain.get(path)
                assert answer.status_code in (200, 400, 404)
        for long in made:
            await plain.get("/v1/nowhere", headers={"Host": long})
        # Not every cache shows what it holds: the garbage collector passes over tuples of nothing but texts.
        return count_holders(MARKER), {one.__qualname__: one.cache_info().currsize for one in list_caches()}

    kept = await ask(range(6))
    assert await ask(range(6, 15)) == kept


def list_caches() -> Iterator[Any]:
    """The framework's functions that keep what they were called with."""
    for module in [module for name, module in sys.modules.items() if name.startswith("litestar")]:
        for one in vars(module).values():
            members = [getattr(one, name, None) for name in vars(one)] if isinstance(one, type) else [one]
            yield from (member for member in members if hasattr(member, "cache_info"))


# Every answer carries an id, a caller's own if it is usable, and the log lines of the request carry it, too.

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


# A request that was still under way when its server had waited long enough.


def cut_off(service: RunningServer) -> None:
    """What the HTTP server does at last with requests that are under way."""
    for connection in service.connections:
        for task in connection.tasks:
            task.cancel()


@pytest.mark.one_database
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
