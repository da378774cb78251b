"""The types of ASGI: an application's three arguments are a plain dictionary and two functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


async def wait_for_disconnect(receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
    """Return once the client is gone. Its request must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
