"""A connection to one server: one task opens all that belongs to it, serves calls out of a queue, and closes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, TypeVar

import anyio
import msgspec
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import CONNECTION_CLOSED, INVALID_PARAMS, METHOD_NOT_FOUND, ToolListChangedNotification

from swarmkeep.agent import MCPServer, Result, ToolFailed
from swarmkeep.engine.mcp.bounds import ConnectionLimits
from swarmkeep.engine.mcp.client import call_tool, describe_error, list_offered, open_client, open_transport
from swarmkeep.engine.mcp.contents import OfferedTool, read_result
from swarmkeep.engine.mcp.stdio import LastWords
from swarmkeep.engine.models.secrets import Secrets

log = logging.getLogger(__name__)

T = TypeVar("T")
Status = Literal["closed", "connecting", "connected", "unreachable"]
_CLOSED = "it has closed the connection"
# Errors that are about what was asked, not about the connection.
_ANSWERS = (INVALID_PARAMS, METHOD_NOT_FOUND)
_ERROR_CHARACTERS = 500


class _Work(msgspec.Struct, frozen=True):
    do: Callable[[Client], Awaitable[Any]]
    done: asyncio.Future[Any]


class ServerUnreachable(Exception):
    """There is no connection, and why."""


class Connection:
    """One server, or one session's of it. All of it lives in one event loop; what is read from outside is replaced as
    a whole."""

    def __init__(self, server: MCPServer, limits: ConnectionLimits) -> None:
        self.server = server
        self.status: Status = "closed"
        self.error: str | None = None
        self.last_words = ""
        """What it wrote to its standard error before it went: for whoever runs it, and nobody else."""
        self.tools: tuple[OfferedTool, ...] | None = None
        """What it offered last; None before it said so."""
        self.last_used = 0.0
        self._limits = limits
        self._secrets = Secrets(server.list_secrets())
        self._queue: asyncio.Queue[_Work] = asyncio.Queue()
        self._settled = asyncio.Event()
        self._wanted = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self._scope: anyio.CancelScope | None = None
        self._words = LastWords()
        self._listed_at = 0.0
        self._is_stale = False
        self._running = 0
        self._waiting = 0

    async def find_tools(self) -> tuple[OfferedTool, ...] | None:
        """What it offers now; what it did last, if it cannot be reached in time."""
        if await self._wait_until_settled() and self._is_list_old():
            try:
                await self._submit(self._list_tools, self._limits.probe_seconds)
            except (ServerUnreachable, ToolFailed, TimeoutError):
                log.info("MCP server %s: its tools cannot be listed", self.server.name)
        return self.tools

    async def call(self, tool: str, arguments: dict[str, Any], call_id: str) -> Result:
        """What the tool gives. Raises ToolFailed. Cancelled, it tells the server."""
        if not await self._wait_until_settled():
            raise ToolFailed(f"it did not run: {self._describe_state()}")
        try:
            result = await self._submit(lambda client: call_tool(client, tool, arguments, call_id))
        except ServerUnreachable as error:
            raise ToolFailed(
                f"the connection to {self.server.name} was lost before it answered ({error}). It may or may not have "
                "taken effect"
            ) from None
        given = read_result(result, self._limits.files if self.server.files else None)
        mask = self._secrets.mask
        text = mask(given.value)
        files = [replace(file, name=mask(file.name), media_type=mask(file.media_type)) for file in given.files]
        if result.is_error:
            raise ToolFailed(text or "its server says no more", files)
        return Result(text, files=files)

    @property
    def is_busy(self) -> bool:
        return self._running > 0 or self._waiting > 0 or not self._queue.empty()

    @property
    def has_begun(self) -> bool:
        """Whether there is a connection, or an attempt to make one."""
        return self._owner is not None and not self._owner.done()

    async def close(self) -> None:
        owner, self._owner = self._owner, None
        if owner is None:
            return
        if self._scope is not None:
            self._scope.cancel()
        else:
            owner.cancel()
        await asyncio.gather(owner, return_exceptions=True)

    def _describe_state(self) -> str:
        name, why = self.server.name, f" ({self.error})" if self.error else ""
        return f"the MCP server {name} cannot be reached{why}"

    async def _wait_until_settled(self) -> bool:
        """Whether there is a connection; waits for the first attempt to make one, as long as settings say."""
        self.last_used = asyncio.get_running_loop().time()
        if not self.has_begun:
            self._settled.clear()
            self._owner = asyncio.create_task(self._own())
        self._wanted.set()
        self._waiting += 1
        try:
            async with asyncio.timeout(self.server.connect_timeout):
                await self._settled.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
        return self.status == "connected"

    def _is_list_old(self) -> bool:
        return self._is_stale or asyncio.get_running_loop().time() - self._listed_at > self._limits.list_seconds

    async def _submit(self, do: Callable[[Client], Awaitable[T]], seconds: float | None = None) -> T:
        work = _Work(do, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(work)
        async with asyncio.timeout(seconds):
            return await work.done  # type: ignore[no-any-return]

    async def _own(self) -> None:
        """Connect, and connect again, until it is closed."""
        pause = self._limits.first_pause_seconds
        try:
            while True:
                self.status = "connecting"
                if await self._connect():
                    pause = self._limits.first_pause_seconds
                if self._owner is not asyncio.current_task():
                    return
                self.status = "unreachable"
                self._refuse_waiting()
                log.warning("MCP server %s: %s; it said last: %s", self.server.name, self.error, self.last_words or "-")
                # After the first time whoever asks waits for the next attempt; later not before it is due.
                await self._pause(pause, is_told_at_once=pause > self._limits.first_pause_seconds)
                pause = min(pause * 2, self._limits.longest_pause_seconds)
        finally:
            self.status = "closed"
            self._settled.set()
            self._refuse_waiting()

    async def _pause(self, seconds: float, *, is_told_at_once: bool) -> None:
        """Wait, and then for somebody who wants something of the server."""
        if is_told_at_once:
            self._settled.set()
        else:
            self._settled.clear()
        await asyncio.sleep(seconds)
        self._settled.clear()
        if not self._waiting:
            self._wanted.clear()
            await self._wanted.wait()

    async def _connect(self) -> bool:
        """Be connected for as long as that lasts, if it succeeds; `error` says why it did not last."""
        words = self._words = LastWords()
        is_open = False
        ends_at = anyio.current_time() + self.server.connect_timeout
        self.error = None
        try:
            with anyio.CancelScope(deadline=ends_at) as self._scope:
                transport = open_transport(self.server, self._limits.messages, words, self._end)
                async with open_client(transport, self._note_message) as client:
                    await self._list_tools(client)
                    self._scope.deadline = float("inf")
                    self.status = "connected"
                    is_open = True
                    self._settled.set()
                    await self._serve(client)
            error_text = _CLOSED
        except Exception as error:
            error_text = describe_error(error)
        finally:
            self._scope = None
            self.last_words = self._secrets.mask(words.text)
        if not is_open and anyio.current_time() >= ends_at:
            error_text = f"it did not answer within {self.server.connect_timeout:g} s"
        self._note_error(words.reason or self.error or error_text)
        return is_open

    def _end(self) -> None:
        """Give the connection up. Who comes now waits for the next."""
        if self.status == "connected":
            self.status = "connecting"
        self._settled.clear()
        if self._scope is not None:
            self._scope.cancel()

    def _note_error(self, text: str) -> None:
        self.error = self._secrets.mask(text)[:_ERROR_CHARACTERS]

    async def _serve(self, client: Client) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listen, client)
            while True:
                work = await self._queue.get()
                if not work.done.done():
                    tasks.start_soon(self._do, client, work)

    async def _do(self, client: Client, work: _Work) -> None:
        """One piece of work beside the others. Whoever gives up waiting for it has it cancelled."""
        with anyio.CancelScope() as scope:
            work.done.add_done_callback(lambda done: scope.cancel())
            is_in_vain = False
            self._running += 1
            try:
                value = await work.do(client)
                if not work.done.done():
                    work.done.set_result(value)
            except Exception as error:
                is_in_vain = not (isinstance(error, MCPError) and error.code in _ANSWERS)
                text = self._secrets.mask(describe_error(error))[:_ERROR_CHARACTERS]
                is_lost = isinstance(error, MCPError) and error.code == CONNECTION_CLOSED
                _fail(work, ServerUnreachable(self._words.reason or text) if is_lost else ToolFailed(text))
            finally:
                self._running -= 1
                # The connection ends, and what was asked with it.
                _fail(work, ServerUnreachable(self._words.reason or _CLOSED))
        if is_in_vain or scope.cancelled_caught:
            await self._probe(client)

    async def _probe(self, client: Client) -> None:
        """After a call that was in vain, unless others may still be answered: is there anybody?"""
        if self._running > 0:
            return
        with anyio.move_on_after(self._limits.probe_seconds) as limit:
            # What is wrong with it, it may say in any way.
            with suppress(Exception):
                await self._list_tools(client)
                return
        self._note_error("it does not answer any more" if limit.cancelled_caught else _CLOSED)
        self._end()

    async def _list_tools(self, client: Client) -> None:
        self._is_stale = False
        tools = self._secrets.mask(msgspec.to_builtins(await list_offered(client, self.server)))
        self.tools = tuple(msgspec.convert(tools, list[OfferedTool]))
        self._listed_at = asyncio.get_running_loop().time()

    async def _listen(self, client: Client) -> None:
        """Hear of changes from a server that is to be asked for them; the others say so by themselves."""
        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._is_stale = True
        except Exception as error:
            log.debug("MCP server %s does not tell of changes: %s", self.server.name, type(error).__name__)

    async def _note_message(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._is_stale = True

    def _refuse_waiting(self) -> None:
        while not self._queue.empty():
            _fail(self._queue.get_nowait(), ToolFailed(f"it did not run: {self._describe_state()}"))


def _fail(work: _Work, error: Exception) -> None:
    if not work.done.done():
        work.done.set_exception(error)
