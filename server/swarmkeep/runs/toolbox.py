"""List the tools that an agent's model may call: the agent's own functions, and the tools of its MCP servers."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from swarmkeep.agent import Agent, MCPServer, Result, Tool
from swarmkeep.events.codec import decode, encode_text
from swarmkeep.events.facts import ListedTool, SessionEvent
from swarmkeep.events.fold import find_listing
from swarmkeep.events.state import State

# The tools of MCP servers that an agent is offered, as its session last recorded them; no server is asked here.

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
    """List the tools that the agent is offered, by its servers' settings and the session's recorded lists.

    An agent's own function goes before a tool of the same name.
    """
    own = agent.tools()
    for server in agent.mcp_servers:
        listing = find_listing(state, agent.name, server.name)
        for listed in () if listing is None or listing.schemas is None else listing.tools:
            if listed.name not in own and server.offers(listed.own_name):
                yield ServerTool(server, listed, call)


# Texts that a session has stored, by hash; without those that are not there.
ReadTexts = Callable[[Sequence[str]], Awaitable[Mapping[str, str]]]


class Toolbox(Protocol):
    """The tools of one session's agents. Agents without servers cost it nothing."""

    def list_tools(self, agent: Agent, state: State) -> dict[str, Tool]:
        """By name. Raises InvalidFunctionError."""
        ...

    async def list_anew(self, agent: Agent, state: State) -> tuple[list[SessionEvent], dict[str, str]]:
        """List the events to record of what the agent's servers offer now, and the named texts, by hash."""
        ...

    async def describe(self, agent: Agent, state: State) -> list[str]:
        """The schemas of the agent's servers' tools: for each server a text, with commas in between."""
        ...


class RecordedToolbox:
    """Tools as the session has them recorded; `texts` are their schemas, by hash. No server is asked."""

    def __init__(self, texts: Mapping[str, str], call: CallServer = refuse_call) -> None:
        self._texts = texts
        self._call = call

    def list_tools(self, agent: Agent, state: State) -> dict[str, Tool]:
        own = agent.tools()
        if not agent.mcp_servers:
            return own
        return {**own, **{tool.name: tool for tool in list_server_tools(agent, state, self._call)}}

    async def list_anew(self, agent: Agent, state: State) -> tuple[list[SessionEvent], dict[str, str]]:
        return [], {}

    async def describe(self, agent: Agent, state: State) -> list[str]:
        if not agent.mcp_servers:
            return []
        listings = [find_listing(state, agent.name, server.name) for server in agent.mcp_servers]
        hashes = [listing.schemas for listing in listings if listing is not None and listing.schemas is not None]
        texts = await self._read_texts(hashes)
        offered = {tool.name for tool in list_server_tools(agent, state)}
        chosen = [await self._choose_schemas(name, texts[name], offered) for name in hashes if name in texts]
        return [text for text in chosen if text]

    async def _choose_schemas(self, name: str, text: str, offered: set[str]) -> str:
        """Those of the text with this hash that are offered."""
        return choose_schemas(text, offered)

    async def _read_texts(self, hashes: Sequence[str]) -> Mapping[str, str]:
        return self._texts


def choose_schemas(text: str, offered: set[str]) -> str:
    """Without tools that settings do not allow by now, or that have the name of a function that the agent has."""
    schemas = decode(f"[{text}]")
    chosen = [schema for schema in schemas if schema["function"]["name"] in offered]
    return text if len(chosen) == len(schemas) else encode_text(chosen)[1:-1]


NO_SERVERS = RecordedToolbox({})
