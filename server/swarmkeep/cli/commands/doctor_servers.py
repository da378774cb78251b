"""What `swarmkeep doctor` finds of other servers: of agents' MCP servers, and of the one that commands are about."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Literal

import msgspec

from swarmkeep.agent import MCPServer
from swarmkeep.cli.terminal import Refused
from swarmkeep.domain.wording import pluralize
from swarmkeep.engine.agents.registry import AgentsError, Registry
from swarmkeep.engine.mcp.servers import ToolServers, check_client
from swarmkeep.engine.mcp.statuses import ServerStatus

# Of a server that is there, the answer does not take long.
_NAMED_SERVER_SECONDS = 5.0


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
            words = f"; its last output: {status.last_words}" if status.last_words else ""
            yield CheckResult("mcp server", "warning", f"{place} cannot be reached: {why}{words}")
            continue
        offered = f"{place} offers {pluralize(status.tools, 'tool')}"
        if status.left:
            yield CheckResult("mcp server", "warning", f"{offered}; too large or too many are: {status.left}")
        else:
            yield CheckResult("mcp server", "ok", offered)


async def _connect(servers: list[MCPServer]) -> list[ServerStatus]:
    opened = ToolServers()
    try:
        return await opened.ask(servers)
    finally:
        await opened.close()


def check_named_server() -> Iterator[CheckResult]:
    """SWARMKEEP_URL, if it is set: a server starts without what is there, and commands do not work without it."""
    url = os.environ.get("SWARMKEEP_URL")
    if not url:
        return
    from swarmkeep.cli.sources.server import explain_unreachable
    from swarmkeep_client import ApiError, Client

    try:
        with explain_unreachable(url), Client(url, max_retries=0, timeout=_NAMED_SERVER_SECONDS) as client:
            client.health()
            client.me()
    except (Refused, ApiError, ValueError) as error:
        yield CheckResult(
            "commands", "warning", f"{error}; other commands use this server, because SWARMKEEP_URL is set"
        )
    else:
        yield CheckResult("commands", "ok", f"{url} (SWARMKEEP_URL) answers")
