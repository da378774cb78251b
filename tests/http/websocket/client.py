"""A WebSocket client of a session, strict about what it is sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.http.server import PATIENCE_SECONDS, Json, RunningServer


class SocketFrame:
    def __init__(self, text: str | bytes) -> None:
        assert isinstance(text, str), "text frames only"
        found: Json = json.loads(text)
        assert {"event", "data"} <= set(found) <= {"event", "id", "ref", "data"}, found
        self.event: str = found["event"]
        self.seq: int | None = found.get("id")
        self.ref: str | None = found.get("ref")
        self.data: Json = found["data"]
        if self.seq is not None:
            assert (self.data["seq"], self.data["type"]) == (self.seq, self.event)

    def __repr__(self) -> str:
        return f"LiveFrame({self.event} {self.seq or ''})"


class SocketClient:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, type_: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": type_, **fields}))

    async def next(self) -> SocketFrame:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return SocketFrame(await self.socket.recv())

    async def until(self, event: str) -> list[SocketFrame]:
        """Frames up to the first of this kind."""
        found = [await self.next()]
        while found[-1].event != event:
            found.append(await self.next())
        return found

    async def answer(self, type_: str, **fields: Any) -> SocketFrame:
        """What a command is answered with; what happens meanwhile is skipped."""
        await self.send(type_, ref="asked", **fields)
        while (frame := await self.next()).ref != "asked":
            pass
        return frame

    async def problem(self, code: str) -> Json:
        """The next frame, which refuses something."""
        frame = await self.next()
        assert (frame.event, frame.data.get("code")) == ("error", code), (frame, frame.data)
        assert frame.data["type"] == f"urn:swarmkeep:problem:{code}"
        return frame.data

    async def closed(self) -> tuple[int, str]:
        """The code and the reason that the server closes with, once everything before has been read."""
        with pytest.raises(ConnectionClosed) as end:
            await self.until("nothing more")
        assert end.value.rcvd is not None, "the connection broke"
        return end.value.rcvd.code, end.value.rcvd.reason


@asynccontextmanager
async def connect_session(
    service: RunningServer, session: str, query: str = "", **options: Any
) -> AsyncIterator[SocketClient]:
    url = f"{service.url.replace('http', 'ws', 1)}{session}/live{query}"
    # With a queue that is full the client reads no further, and would wait 10 s for an answer to its close frame.
    async with connect(url, **{"max_size": None, "max_queue": None, "proxy": None, **options}) as socket:
        yield SocketClient(socket)
