"""Connections to MCP servers, in a thread with an event loop of its own: one task opens, serves and closes each."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar, cast

import anyio
import msgspec
from mcp import Client
from mcp.client._transport import TransportStreams
from mcp.client.session import MessageHandlerFnT
from mcp.shared.exceptions import MCPError
from mcp.types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    CallToolResult,
    Implementation,
    RequestParamsMeta,
    Tool,
    ToolListChangedNotification,
)
from pydantic import ValidationError

from swarmkeep.agent import MCPServer, Result, ToolFailed
from swarmkeep.mcp.contents import MOST_TOOLS, OfferedTool, read_result, read_tools
from swarmkeep.mcp.statuses import ServerStatus
from swarmkeep.mcp.transports import (
    SESSION_GONE,
    CheckedStream,
    ConnectionLimits,
    LastWords,
    MessageLimits,
    open_http,
    open_stdio,
)
from swarmkeep.models.failures import Secrets

# The official client, as it is used here: how it is opened, and what it is asked.

_MOST_PAGES = 50


@asynccontextmanager
async def open_transport(
    server: MCPServer, limits: MessageLimits, words: LastWords, on_end: Callable[[], None]
) -> AsyncGenerator[TransportStreams]:
    """Streams to and from the server. `on_end` is called when its process says nothing any more."""
    opened = open_http(server, limits) if server.url else open_stdio(server, limits, words, on_end)
    async with opened as (incoming, outgoing):
        yield CheckedStream(incoming, limits), outgoing


@asynccontextmanager
async def open_client(
    transport: AbstractAsyncContextManager[TransportStreams], on_message: MessageHandlerFnT
) -> AsyncGenerator[Client]:
    # Nothing that a server asks of its client is answered: no model, no files, no person.
    client = Client(
        transport, cache=None, message_handler=on_message, client_info=Implementation(name="swarmkeep", version="1")
    )
    async with client:
        # It would search in what a server sends with patterns that the server sends.
        client.session.validate_tool_result = _accept_result  # type: ignore[method-assign]
        yield client


async def _accept_result(name: str, result: CallToolResult) -> None:
    pass


async def list_offered(client: Client, server: MCPServer) -> tuple[list[OfferedTool], list[str]]:
    """List the tools that are offered, and the names of those wanted that are too large or too many.

    A list that is not read to its end is named first, and which pages of it were read.
    """
    found: list[Tool] = []
    cursor: str | None = None
    pages = 0
    while pages < _MOST_PAGES and len(found) <= 4 * MOST_TOOLS:
        page = await client.list_tools(cursor=cursor)
        pages += 1
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    known = {tool.name for tool in found}
    _forget_others(client, known)
    offered = list(read_tools(server, found))
    names = {tool.name for tool in offered}
    left = [tool.name for tool in found if tool.name not in names and server.offers(tool.name)]
    if cursor is not None:
        left = [*_describe_unread(server, pages, known), *left]
    return offered, left


def _describe_unread(server: MCPServer, pages: int, known: Collection[str]) -> list[str]:
    """Name what may be on the pages that were not read; nothing, where all that is wanted was found before."""
    if server.tools is None:
        return [f"all after page {pages} of its list, which has more pages"]
    missing = [name for name in server.tools if name not in known]
    return [f"{name} (not on the first {pages} pages of its list, which has more)" for name in missing]


def _forget_others(client: Client, names: set[str]) -> None:
    """Of a list in pages the official client keeps what it has of every tool that any list ever had."""
    for held in ("_tool_output_schemas", "_x_mcp_header_maps"):
        found = getattr(client.session, held, {})
        for name in found.keys() - names:
            del found[name]


async def call_tool(client: Client, *, tool: str, arguments: dict[str, Any], call_id: str) -> CallToolResult:
    """Call it, with the id that stays the same when the call is made again."""
    meta = cast("RequestParamsMeta", {"swarmkeep/toolCallId": call_id})
    return await client.call_tool(tool, arguments, meta=meta)


# Putting one in words has them all put together first.
_MOST_ERRORS = 1_000


def describe_error(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, MCPError):
        return error.error.message
    if isinstance(error, FileNotFoundError):
        return f"there is no program {error.filename!r}"
    if isinstance(error, ValidationError):
        if error.error_count() > _MOST_ERRORS:
            return "what it answered is not what the protocol asks for, in many places"
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return f"what it answered is not what the protocol asks for ({place}: {first['msg']})"
    return f"{type(error).__name__}: {error}"


# Keep the list of a server's offer, and whether that still holds.

log = logging.getLogger(__name__)

_NAMES_CHARACTERS = 500


class ToolList:
    """The tools of one server, as they were listed last. `tools` is None before that."""

    def __init__(self, server: MCPServer, secrets: Secrets) -> None:
        self.tools: tuple[OfferedTool, ...] | None = None
        self._server = server
        self._secrets = secrets
        self.left = ""
        """The tools that agents do without, for the operator."""
        self._listed_at = 0.0
        self._is_stale = False

    def is_older_than(self, seconds: float) -> bool:
        """Tell if it was listed before that, or the server has said that it has changed."""
        return self._is_stale or asyncio.get_running_loop().time() - self._listed_at > seconds

    async def list_anew(self, client: Client) -> None:
        self._is_stale = False
        offered, left = await list_offered(client, self._server)
        self._tell_left(left)
        self.tools = tuple(msgspec.convert(self._secrets.mask(msgspec.to_builtins(offered)), list[OfferedTool]))
        self._listed_at = asyncio.get_running_loop().time()

    def _tell_left(self, left: list[str]) -> None:
        """Tell the operator which tools agents do without, once."""
        names = self._secrets.mask(", ".join(left))[:_NAMES_CHARACTERS]
        if names and names != self.left:
            log.warning(
                "MCP server %s: some tools are not offered, because they are too large or too many: %s",
                self._server.name,
                names,
            )
        self.left = names

    async def listen(self, client: Client) -> None:
        """Hear of changes from a server that is to be asked for them; the others say so by themselves."""
        try:
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._is_stale = True
        except Exception as error:
            log.debug("MCP server %s does not report changes: %s", self._server.name, type(error).__name__)

    async def note_message(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._is_stale = True


# The requests to a connection, and why one may not be answered.


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


T = TypeVar("T")
Status = Literal["closed", "connecting", "connected", "unreachable"]
_CLOSED = "it has closed the connection"
# Errors that are about what was asked, not about the connection.
_ANSWERS = (INVALID_PARAMS, METHOD_NOT_FOUND)
_ERROR_CHARACTERS = 500


class Connection:
    """One server, or one session's of it. All of it lives in one event loop; what is read from outside is replaced as
    a whole."""

    def __init__(self, server: MCPServer, limits: ConnectionLimits) -> None:
        self.server = server
        self.status: Status = "closed"
        self.error: str | None = None
        self.last_words = ""
        """What it wrote to its standard error before it went, for the operator only."""
        self.last_used = 0.0
        self._limits = limits
        self._secrets = Secrets(server.list_secrets())
        self._list = ToolList(server, self._secrets)
        self._queue: asyncio.Queue[Work] = asyncio.Queue()
        self._settled = asyncio.Event()
        self._wanted = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self._scope: anyio.CancelScope | None = None
        self._words = LastWords()
        self._answered = asyncio.Event()
        self._running = 0
        self._waiting = 0

    async def find_tools(self) -> tuple[OfferedTool, ...] | None:
        """Return the tools that it offers now; what it did last, if it cannot be reached in time."""
        if await self._wait_until_settled() and self._list.is_older_than(self._limits.list_seconds):
            try:
                await self._submit(self._list.list_anew, self._limits.probe_seconds)
            except (ServerUnreachable, SessionGone, ToolFailed, TimeoutError):
                log.info("MCP server %s: cannot list its tools", self.server.name)
        return self.tools

    async def call(self, tool: str, arguments: dict[str, Any], call_id: str) -> Result:
        """Return the result of the tool. Raises ToolFailed. Cancelled, it tells the server."""
        try:
            result = await self._ask(partial(call_tool, tool=tool, arguments=arguments, call_id=call_id))
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

    async def _ask(self, do: Callable[[Client], Awaitable[T]]) -> T:
        """Return the answer of the server, over a new connection if it has forgotten this one. Raises ToolFailed."""
        for is_last in (False, True):
            if not await self._wait_until_settled():
                break
            try:
                return await self._submit(do)
            except SessionGone as error:
                if is_last:
                    raise ToolFailed(f"it did not run: {error}") from None
        raise ToolFailed(f"it did not run: {self._describe_state()}")

    @property
    def tools(self) -> tuple[OfferedTool, ...] | None:
        """The tools that it offered last; None before it said so."""
        return self._list.tools

    @property
    def left(self) -> str:
        return self._list.left

    @property
    def is_busy(self) -> bool:
        return self._running > 0 or self._waiting > 0 or not self._queue.empty()

    @property
    def has_begun(self) -> bool:
        """True if there is a connection, or an attempt to make one."""
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
        """Tell if there is a connection; waits for the first attempt to make one, as long as settings say."""
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

    async def _submit(self, do: Callable[[Client], Awaitable[T]], seconds: float | None = None) -> T:
        work = Work(do, asyncio.get_running_loop().create_future())
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
                log.warning(
                    "MCP server %s: %s; its last output: %s", self.server.name, self.error, self.last_words or "-"
                )
                # After the first time a caller waits for the next attempt; later not before it is due.
                await self._pause(pause, is_told_at_once=pause > self._limits.first_pause_seconds)
                pause = min(pause * 2, self._limits.longest_pause_seconds)
        finally:
            self.status = "closed"
            self._settled.set()
            self._refuse_waiting()

    async def _pause(self, seconds: float, *, is_told_at_once: bool) -> None:
        """Wait, and then until a caller wants something of the server."""
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
                async with open_client(transport, self._list.note_message) as client:
                    await self._list.list_anew(client)
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
        """Give the connection up."""
        self._turn_away()
        if self._scope is not None:
            self._scope.cancel()

    def _turn_away(self) -> None:
        """Make later callers wait for the next connection."""
        if self.status == "connected":
            self.status = "connecting"
        self._settled.clear()

    def _note_error(self, text: str) -> None:
        self.error = self._secrets.mask(text)[:_ERROR_CHARACTERS]

    async def _serve(self, client: Client) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._list.listen, client)
            while True:
                work = await self._queue.get()
                if not work.done.done():
                    tasks.start_soon(self._do, client, work)

    async def _do(self, client: Client, work: Work) -> None:
        """One piece of work beside the others. A caller who gives up waiting for it has it cancelled."""
        with anyio.CancelScope() as scope:
            work.done.add_done_callback(lambda done: scope.cancel())
            is_in_vain = is_forgotten = False
            self._running += 1
            try:
                value = await work.do(client)
                if not work.done.done():
                    work.done.set_result(value)
            except Exception as error:
                code = error.code if isinstance(error, MCPError) else None
                is_in_vain, is_forgotten = code not in (*_ANSWERS, SESSION_GONE), code == SESSION_GONE
                text = self._secrets.mask(describe_error(error))[:_ERROR_CHARACTERS]
                if is_forgotten:
                    self._turn_away()
                work.fail(self._make_error(code, text))
            finally:
                self._running -= 1
                self._answered.set()
                # The connection ends, and what was asked with it.
                work.fail(ServerUnreachable(self._words.reason or _CLOSED))
        if is_forgotten:
            await self._end_forgotten()
        elif is_in_vain or scope.cancelled_caught:
            await self._probe(client)

    def _make_error(self, code: int | None, text: str) -> Exception:
        if code == SESSION_GONE:
            return SessionGone(text)
        return ServerUnreachable(self._words.reason or text) if code == CONNECTION_CLOSED else ToolFailed(text)

    async def _end_forgotten(self) -> None:
        """End a connection that the server has forgotten. Who was asked before may still be answered, for a while."""
        with anyio.move_on_after(self._limits.probe_seconds):
            while self._running > 0:
                self._answered.clear()
                await self._answered.wait()
        self._note_error("it has forgotten the session")
        self._end()

    async def _probe(self, client: Client) -> None:
        """After a call that was in vain, unless others may still be answered: is there anybody?"""
        if self._running > 0:
            return
        with anyio.move_on_after(self._limits.probe_seconds) as limit:
            # What is wrong with it, it may say in any way.
            with suppress(Exception):
                await self._list.list_anew(client)
                return
        self._note_error("it does not answer any more" if limit.cancelled_caught else _CLOSED)
        self._end()

    def _refuse_waiting(self) -> None:
        while not self._queue.empty():
            self._queue.get_nowait().fail(ToolFailed(f"it did not run: {self._describe_state()}"))


# The connections to MCP servers, in a thread with an event loop of its own: no one else waits for a server's messages
# to be read, however large.


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
