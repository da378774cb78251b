"""Frames of a WebSocket, whatever they say: received, and sent last when a connection is refused."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

from litestar import WebSocket
from litestar.exceptions import WebSocketDisconnect

from swarmkeep.domain.errors import TooLarge

Socket = WebSocket[Any, Any, Any]

# In the registry of RFC 6455: the service restarts, come again.
CLOSE_RESTART = 1012
# A refusal ends the connection with 4000 and the status that HTTP would have answered with.
CLOSE_REFUSED = 4000
# What sending to, or hearing of, a client that has gone raises.
CLIENT_GONE = (WebSocketDisconnect, OSError)


async def receive_frame(socket: Socket) -> bytes:
    """The next frame. Raises WebSocketDisconnect, and TooLarge for one that is larger than a body may be."""
    message = cast(dict[str, Any], await socket.receive())
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(detail="the client has gone", code=message["code"])
    text: str | None = message.get("text")
    sent: bytes = (message.get("bytes") or b"") if text is None else text.encode()
    most = cast(int, socket.app.request_max_body_size)
    if len(sent) > most:
        raise TooLarge(f"the frame has more than {most} bytes (SWARMKEEP_MAX_BODY_BYTES)")
    return sent


async def close_refused(socket: Socket, frame: bytes, status: int, code: str) -> None:
    """Tell why, and close. A viewer that takes nothing is not told; the connection ends in any case."""
    with suppress(TimeoutError):
        async with asyncio.timeout(socket.app.state.service.limits.refused_seconds):
            await socket.send_text(frame)
            await socket.close(CLOSE_REFUSED + status, code)


async def close_restarting(socket: Socket) -> None:
    await socket.close(CLOSE_RESTART, "the server is shutting down; connect again")
