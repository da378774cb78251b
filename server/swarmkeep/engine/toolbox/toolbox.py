"""What an agent's model may call: the agent's own functions, and the tools of its MCP servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from swarmkeep.agent import Agent, Tool
from swarmkeep.domain.codec import decode, encode_text
from swarmkeep.domain.events import SessionEvent
from swarmkeep.domain.folding.listings import find_listing
from swarmkeep.domain.state import State
from swarmkeep.engine.agents.server_tools import CallServer, list_server_tools, refuse_call

# Texts that a session has stored, by hash; without those that are not there.
ReadTexts = Callable[[Sequence[str]], Awaitable[Mapping[str, str]]]


class Toolbox(Protocol):
    """The tools of one session's agents. Agents without servers cost it nothing."""

    def list_tools(self, agent: Agent, state: State) -> dict[str, Tool]:
        """By name. Raises InvalidFunctionError."""
        ...

    async def list_anew(self, agent: Agent, state: State) -> tuple[list[SessionEvent], dict[str, str]]:
        """What is to be recorded of what the agent's servers offer now, and the texts that it names, by hash."""
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
