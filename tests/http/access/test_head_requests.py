"""HEAD: what GET would answer, without the body."""

from __future__ import annotations

import asyncio

from tests.http.server import PATIENCE_SECONDS, RunningServer

PATHS = ("/v1/sessions", "/v1/sessions/s1", "/v1/sessions/none", "/v1/agents", "/openai/v1/models", "/none")
SAME = ("content-type", "content-length", "etag")


async def test_head_matches_get_status_and_headers(plain: RunningServer) -> None:
    await plain.session(id="s1")
    for path in PATHS:
        # A compressed answer has another length, which only its body tells.
        got = await plain.get(path, headers={"Accept-Encoding": "identity"})
        answer = await plain.client.head(path)
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
