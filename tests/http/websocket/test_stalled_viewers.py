"""Viewers that read nothing, or hardly anything: little is kept for them, and they are let go. Nothing reads ahead."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing, asynccontextmanager, suppress
from typing import Any

import pytest

from swarmkeep.http.metrics import ServerLimits
from swarmkeep.serve.server import BoundedWebSocket, UnsentLimit
from swarmkeep.store.records import SessionKey
from tests.http.auth.keys import bearer_headers, key_store
from tests.http.server import PATIENCE_SECONDS, RunningServer, server_settings, start_server
from tests.support.waiting import wait_until

# What a transport holds before it asks for a pause, and what one read of the socket may add.
MOST_UNSENT_BYTES = 64 * 1024 + 256 * 1024
TEXT, CONTINUED, PING, PONG = 1, 0, 9, 10


class RawViewer:
    """A WebSocket by hand, which reads when it is told to."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self._received = b""

    async def send(self, opcode: int, payload: bytes, *, count: int = 1, fin: bool = True) -> None:
        """A frame, as often as that. Its mask is zero, so the payload stands in it as it is."""
        assert len(payload) < 126
        frame = bytes([opcode | (0x80 if fin else 0), 0x80 | len(payload), 0, 0, 0, 0]) + payload
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._loop.sock_sendall(self._socket, frame * count)

    async def receive(self) -> tuple[int, bytes]:
        """The next frame."""
        head = await self._take(2)
        length = head[1] & 0x7F
        if length >= 126:
            length = int.from_bytes(await self._take(2 if length == 126 else 8))
        return head[0] & 0x0F, await self._take(length)

    async def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            self._received += await self.read_some()
        taken, self._received = self._received[:size], self._received[size:]
        return taken

    async def read_some(self) -> bytes:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._loop.sock_recv(self._socket, 65_536)

    async def read_slowly_until_closed(self) -> None:
        """Take a little now and then: there is progress all the time."""
        with suppress(ConnectionError):
            while True:
                if not (taken := await self.read_some()):
                    return
                await asyncio.sleep(len(taken) / 1_000_000)


@asynccontextmanager
async def connect_raw(service: RunningServer, request: str) -> AsyncIterator[RawViewer]:
    host, _, port = service.url.removeprefix("http://").partition(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
        await asyncio.get_running_loop().sock_sendall(connection, request.encode())
        yield RawViewer(connection)


def upgrade(path: str, authorization: str) -> str:
    return (
        f"GET {path}/live HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        f"Authorization: {authorization}\r\n\r\n"
    )


def ask_for(kind: str, path: str, authorization: str) -> str:
    """The request of a viewer by WebSocket, or of the stream of events."""
    if kind == "websocket":
        return upgrade(path, authorization)
    head = f"GET {path}/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nAuthorization: "
    return f"{head}{authorization}\r\n\r\n"


def find_sockets(service: RunningServer) -> list[BoundedWebSocket]:
    return [one for one in service.connections if isinstance(one, BoundedWebSocket)]


@asynccontextmanager
async def serve_large_session(url: str, **limits: Any) -> AsyncIterator[tuple[RunningServer, str, str, str]]:
    """A server, a session of 20 MB, the header of a key that may see it, and the key's id."""
    given = server_settings(database_url=url, max_metadata_bytes=2_000_000)
    async with start_server(given, ServerLimits(**limits)) as service:
        made, secret = await key_store(service).create("acme")
        headers = bearer_headers(secret)
        await service.post("/v1/sessions", {"id": "s"}, headers=headers)
        for number in range(20):
            text = str(number % 10) * 1_000_000
            await service.patch("/v1/sessions/s", {"metadata": {"text": text}}, headers=headers)
        yield service, "/v1/sessions/s", headers["Authorization"], made.id


async def find_paused_socket(service: RunningServer) -> BoundedWebSocket:
    await wait_until(lambda: bool(find_sockets(service)) and not find_sockets(service)[0].writable.is_set())
    return find_sockets(service)[0]


@pytest.mark.long
async def test_unread_pings_fill_nothing(sqlite_ready: str) -> None:
    async with (
        serve_large_session(sqlite_ready, stalled_seconds=600) as (service, path, authorization, _),
        connect_raw(service, upgrade(path, authorization)) as viewer,
    ):
        stalled = await find_paused_socket(service)
        before = stalled.transport.get_write_buffer_size()
        for _ in range(100):
            await viewer.send(PING, b"x" * 125, count=1500)
            assert stalled.transport.get_write_buffer_size() <= before + MOST_UNSENT_BYTES
        assert len(stalled._owed_pong) < 200
        assert (await service.get("/health/live")).status_code == 200


@pytest.mark.long
async def test_pings_alone_fill_no_more_either(sqlite_ready: str) -> None:
    given = server_settings(database_url=sqlite_ready)
    async with start_server(given, ServerLimits(stalled_seconds=600)) as service:
        session = await service.session()
        async with connect_raw(service, upgrade(session, "")) as viewer:
            await wait_until(lambda: bool(find_sockets(service)))
            (stalled,) = find_sockets(service)
            for _ in range(100):
                await viewer.send(PING, b"x" * 125, count=1500)
                assert stalled.transport.get_write_buffer_size() <= MOST_UNSENT_BYTES
            assert not stalled.writable.is_set()


async def test_viewer_reading_on_has_ping_answered(sqlite_ready: str) -> None:
    async with (
        serve_large_session(sqlite_ready, stalled_seconds=600) as (service, path, authorization, _),
        connect_raw(service, upgrade(path, authorization)) as viewer,
    ):
        stalled = await find_paused_socket(service)
        for number in range(50):
            await viewer.send(PING, b"%d" % number)
        await wait_until(lambda: stalled._owed_pong.endswith(b"49"))
        while b"\r\n\r\n" not in viewer._received:
            viewer._received += await viewer.read_some()
        viewer._received = viewer._received.partition(b"\r\n\r\n")[2]
        while (frame := await viewer.receive())[0] != PONG:
            pass
        assert frame[1] == b"49"


@pytest.mark.long
@pytest.mark.parametrize(("kind", "then"), [("websocket", "nothing"), ("websocket", "pings"), ("events", "nothing")])
async def test_stalled_viewer_is_let_go(sqlite_ready: str, kind: str, then: str) -> None:
    async with serve_large_session(sqlite_ready, stalled_seconds=0.5) as (service, path, authorization, _):
        others = set(service.connections)
        async with connect_raw(service, ask_for(kind, path, authorization)) as viewer:
            await wait_until(lambda: find_paused(service) != [])
            with suppress(ConnectionError):
                while then == "pings" and find_sockets(service):
                    await viewer.send(PING, b"x")
                    await asyncio.sleep(0)
            await wait_until(lambda: others.issuperset(service.connections))
        await wait_until(lambda: service.engine.hub.reader_count == 0)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["websocket", "events"])
async def test_slow_viewer_kept_until_key_ends(sqlite_ready: str, kind: str) -> None:
    async with serve_large_session(sqlite_ready, stalled_seconds=1, gone_seconds=0.1, refused_seconds=0.2) as opened:
        service, path, authorization, key_id = opened
        request = ask_for(kind, path, authorization)
        others = set(service.connections)
        async with connect_raw(service, request) as viewer:
            reading = asyncio.create_task(viewer.read_slowly_until_closed())
            await wait_until(lambda: service.engine.hub.reader_count == 1)
            done, _ = await asyncio.wait({reading}, timeout=2.5)
            assert not done, "it takes something all the time"
            await key_store(service).revoke(key_id)
            # What the system holds for the reader is out of the server's hands by then.
            await wait_until(lambda: others.issuperset(service.connections))
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["websocket", "events"])
async def test_stalled_viewer_with_ended_key_dropped(sqlite_ready: str, kind: str) -> None:
    """What is to be sent is given up soon, however long the connection itself may stand still."""
    async with serve_large_session(sqlite_ready, stalled_seconds=5, gone_seconds=0.1, refused_seconds=0.2) as opened:
        service, path, authorization, key_id = opened
        request = ask_for(kind, path, authorization)
        async with connect_raw(service, request):
            await wait_until(lambda: service.engine.hub.reader_count == 1)
            await key_store(service).revoke(key_id)
            async with asyncio.timeout(4):
                await wait_until(lambda: service.engine.hub.reader_count == 0)


@pytest.mark.parametrize("kind", ["websocket", "events"])
async def test_slow_viewer_backlog_is_bounded(sqlite_ready: str, kind: str) -> None:
    """The one that has taken nothing for the longest is let go."""
    async with serve_large_session(sqlite_ready, stalled_seconds=600, unsent_bytes=200_000) as opened:
        service, path, authorization, _ = opened
        request = ask_for(kind, path, authorization)
        before = set(service.connections)
        async with connect_raw(service, request):
            await wait_until(lambda: find_paused(service) != [])
            (longest,) = find_paused(service)
            async with connect_raw(service, request):
                await wait_until(lambda: longest not in service.connections)
                await wait_until(lambda: len(find_paused(service)) == 1)
                await wait_until(lambda: service.engine.hub.reader_count == 1)
        await wait_until(lambda: before.issuperset(service.connections))


async def test_partly_reading_viewer_dropped_later() -> None:
    loop = asyncio.get_running_loop()
    limit = UnsentLimit(10_000_000)
    with ExitStack() as stack:
        transports, readers = [], []
        for _ in range(3):
            ours, theirs = (stack.enter_context(one) for one in socket.socketpair())
            theirs.setblocking(False)
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
            transport.write(bytes(4_000_000))
            transports.append(transport)
            readers.append(theirs)
        slow, stalled, new = transports
        limit.add(slow)
        limit.add(stalled)
        before = slow.get_write_buffer_size()
        while slow.get_write_buffer_size() == before:
            await loop.sock_recv(readers[0], 65_536)
        limit.add(new)
        assert [one.is_closing() for one in transports] == [False, True, False]
        slow.abort()
        new.abort()


async def test_large_event_waits_only_for_slow_viewer(sqlite_ready: str) -> None:
    async with serve_large_session(sqlite_ready) as (service, _, _, _):
        await service.engine.sessions.update(SessionKey("acme", "s"), metadata={"text": "short"})
        sizes: list[int] = []
        async with aclosing(service.engine.reader.follow_batches(SessionKey("acme", "s"), after=0)) as batches:
            while sum(sizes) < 22:
                batch = await anext(batches)
                sizes.append(len(batch))
                while batch:
                    assert count_references_to_last(batch) == count_references_to_last([object()])
        assert sizes == [1] * 22


def count_references_to_last(items: list[Any]) -> int:
    last = items.pop()
    return sys.getrefcount(last)


def find_paused(service: RunningServer) -> list[Any]:
    """The connections that hold something for a reader that takes nothing."""
    return [one for one in service.connections if one.transport.get_write_buffer_size() > 64 * 1024]


async def test_tiny_pieces_take_only_their_size(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready)) as service:
        session = await service.session()
        async with connect_raw(service, upgrade(session, "")) as viewer:
            await wait_until(lambda: bool(find_sockets(service)))
            (one,) = find_sockets(service)
            await viewer.send(TEXT, b'{"type":"', fin=False)
            await viewer.send(CONTINUED, b"ab", count=20_000, fin=False)
            await viewer.send(CONTINUED, b"", count=20_000, fin=False)
            await wait_until(lambda: bool(one.frames) and len(one.frames[0]) == 40_009)
            assert len(one.frames) == 1
            await viewer.send(CONTINUED, b'"}')
            answer = b""
            while b'"/type"' not in answer:
                answer += await viewer.read_some()
