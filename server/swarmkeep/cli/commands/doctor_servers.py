"""What `swarmkeep doctor` finds of agents' MCP servers: each is connected to, and asked for its tools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Literal

import msgspec

from swarmkeep.agent import MCPServer
from swarmkeep.engine.agents.registry import AgentsError, Registry
from swarmkeep.engine.mcp.servers import ServerStatus, ToolServers, check_client


class CheckResult(msgspec.Struct, frozen=True):
    """What was found. Something that is wrong keeps the server from starting, or from working."""

    check: str
    status: Literal["ok", "warning", "wrong"]
    detail: str


def check_mcp_servers(registry: Registry) -> Iterator[CheckResult]:
    """One line for each. A server that cannot be reached keeps nobody else from working, so it is a warning."""
    servers = {server.digest: server for agent in registry for server in agent.mcp_servers}
    if not servers:
        return
    try:
        check_client(registry)
    except AgentsError as error:
        yield CheckResult("mcp servers", "wrong", str(error))
        return
    for status in asyncio.run(_connect(list(servers.values()))):
        place = f"{status.name} ({status.address})"
        if status.tools is None:
            why = status.error or "it did not answer in time"
            words = f"; it said last: {status.last_words}" if status.last_words else ""
            yield CheckResult("mcp server", "warning", f"{place} cannot be reached: {why}{words}")
        else:
            yield CheckResult("mcp server", "ok", f"{place} offers {status.tools} tools")


async def _connect(servers: list[MCPServer]) -> list[ServerStatus]:
    opened = ToolServers()
    try:
        return await opened.ask(servers)
    finally:
        await opened.close()
