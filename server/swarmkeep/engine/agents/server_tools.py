"""The tools of MCP servers that an agent is offered, as its session last recorded them; no server is asked here."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from swarmkeep.agent import Agent, MCPServer, Result, Tool
from swarmkeep.domain.facts.tools import ListedTool
from swarmkeep.domain.folding.listings import find_listing
from swarmkeep.domain.state import State

# A server, its own name for a tool, the arguments, and the call's id. Raises ToolFailed.
CallServer = Callable[[MCPServer, str, dict[str, Any], str], Awaitable[Result]]


class ServerTool(Tool):
    """A tool that is a server's: it has no function, and its server checks its arguments."""

    __slots__ = ("_call", "server", "tool")

    def __init__(self, server: MCPServer, listed: ListedTool, call: CallServer) -> None:
        self.name = listed.name
        self.server = server
        self.tool = listed.own_name
        self.is_async = True
        self.requires_approval = server.needs_approval(self.tool, is_destructive=listed.destructive is True)
        self.idempotent = server.trust_hints and listed.idempotent is True
        self.timeout = server.timeout
        self.concurrent = False
        # Only its server knows its parameters.
        self.has_parameters = True
        self.asked_agent = None
        self.guardrails = ()
        self._call = call

    def bind(self, arguments: str, *, context_variables: dict[str, Any], tool_call_id: str) -> functools.partial[Any]:
        return functools.partial(self._call, self.server, self.tool, self.parse_arguments(arguments), tool_call_id)


async def refuse_call(server: MCPServer, tool: str, arguments: dict[str, Any], call_id: str) -> Result:
    raise RuntimeError(f"{server.name} is not called here")


def list_server_tools(agent: Agent, state: State, call: CallServer = refuse_call) -> Iterator[ServerTool]:
    """What the agent is offered, by today's settings of its servers and the session's recorded lists.

    An agent's own function goes before a tool of the same name.
    """
    own = agent.tools()
    for server in agent.mcp_servers:
        listing = find_listing(state, agent.name, server.name)
        for listed in () if listing is None or listing.schemas is None else listing.tools:
            if listed.name not in own and server.offers(listed.own_name):
                yield ServerTool(server, listed, call)
