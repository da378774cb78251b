"""Clients that send slowly, or never, or without end: none holds memory or a connection for ever, or stops others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from swarmkeep.http.bodies import MAX_FILES, UNCOUNTED_BYTES, BodyLimits
from swarmkeep.http.metrics import ServerLimits
from tests.http.server import RunningServer, check_problem, scripted, server_settings, start_server
from tests.support.pictures import make_inline_picture, make_message, make_png
from tests.support.scripted import ScriptedModel
from tests.support.waiting import wait_until

PATIENCE_SECONDS = 20
HEAD = b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\n"


LIMITS = {
    "body": ServerLimits(body_seconds=0.05),
    "head": ServerLimits(head_seconds=0.05),
    "next head": ServerLimits(head_seconds=0.5),
}


@pytest.fixture
async def hasty(request: pytest.FixtureRequest, sqlite_ready: str) -> AsyncIterator[RunningServer]:
    """A server that does not wait for one thing."""
    async with start_server(server_settings(database_url=sqlite_ready), LIMITS[request.param]) as running:
        yield running


def in_haste(for_what: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("hasty", [for_what], indirect=True)


@asynccontextmanager
async def open_connection(service: RunningServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = service.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def read_rest(reader: asyncio.StreamReader) -> bytes:
    """All that the server still sends, once it has closed the connection."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"Content-Length: 100\r\n\r\n",
        HEAD + b"Content-Length: 100\r\n\r\n{",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Trailer: 1\r\n",
        HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n",
        HEAD + b"Idempotency-Key: k\r\nContent-Length: 100\r\n\r\n",
    ],
    ids=["no body", "a piece", "chunks", "trailers", "asked first", "with a key"],
)
@in_haste("body")
async def test_missing_body_is_not_awaited(hasty: RunningServer, caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    async with open_connection(hasty) as (reader, writer):
        writer.write(sent)
        answer = (await read_rest(reader)).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in answer.lower()
    assert b'"code":"request_timeout"' in answer
    assert (await hasty.get("/v1/sessions")).json()["data"] == []
    assert caplog.text == ""


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET", HEAD, HEAD + b"X-Slow: "], ids=range(5))
@in_haste("head")
async def test_missing_request_is_not_awaited(hasty: RunningServer, sent: bytes) -> None:
    async with open_connection(hasty) as (reader, writer):
        writer.write(sent)
        assert await read_rest(reader) == b""


@in_haste("head")
async def test_second_request_has_its_own_time(hasty: RunningServer) -> None:
    async with open_connection(hasty) as (reader, writer):
        writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health/l")
        assert (await read_rest(reader)).count(b"HTTP/1.1 200 ") == 1


async def send_until_cut_off(writer: asyncio.StreamWriter, first: bytes, endless: bytes) -> None:
    writer.write(first)
    async with asyncio.timeout(PATIENCE_SECONDS):
        with suppress(ConnectionError):
            while True:
                writer.write(endless)
                await writer.drain()


@pytest.mark.parametrize("endless", [b"X: " + b"x" * 1000 + b"\r\n", b"x" * 1000], ids=["headers", "one header"])
async def test_endless_head_is_cut_off(plain: RunningServer, endless: bytes) -> None:
    async with open_connection(plain) as (_, writer):
        await send_until_cut_off(writer, HEAD + b"X: ", endless)
    assert (await plain.get("/health/live")).status_code == 200


async def test_large_head_within_limit_read(plain: RunningServer) -> None:
    answer = await plain.get("/health/live", headers={f"x-{number}": "x" * 5000 for number in range(10)})
    assert answer.status_code == 200


@in_haste("next head")
async def test_endless_body_refused_then_cut(hasty: RunningServer) -> None:
    piece = b"186a0\r\n" + b" " * 100_000 + b"\r\n"
    async with open_connection(hasty) as (reader, writer):
        answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        await send_until_cut_off(writer, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", piece)
        assert (await answer).startswith(b"HTTP/1.1 413 ")


async def test_thirty_megabytes_refused_next_request_answered(plain: RunningServer) -> None:
    answer = await plain.client.post("/v1/sessions", content=b" " * 30_000_000)
    check_problem(answer, 413, "too_large")
    assert (await plain.get("/health/live")).status_code == 200


async def test_idle_connections_do_not_stop_others(plain: RunningServer) -> None:
    async with AsyncExitStack() as idle:
        for number in range(300):
            _, writer = await idle.enter_async_context(open_connection(plain))
            writer.write((b"", HEAD, HEAD + b"Content-Length: 100\r\n\r\n{")[number % 3])
        session = await plain.session()
        assert (await plain.run(session))["status"] == "completed"
        assert (await plain.get("/health/ready")).status_code == 200


@asynccontextmanager
async def send_partial_body(
    service: RunningServer, path: str, size: int, announced: int
) -> AsyncIterator[asyncio.StreamReader]:
    """A request whose body has come up to `size`, and does not come any further."""
    async with open_connection(service) as (reader, writer):
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {announced}\r\n\r\n"
        writer.write(head.encode() + b" " * size)
        await writer.drain()
        yield reader


async def test_slow_bodies_bounded_in_memory(plain: RunningServer) -> None:
    body_limits = plain.app.state.body_limits = BodyLimits(1_000_000)
    async with AsyncExitStack() as slow:
        for number in range(1, 4):
            await slow.enter_async_context(send_partial_body(plain, "/v1/sessions", 300_000, 400_000))
            await wait_until(lambda held=number * (300_000 - UNCOUNTED_BYTES): body_limits.held_bytes == held)
        large = await plain.client.post("/v1/sessions", json={"context_variables": {"a": "x" * 500_000}})
        assert check_problem(large, 503, "overloaded")["detail"].startswith("too many large requests")
        assert large.headers["retry-after"] == "1"
        # Everyday requests get through.
        assert (await plain.run(await plain.session()))["status"] == "completed"
    # Those that have gone hold nothing any more.
    await wait_until(lambda: not body_limits.held_bytes)
    large = await plain.client.post("/v1/sessions", json={"context_variables": {"a": "x" * 500_000}})
    assert large.status_code == 201


@in_haste("body")
async def test_missing_file_is_not_awaited(hasty: RunningServer) -> None:
    async with send_partial_body(hasty, "/v1/import", 1000, 100_000) as reader:
        assert b'"code":"request_timeout"' in await read_rest(reader)


async def test_simultaneous_uploads_are_limited(plain: RunningServer) -> None:
    body_limits = plain.app.state.body_limits
    async with AsyncExitStack() as slow:
        for number in range(MAX_FILES):
            await slow.enter_async_context(send_partial_body(plain, "/v1/import", 10, 1000))
            await wait_until(lambda begun=number + 1: body_limits.file_count == begun)
        check_problem(await plain.client.post("/v1/import", content=b"{}"), 503, "overloaded")
        assert (await plain.get("/v1/sessions")).status_code == 200
    await wait_until(lambda: not body_limits.file_count)
    check_problem(await plain.client.post("/v1/import", content=b"{}"), 400, "invalid_import")


async def test_rebuilt_requests_wait_for_slow_readers(sqlite_ready: str, model: ScriptedModel) -> None:
    """Requests with files are let in by their bytes, until what was rebuilt is sent, or its reader left."""
    limits = ServerLimits(rebuilt_bytes=80_000_000)
    async with start_server(scripted(sqlite_ready, model), limits) as service:
        path = await service.session()
        for seed in range(2):
            model.say("A cat.")
            run = await service.run(path, [make_message(make_inline_picture(make_png(4_900_000, seed)))])
        budget = service.service.rebuilds
        url = f"{path}/events/{run['messages'][-1]['seq']}/request"
        async with AsyncExitStack() as opened:
            first = await opened.enter_async_context(service.client.stream("GET", url))
            second = await opened.enter_async_context(service.client.stream("GET", url))
            assert 2 * 35_000_000 <= budget.used <= limits.rebuilt_bytes
            others = [asyncio.create_task(service.get(url)) for _ in range(6)]
            while not budget.is_awaited:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert budget.used <= limits.rebuilt_bytes
            assert not any(task.done() for task in others)
            await first.aclose()
            whole = await second.aread()
            assert {answer.content for answer in await asyncio.gather(*others)} == {whole}
        assert whole == model.raw_requests[1]
        while budget.used:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_items_with_files_wait_for_slow_readers(sqlite_ready: str, model: ScriptedModel) -> None:
    limits = ServerLimits(rebuilt_bytes=60_000_000)
    async with start_server(scripted(sqlite_ready, model, max_body_bytes=30_000_000), limits) as service:
        path = await service.session()
        model.say("Cats.")
        await service.run(path, [make_message(*(make_inline_picture(make_png(4_900_000, seed)) for seed in range(3)))])
        budget = service.service.rebuilds
        items = f"/openai/v1/conversations/{path.rpartition('/')[2]}/items"
        shown = (await service.get(f"{items}?order=asc")).json()["data"][0]
        for url in (f"{items}?order=asc", f"{items}/{shown['id']}"):
            await wait_until(lambda: budget.used == 0)
            async with service.client.stream("GET", url) as first:
                assert 3 * 4_900_000 * 3 <= budget.used <= limits.rebuilt_bytes
                other = asyncio.create_task(service.get(url))
                await wait_until(lambda: budget.is_awaited)
                assert not other.done()
                whole = await first.aread()
            assert (await other).content == whole
