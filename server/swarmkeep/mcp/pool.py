"""The connections to MCP servers, in a thread with an event loop of its own: no one else waits for a server's messages
to be read, however large."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from swarmkeep.agent import MCPServer, Result, ToolFailed
from swarmkeep.mcp.connection import Connection
from swarmkeep.mcp.contents import OfferedTool
from swarmkeep.mcp.statuses import ServerStatus
from swarmkeep.mcp.transports import ConnectionLimits

T = TypeVar("T")

log = logging.getLogger(__name__)

_IDLE_SECONDS = 600.0
_SWEEP_SECONDS = 15.0
_CLOSE_SECONDS = 10.0


class TooManyConnections(Exception):
    """Every connection that may be made for a session is in use."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The offer of a server; None if it has never said so here, with the error that it could not be reached with."""

    tools: tuple[OfferedTool, ...] | None
    error: str | None


class ServerPool:
    """A connection for each server, or for each session's of it; made when it is first wanted."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        # It logs what servers send. What is of use of that is logged here, without secrets.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
        self._limits = limits or ConnectionLimits()
        self._connections: dict[tuple[str, str], Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()
        # Those that wait for others to be closed, and whose place no other is given.
        self._held: list[Connection] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="swarmkeep-mcp", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        sweeper = self._loop.create_task(self._sweep_regularly())
        try:
            self._loop.run_forever()
        finally:
            sweeper.cancel()
            self._loop.run_until_complete(asyncio.gather(sweeper, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def find_tools(self, scope: str, server: MCPServer) -> Offer:
        """Return the tools that the server offers, or did last."""
        return await self._cross(self._find_tools(scope, server))

    async def call(self, scope: str, server: MCPServer, tool: str, arguments: dict[str, Any], call_id: str) -> Result:
        """Return the result of a tool. Raises ToolFailed."""
        return await self._cross(self._call(scope, server, tool, arguments, call_id))

    def open(self, server: MCPServer, scope: str) -> None:
        """Begin to connect, and wait for nothing."""
        self._submit(self._find_tools(scope, server))

    async def _find_tools(self, scope: str, server: MCPServer) -> Offer:
        try:
            connection = await self._get(scope, server)
        except TooManyConnections as error:
            return Offer(tools=None, error=str(error))
        return Offer(tools=await connection.find_tools(), error=connection.error)

    async def _call(self, scope: str, server: MCPServer, tool: str, arguments: dict[str, Any], call_id: str) -> Result:
        try:
            connection = await self._get(scope, server)
        except TooManyConnections as error:
            raise ToolFailed(f"it did not run: {error}") from None
        return await connection.call(tool, arguments, call_id)

    async def _get(self, scope: str, server: MCPServer) -> Connection:
        """Raises TooManyConnections."""
        key = (server.digest, scope if server.scope == "session" else "")
        while True:
            found = self._connections.pop(key, None)
            if found is None:
                if key[1]:
                    self._make_room()
                found = Connection(server, self._limits)
            # The one that was used last comes last.
            self._connections[key] = found
            closing = [] if not key[1] or found.has_begun else self._list_awaited()
            if not closing:
                return found
            # Before the new one begins, for any caller: there are never more processes than may be.
            self._held.append(found)
            try:
                await asyncio.wait(closing, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._held.remove(found)

    def _make_room(self) -> None:
        """Begin to close a session's connection for a new one, if one has to be. Raises TooManyConnections."""
        mine = [(key, found) for key, found in self._connections.items() if key[1]]
        most = self._limits.session_connections
        if len(mine) < most:
            return
        for key, found in mine:
            if not found.is_busy and found not in self._held:
                self._begin_to_close(self._connections.pop(key))
                return
        raise TooManyConnections(f"all {most} connections to MCP servers that sessions may have are in use")

    def _begin_to_close(self, found: Connection) -> asyncio.Task[None]:
        closing = self._loop.create_task(found.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return closing

    def _list_awaited(self) -> list[asyncio.Task[None]]:
        """The connections that are being closed, if one of them has to be before another one may begin."""
        closing = [each for each in self._closing if not each.done()]
        mine = sum(1 for _, scope in self._connections if scope)
        return closing if mine + len(closing) > self._limits.session_connections else []

    async def _sweep_regularly(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                await self._sweep()
            except Exception:
                log.exception("unused connections to MCP servers could not be closed; trying again")

    async def _sweep(self) -> None:
        """Close the connections of sessions that have not used them for long."""
        now = self._loop.time()
        mine = [(key, found) for key, found in self._connections.items() if key[1] and not found.is_busy]
        for key, found in mine:
            is_unused = now - found.last_used > _IDLE_SECONDS
            # Others come and go while one is closed.
            if is_unused and self._connections.get(key) is found and not found.is_busy:
                del self._connections[key]
                await self._begin_to_close(found)

    def list_statuses(self) -> list[ServerStatus]:
        """List the status of each server; of those with a connection for each session, with the one used last."""
        found: dict[str, ServerStatus] = {}
        for (server_digest, _), one in list(self._connections.items()):
            found[server_digest] = ServerStatus(
                name=one.server.name,
                address=one.server.address,
                status=one.status,
                error=one.error,
                tools=None if one.tools is None else len(one.tools),
                last_words=one.last_words,
                left=one.left,
            )
        return list(found.values())

    def close_scope(self, scope: str) -> None:
        """Close the connections of one session, whose scopes begin so, and wait for nothing."""
        self._submit(self._close(scope))

    async def close(self) -> None:
        await asyncio.to_thread(self.close_blocking)

    def close_blocking(self) -> None:
        """Close all connections, and end."""
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            return
        with suppress(Exception):
            self._submit(self._close()).result(_CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_SECONDS)

    async def _close(self, scope: str | None = None) -> None:
        chosen = [key for key in self._connections if scope is None or key[1].startswith(scope)]
        closing = [self._begin_to_close(self._connections.pop(key)) for key in chosen]
        await asyncio.gather(*(closing if scope is not None else self._closing), return_exceptions=True)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _cross(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._submit(work))
