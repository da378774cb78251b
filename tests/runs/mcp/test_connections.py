"""The way to the servers themselves: over HTTP, through reconnections, and without the client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.shared.message import SessionMessage
from mcp.types import INTERNAL_ERROR, JSONRPCNotification, JSONRPCRequest

from swarmkeep import Agent, MCPServer, Swarm
from swarmkeep.agent import ToolFailed
from swarmkeep.events.codec import encode_text
from swarmkeep.mcp.pool import ServerPool, list_offered, open_client
from swarmkeep.mcp.transports import (
    Bound,
    BoundedBody,
    BoundedCookieJar,
    CheckedStream,
    ConnectionLimits,
    LineReader,
    MessageLimits,
    ServerFlooded,
    open_http,
)
from swarmkeep.runs import tool_servers
from swarmkeep.runs.agents import AgentsError
from swarmkeep.runs.tool_servers import check_client
from tests.support.growth import find_texts
from tests.support.processes import free_port
from tests.support.waiting import wait_until

PROGRAM = Path(__file__).parents[2] / "support" / "mcp" / "server.py"
TOKEN = "a-token-of-mine"


@pytest.fixture
async def pool() -> AsyncIterator[ServerPool]:
    opened = ServerPool()
    yield opened
    await opened.close()


def start_http(folder: Path, port: int) -> subprocess.Popen[bytes]:
    env = {**os.environ, "MCP_TEST_FOLDER": str(folder)}
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), "http", str(port)], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


async def call_until_it_answers(pool: ServerPool, server: MCPServer) -> str:
    async with asyncio.timeout(120):
        while True:
            try:
                return (await pool.call("", server, "add", {"a": 1, "b": 2}, "call_1")).value
            except ToolFailed:
                await asyncio.sleep(0.05)


@pytest.mark.long
async def test_http_server_is_found_after_outage(pool: ServerPool, tmp_path: Path) -> None:
    port = free_port()
    server = MCPServer(url=f"http://127.0.0.1:{port}/mcp", headers={"Authorization": f"Bearer {TOKEN}"})
    assert (await pool.find_tools("", server)).tools is None
    process = start_http(tmp_path, port)
    try:
        assert await call_until_it_answers(pool, server) == "3"
        offer = await pool.find_tools("", server)
        assert "add" in [tool.name for tool in offer.tools or ()]
        with pytest.raises(ToolFailed, match="larger than 4,000,000 bytes"):
            await pool.call("", server, "shout", {"length": 5_000_000}, "call_2")
        hanging = asyncio.create_task(pool.call("", server, "hang", {}, "call_3"))
        await wait_until(lambda: (tmp_path / "hangs").exists())
        hanging.cancel()
        await wait_until(lambda: (tmp_path / "hangs").read_text().split() == ["begun", "cancelled"])
        with pytest.raises(ToolFailed, match="may or may not have taken effect"):
            await pool.call("", server, "die", {}, "call_4")
        process.wait()
        process = start_http(tmp_path, port)
        assert await call_until_it_answers(pool, server) == "3"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert TOKEN not in str(pool.list_statuses())


async def test_missing_program_is_named(pool: ServerPool) -> None:
    server = MCPServer(command=["no-such-program-here"])
    offer = await pool.find_tools("", server)
    assert (offer.tools, offer.error) == (None, "there is no program 'no-such-program-here'")
    with pytest.raises(ToolFailed, match="it did not run: the MCP server no-such-program-here cannot be reached"):
        await pool.call("", server, "add", {}, "call_1")


Answer = Callable[[dict[str, Any]], bytes]


class WaitingServer(ThreadingHTTPServer):
    # It is closed when all its connections are.
    daemon_threads = False


@asynccontextmanager
async def serve(answer: Answer) -> AsyncIterator[MCPServer]:
    """A server over HTTP that answers each message with the bytes that `answer` gives for it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            # Whoever asked may be gone already.
            with suppress(ConnectionError, ValueError):
                self.wfile.write(answer(json.loads(self.rfile.read(int(self.headers["content-length"])))))

    listening = WaitingServer(("127.0.0.1", 0), Handler)
    serving = asyncio.create_task(asyncio.to_thread(listening.serve_forever, 0.01))
    try:
        yield MCPServer(url=f"http://127.0.0.1:{listening.server_port}/mcp", name="files", connect_timeout=20)
    finally:
        await asyncio.to_thread(listening.shutdown)
        await serving
        await asyncio.to_thread(listening.server_close)


def write_answer(status: int, media_type: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} No\r\ncontent-type: {media_type}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
    return f"{head}\r\n".encode() + body


def write_result(message: dict[str, Any]) -> bytes:
    """What a server of an older version of the protocol answers, that has one tool."""
    results: dict[str, dict[str, Any]] = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "files", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "read", "inputSchema": {"type": "object"}}]},
    }
    result = results.get(message.get("method", ""))
    if result is None:
        return write_answer(404 if "id" in message else 202, "text/plain", b"")
    text = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
    return write_answer(200, "application/json", text.encode())


REFUSED = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no room"}}'


@pytest.mark.parametrize(
    ("status", "media_type", "body", "reason"),
    [
        (401, "text/html", b"no!\n", "it answered with HTTP status 401 Unauthorized"),
        (401, "application/json", REFUSED, "it answered with HTTP status 401 Unauthorized"),
        (599, "text/html", b"no!\n", "it answered with HTTP status 599"),
        (405, "text/html", b"no!\n", "it answered with HTTP status 405 Method Not Allowed"),
        (404, "text/html", b"no!\n", "Not Found"),
        (500, "application/json", b'{"detail": "no!"}', "it answered with HTTP status 500 Internal Server Error"),
        (500, "application/json", b'{"error": {"code": 1}}', "it answered with HTTP status 500 Internal Server Error"),
        (500, "application/json", b"no!\n", "it answered with HTTP status 500 Internal Server Error"),
        (
            413,
            "application/json",
            REFUSED + b" " * 4_000_000,
            # Python's names for some have changed.
            f"it answered with HTTP status 413 {HTTPStatus(413).phrase}",
        ),
        (500, "application/json", REFUSED, "no room"),
    ],
)
async def test_refusing_server_is_told_with_status(
    pool: ServerPool, status: int, media_type: str, body: bytes, reason: str
) -> None:
    async with serve(lambda message: write_answer(status, media_type, body)) as server:
        pool.open(server, "")
        await wait_until(lambda: [status.error for status in pool.list_statuses()] == [reason])


@pytest.mark.parametrize(
    ("limits", "events", "reason"),
    [
        (MessageLimits(message_bytes=3000), b"data: " + b"y" * 4000, "it is larger than 3,000 bytes"),
        (MessageLimits(message_values=100), b"data: [" + b"1," * 200, "it has more than 100 values"),
        (MessageLimits(window_messages=100), b": idle\n\n" * 200, "it sends too much at once"),
        (MessageLimits(window_lines=100), b":\n" * 101, "it sends too much at once"),
    ],
)
async def test_unread_event_stream_reason_reaches_model(limits: MessageLimits, events: bytes, reason: str) -> None:
    def answer(message: dict[str, Any]) -> bytes:
        if message.get("method") != "tools/call":
            return write_result(message)
        return write_answer(200, "text/event-stream", events)

    limited = ServerPool(ConnectionLimits(messages=limits))
    try:
        async with serve(answer) as server:
            with pytest.raises(ToolFailed) as failed:
                await limited.call("", server, "read", {}, "call_1")
        assert str(failed.value) == (
            "the connection to files was lost before it answered (SSE stream failed: a message of it is not read, "
            f"because {reason}). It may or may not have taken effect"
        )
    finally:
        await limited.close()


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({"content": [1] * 16_000}, "its answer is not read, because it has more than 6,000 values outside of schemas"),
        ({"content": [1] * 5_000}, "what it answered is not what the protocol asks for, in many places"),
        ({"content": [], "structuredContent": {"a": [1] * 16_000}}, ""),
    ],
)
async def test_values_to_check_are_bounded(pool: ServerPool, result: dict[str, Any], reason: str) -> None:
    """Also over HTTP; what the client does not look at may be larger."""

    def answer(message: dict[str, Any]) -> bytes:
        if message.get("method") != "tools/call":
            return write_result(message)
        text = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
        return write_answer(200, "application/json", text.encode())

    async with serve(answer) as server:
        calling = pool.call("", server, "read", {}, "call_1")
        if not reason:
            assert (await calling).value == encode_text(result["structuredContent"])
            return
        with pytest.raises(ToolFailed, match=reason):
            await calling


async def test_large_requests_of_servers_are_emptied() -> None:
    to_client, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](2)
    asked = {"messages": [{"role": "user"}] * 4_000}
    for request in (
        JSONRPCRequest(jsonrpc="2.0", id=1, method="sampling/createMessage", params=asked),
        JSONRPCNotification(jsonrpc="2.0", method="notifications/x", params={"a": 1}),
    ):
        to_client.send_nowait(SessionMessage(request))
    to_client.close()
    async with CheckedStream(incoming, MessageLimits()) as stream:
        assert [item.message.params async for item in stream] == [{}, {"a": 1}]  # type: ignore[union-attr]


class Forgetful:
    """Answers as a server with sessions does. It forgets one after its list of tools, and with `always` any."""

    def __init__(self, *, always: bool) -> None:
        self.asked: list[str] = []
        self._always = always
        self._sessions = 0

    def __call__(self, message: dict[str, Any]) -> bytes:
        method = str(message.get("method"))
        self.asked.append(method)
        if method == "initialize":
            self._sessions += 1
            session = f"\r\nmcp-session-id: {self._sessions}\r\ncontent-type:".encode()
            return write_result(message).replace(b"\r\ncontent-type:", session)
        if method == "tools/call" and (self._always or self._sessions == 1):
            return write_answer(404, "application/json", FORGOTTEN)
        if method == "tools/call":
            result = {"content": [{"type": "text", "text": "read"}]}
            text = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
            return write_answer(200, "application/json", text.encode())
        return write_result(message)


FORGOTTEN = b'{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Session not found"}}'


async def test_forgotten_session_is_retried_once(pool: ServerPool) -> None:
    forgetful = Forgetful(always=False)
    async with serve(forgetful) as server:
        calls = [pool.call("", server, "read", {}, f"call_{number}") for number in range(3)]
        assert [given.value for given in await asyncio.gather(*calls)] == ["read"] * 3
    assert forgetful.asked.count("initialize") == 2


async def test_session_forgetting_server_is_told_to_model(pool: ServerPool) -> None:
    forgetful = Forgetful(always=True)
    async with serve(forgetful) as server:
        with pytest.raises(ToolFailed, match="it did not run: it does not know the session any more"):
            await pool.call("", server, "read", {}, "call_1")
    assert forgetful.asked.count("tools/call") == 2


async def ignore_message(message: object) -> None:
    """As one who waits for nothing."""


async def test_first_server_cookies_are_kept_updated() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.headers.get("cookie", ""))
        made_up = [("set-cookie", f"c{len(asked)}-{number}=x; Path=/") for number in range(30)]
        node = ("set-cookie", f"node={len(asked)}; Path=/")
        return httpx2.Response(200, headers=[node, ("set-cookie", f"long={'x' * 5000}; Path=/"), *made_up])

    asked: list[str] = []
    jar = BoundedCookieJar()
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), cookies=jar) as client:
        for _ in range(8):
            await client.get("http://files.example/mcp")
    assert len({len(cookies.split("; ")) for cookies in asked[2:]}) == 1
    assert len(jar) == 50
    assert [cookies.split("; ")[0] for cookies in asked[1:]] == [f"node={number}" for number in range(1, 8)]


async def test_unlisted_tools_are_not_kept() -> None:
    def answer(message: dict[str, Any]) -> bytes:
        if message.get("method") != "tools/list":
            return write_result(message)
        page = (message.get("params") or {}).get("cursor", "0")
        lists.append(page)
        tools = [{"name": f"tool-{len(lists):04}-{n}", "inputSchema": {"type": "object"}} for n in range(5)]
        result = {"tools": tools} | ({"nextCursor": "1"} if page == "0" else {})
        return write_answer(
            200, "application/json", json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        )

    lists: list[str] = []
    kept: list[int] = []
    async with serve(answer) as server, open_client(open_http(server, MessageLimits()), ignore_message) as client:
        for _ in range(2):
            for _ in range(5):
                offered, _left = await list_offered(client, server)
                assert len(offered) == 10
            kept.append(len(find_texts(client, "tool-")))
    assert kept == [10, 10]


async def test_oversized_offers_are_logged_by_name(pool: ServerPool, caplog: pytest.LogCaptureFixture) -> None:
    def answer(message: dict[str, Any]) -> bytes:
        if message.get("method") != "tools/list":
            return write_result(message)
        tools = [
            {"name": name, "inputSchema": {"type": "object", "title": "y" * size}}
            for name, size in (("read", 1), ("write", 64_000))
        ]
        text = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"tools": tools}})
        return write_answer(200, "application/json", text.encode())

    async with serve(answer) as server:
        offer = await pool.find_tools("", server)
    assert [tool.name for tool in offer.tools or ()] == ["read"]
    assert "MCP server files: some tools are not offered, because they are too large or too many: write" in caplog.text


@pytest.mark.parametrize(
    ("per_page", "wanted", "left", "pages"),
    [
        (1, None, "all after page 50 of its list, which has more pages", 50),
        (100, None, "all after page 9 of its list, which has more pages, tool-200, tool-201", 9),
        (1, ("tool-3", "late"), "late (not on the first 50 pages of its list, which has more)", 50),
        (1, ("tool-3",), "", 50),
    ],
)
async def test_tools_on_unread_pages_are_named(
    pool: ServerPool,
    caplog: pytest.LogCaptureFixture,
    per_page: int,
    wanted: tuple[str, ...] | None,
    left: str,
    pages: int,
) -> None:
    def answer(message: dict[str, Any]) -> bytes:
        if message.get("method") != "tools/list":
            return write_result(message)
        page = int((message.get("params") or {}).get("cursor", "0"))
        asked.append(page)
        numbers = range(page * per_page, (page + 1) * per_page)
        tools = [{"name": f"tool-{number}", "inputSchema": {"type": "object"}} for number in numbers]
        result = {"tools": tools, "nextCursor": str(page + 1)}
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
        return write_answer(200, "application/json", body.encode())

    asked: list[int] = []
    async with serve(answer) as server:
        offer = await pool.find_tools("", server.model_copy(update={"tools": wanted}))
        assert len(offer.tools or ()) == min(200, per_page * 50 if wanted is None else 1)
        (status,) = pool.list_statuses()
    assert asked == list(range(pages))
    assert status.left.startswith(left)
    assert bool(status.left) == bool(left) == ("some tools are not offered" in caplog.text)
    assert left in caplog.text


async def test_one_server_serves_tools_per_agent(pool: ServerPool) -> None:
    raw = [sys.executable, str(PROGRAM.with_name("raw_server.py"))]
    for wanted in (("ok",), ("odd", "flood"), ("flood", "odd")):
        offer = await pool.find_tools("", MCPServer(command=raw, name="raw", tools=wanted))
        assert {tool.name for tool in offer.tools or ()} == set(wanted)
    assert len(pool.list_statuses()) == 2


class Pieces(httpx2.AsyncByteStream):
    def __init__(self, stream: bytes, size: int) -> None:
        self._pieces = [stream[start : start + size] for start in range(0, len(stream), size)]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n"])
async def test_event_ends_survive_stream_cuts(end: bytes) -> None:
    stream = (b"data: 1,2,3" + end) * 20
    limits = MessageLimits(message_bytes=30, window_messages=20)
    for size in range(1, 12):
        body = BoundedBody(Pieces(stream, size), Bound(limits, time.monotonic), is_streamed=True)
        assert b"".join([piece async for piece in body]) == stream


async def test_silent_program_times_out_by_setting(pool: ServerPool) -> None:
    server = MCPServer(command=[sys.executable, "-c", "import sys; sys.stdin.read()"], name="mute", connect_timeout=0.5)
    assert (await pool.find_tools("", server)).tools is None
    await wait_until(lambda: pool.list_statuses()[0].error == "it did not answer within 0.5 s")


async def test_closed_pool_leaves_no_process(tmp_path: Path) -> None:
    program = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    opened = ServerPool()
    opened.open(MCPServer(command=[sys.executable, "-c", program], name="stubborn"), "")
    await wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    await opened.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_session_connections_are_bounded(tmp_path: Path) -> None:
    program = f"import os, sys; open({str(tmp_path)!r} + '/' + str(os.getpid()), 'w').close(); sys.stdin.read()"
    command = [sys.executable, "-c", program]
    server = MCPServer(command=command, name="mute", scope="session", connect_timeout=600)
    limited = ServerPool(ConnectionLimits(session_connections=2))
    try:
        asking = [asyncio.create_task(limited.find_tools(name, server)) for name in ("first", "second")]
        await wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        offer = await limited.find_tools("third", server)
        full = "all 2 connections to MCP servers that sessions may have are in use"
        assert (offer.tools, offer.error) == (None, full)
        with pytest.raises(ToolFailed, match=f"it did not run: {full}"):
            await limited.call("third", server, "add", {}, "call_1")
        asking[1].cancel()
        await asyncio.wait(asking[1:])
        asking.append(asyncio.create_task(limited.find_tools("third", server)))
        await wait_until(lambda: len(list(tmp_path.iterdir())) == 3)
        assert sorted(map(is_running, os.listdir(tmp_path))) == [False, True, True]
    finally:
        await limited.close()
        await asyncio.gather(*asking, return_exceptions=True)


@pytest.mark.long
async def test_new_connections_wait_for_room(tmp_path: Path) -> None:
    # It notes its own number, and those that run beside it; it does not end when it is asked to.
    program = f"""
import os, pathlib, time
def is_running(pid):
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True
folder = pathlib.Path({str(tmp_path)!r})
beside = [other.name for other in folder.iterdir() if not other.suffix and is_running(other.name)]
(folder / (str(os.getpid()) + ".new")).write_text(" ".join(beside))
(folder / (str(os.getpid()) + ".new")).rename(folder / str(os.getpid()))
time.sleep(600)
"""
    command = [sys.executable, "-c", program]
    server = MCPServer(command=command, name="mute", scope="session", connect_timeout=600)
    limited = ServerPool(ConnectionLimits(session_connections=1))
    asking = [asyncio.create_task(limited.find_tools("first", server))]
    try:
        await wait_until(lambda: len(list(tmp_path.iterdir())) == 1)
        asking[0].cancel()
        await asyncio.wait(asking)
        asking += [asyncio.create_task(limited.find_tools("second", server)) for _ in range(2)]
        await asyncio.wait(asking[1:], timeout=0)
        # Nor is the place taken from those that wait for it.
        assert (await limited.find_tools("third", server)).error is not None
        await wait_until(lambda: sum(not one.suffix for one in tmp_path.iterdir()) == 2)
        assert await asyncio.to_thread(lambda: [one.read_text() for one in tmp_path.iterdir()]) == ["", ""]
    finally:
        await limited.close()
        await asyncio.gather(*asking, return_exceptions=True)


def is_running(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


def read(limits: MessageLimits, *pieces: bytes) -> list[dict[str, Any]]:
    reader = LineReader(Bound(limits, lambda: 0.0))
    return [
        json.loads(message.message.model_dump_json(exclude_unset=True))
        for piece in pieces
        for message in reader.feed(piece)
    ]


ANSWER = b'{"jsonrpc":"2.0","id":7,"result":{"x":"' + b"y" * 100 + b'"}}\n'


@pytest.mark.parametrize("said", ["notifications/message", "notifications/progress", "notifications/cancelled"])
def test_answers_naming_a_method_are_read(said: str) -> None:
    bodies: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 7, "result": {"content": [{"type": "text", "text": said}]}},
        {"result": {"content": [{"type": "text", "text": f'{{"method":"{said}"}}'}]}, "id": 7, "jsonrpc": "2.0"},
        {"result": {"method": said, "params": {}}, "jsonrpc": "2.0", "id": 7},
        {"jsonrpc": "2.0", "id": 7, "error": {"code": 1, "message": said}},
        {"jsonrpc": "2.0", "method": "m", "params": {"method": said}},
    ]
    lines = [json.dumps(body).encode() + b"\n" for body in bodies]
    assert read(MessageLimits(), *lines) == bodies


def test_server_error_is_no_lost_connection() -> None:
    (answer,) = read(MessageLimits(), b'{"jsonrpc":"2.0","id":7,"error":{"code":-32000,"message":"no room"}}\n')
    assert answer["error"] == {"code": INTERNAL_ERROR, "message": "no room"}


def test_lines_are_read_across_cuts() -> None:
    whole = read(MessageLimits(), ANSWER * 2)
    assert [message["id"] for message in whole] == [7, 7]
    assert read(MessageLimits(), *(bytes([byte]) for byte in ANSWER * 2)) == whole


@pytest.mark.parametrize("room", [len(ANSWER) - 1, len(ANSWER) - 2])
def test_message_past_bound_is_answered_with_error(room: int) -> None:
    first, second = read(MessageLimits(message_bytes=room), ANSWER, ANSWER.replace(b"y" * 100, b""))
    assert ("result" in first) == (room == len(ANSWER) - 1)
    assert (first["id"], second["result"]) == (7, {"x": ""})


@pytest.mark.parametrize(
    ("answer", "request_id"),
    [
        (b'{"result":{"id":7,"text":"%s"},"jsonrpc":"2.0","id":3}\n', 3),
        (b'{"jsonrpc":"2.0","result":{"id":7,"text":"%s","x":{"id":9}},"id":3}\n', 3),
        (b'{"error":{"code":7,"message":"%s"}, "id": 3, "jsonrpc": "2.0"}\n', 3),
        (b'{"jsonrpc":"2.0","id":3,"result":{"id":7,"text":"%s"}}\n', 3),
        (b'{ "id" : 3 , "jsonrpc" : "2.0" , "error" : {"code":7,"message":"%s"}}\n', 3),
    ],
)
def test_oversized_answer_is_refused_anywhere(answer: bytes, request_id: int) -> None:
    pieces = [(answer % (b"y" * 3000))[at : at + 100] for at in range(0, 4000, 100)]
    refused, after = read(MessageLimits(message_bytes=1000), *pieces, ANSWER)
    assert (refused["id"], "error" in refused, after["id"]) == (request_id, True, 7)


@pytest.mark.parametrize(
    "message",
    [
        b'{"jsonrpc":"2.0","result":{"id":7,"text":"%s","x":{"id":9}}}\n',
        b'{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{"text":"%s"}}\n',
        b'{"jsonrpc":"2.0","id":7.5,"result":{"text":"%s"}}\n',
        b'{"jsonrpc":"2.0","id":7e1,"result":{"text":"%s"}}\n',
        b'{"jsonrpc":"2.0","result":{"text":"%s"},"id":7.5}\n',
    ],
)
def test_oversized_non_answer_closes_connection(message: bytes) -> None:
    with pytest.raises(ServerFlooded, match="larger than 1,000 bytes"):
        read(MessageLimits(message_bytes=1000), message % (b"y" * 3000))


def test_text_inside_strings_is_no_value() -> None:
    table = json.dumps({"jsonrpc": "2.0", "id": 7, "result": {"text": '1,2,[{\\"' * 1000}}).encode() + b"\n"
    limits = MessageLimits(message_values=10)
    (whole,) = read(limits, table)
    assert read(limits, *(table[at : at + 7] for at in range(0, len(table), 7))) == [whole]
    (refused,) = read(limits, b'{"jsonrpc":"2.0","id":7,"result":{"x":[1,2,3,4,5,6,7,8,9]}}\n')
    assert "more than 10 values" in refused["error"]["message"]


def test_a_flood_closes_the_connection() -> None:
    limits = MessageLimits(window_messages=10, message_bytes=50)
    note = b'{"jsonrpc":"2.0","method":"m"}\n'
    assert len(read(limits, note * 10)) == 10
    with pytest.raises(ServerFlooded):
        read(limits, note * 11)
    # A blank line costs what a message does.
    assert len(read(limits, (note + b"\r\n") * 5)) == 5
    for blank in (b"\n", b" \r\n"):
        with pytest.raises(ServerFlooded, match="too much at once"):
            read(limits, blank * 11)
    with pytest.raises(ServerFlooded, match="too much at once"):
        read(limits, *[b"\n"] * 11)
    # Lines for a log are thrown away unread.
    for idle in (b'{"jsonrpc":"2.0","method":"notifications/message"}\n', b' {"method" : "notifications/progress" }\n'):
        assert read(limits, idle * 11) == []
    with pytest.raises(ServerFlooded):
        read(limits, b"A" * 51)


def test_missing_client_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_servers, "find_spec", lambda name: None)
    agent = Agent(name="A", mcp_servers=[MCPServer(command=["x"])])
    with pytest.raises(AgentsError, match=r"agent 'A': .* pip install 'swarmkeep\[mcp\]'"):
        check_client([agent])
    with pytest.raises(ModuleNotFoundError, match="swarmkeep\\[mcp\\]"):
        Swarm(object()).run(agent, [{"role": "user", "content": "hi"}])
    check_client([Agent(name="B")])
