"""What is asked of a connection, and why it may not be answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from mcp import Client


class Work(msgspec.Struct, frozen=True):
    do: Callable[[Client], Awaitable[Any]]
    done: asyncio.Future[Any]

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class ServerUnreachable(Exception):
    """There is no connection, and why."""


class SessionGone(Exception):
    """The server did not look at what it was asked: it does not know the session of this connection any more."""
