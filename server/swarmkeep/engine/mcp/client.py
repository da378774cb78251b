"""The official client, as it is used here: how it is opened, and what it is asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

from mcp import Client
from mcp.client._transport import TransportStreams
from mcp.client.session import MessageHandlerFnT
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, Implementation, RequestParamsMeta, Tool
from pydantic import ValidationError

from swarmkeep.agent import MCPServer
from swarmkeep.engine.mcp.bounds import MessageLimits
from swarmkeep.engine.mcp.contents import MOST_TOOLS, OfferedTool, read_tools
from swarmkeep.engine.mcp.http import open_http
from swarmkeep.engine.mcp.stdio import LastWords, open_stdio

_MOST_PAGES = 50


def open_transport(
    server: MCPServer, limits: MessageLimits, words: LastWords, on_end: Callable[[], None]
) -> AbstractAsyncContextManager[TransportStreams]:
    """Streams to and from the server. `on_end` is called when its process says nothing any more."""
    return open_http(server, limits) if server.url else open_stdio(server, limits, words, on_end)


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
    """What is offered of its tools, and the names of those that are wanted and are too large or too many.

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


def describe_error(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, MCPError):
        return error.error.message
    if isinstance(error, FileNotFoundError):
        return f"there is no program {error.filename!r}"
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return f"what it answered is not what the protocol asks for ({place}: {first['msg']})"
    return f"{type(error).__name__}: {error}"
