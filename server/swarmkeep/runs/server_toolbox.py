"""The tools of one session's agents, with those of their MCP servers as they are now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import msgspec
from cachetools import LRUCache

from swarmkeep.agent import Agent, MCPServer
from swarmkeep.agent.output import OUTPUT_TOOL
from swarmkeep.events.codec import digest, encode_text
from swarmkeep.events.facts import SessionEvent, ToolsListed
from swarmkeep.events.fold import find_listing
from swarmkeep.events.state import State
from swarmkeep.mcp.contents import OfferedTool, make_listing
from swarmkeep.mcp.pool import Offer, ServerPool
from swarmkeep.runs.tool_runners import ToolRunner
from swarmkeep.runs.toolbox import ReadTexts, RecordedToolbox, choose_schemas

TextCache: TypeAlias = LRUCache[str, str]
T = TypeVar("T")
_CACHED_CHARACTERS = 16_000_000
# What a text's name and its place in the cache take: a list of few tools is shorter.
_CHARACTERS_PER_TEXT = 500
# So many are read and written in a millisecond.
_LONG_LIST = 64_000


def make_text_cache() -> TextCache:
    return LRUCache(_CACHED_CHARACTERS, getsizeof=lambda text: len(text) + _CHARACTERS_PER_TEXT)


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    """A listing, and what it was made of."""

    tools: tuple[OfferedTool, ...]
    taken: frozenset[str]
    fact: ToolsListed
    text: str


class ServerToolbox(RecordedToolbox):
    """The offer is what the session has recorded. Before a model is asked, that is brought up to date with the
    servers that can be reached; for the others it stays, and their calls fail.

    `texts` are schemas by their hash, of all sessions, and what was chosen of them; `read_texts` reads what this one
    has stored.
    """

    def __init__(
        self, pool: ServerPool, scope: str, texts: TextCache, runner: ToolRunner, read_texts: ReadTexts | None
    ) -> None:
        super().__init__(texts, partial(pool.call, scope))
        self._pool = pool
        self._scope = scope
        self._cache = texts
        self._runner = runner
        self._read_stored = read_texts
        self._made: dict[str, _Made] = {}

    async def list_anew(self, agent: Agent, state: State) -> tuple[list[SessionEvent], dict[str, str]]:
        # Where tools run: a loop that never waits is not to wait here either.
        offers: list[Offer] = await self._runner(partial(self._ask_servers, agent), is_async=True, seconds=None)
        recorded = [find_listing(state, agent.name, server.name) for server in agent.mcp_servers]
        # A list that stays keeps its names.
        staying = [fact for fact, offer in zip(recorded, offers, strict=True) if fact and offer.tools is None]
        taken = {*agent.tools(), OUTPUT_TOOL, *(tool.name for fact in staying for tool in fact.tools)}
        facts: list[SessionEvent] = []
        texts: dict[str, str] = {}
        for server, offer, before in zip(agent.mcp_servers, offers, recorded, strict=True):
            if offer.tools is None:
                if before is None:
                    facts.append(ToolsListed(server=server.name, error=offer.error or "it did not answer in time"))
                continue
            fact, text = await self._make_listing(server, offer.tools, taken)
            taken |= {tool.name for tool in fact.tools}
            if fact.schemas is not None:
                self._cache[fact.schemas] = text
            if fact != before:
                facts.append(fact)
                texts |= {} if fact.schemas is None else {fact.schemas: text}
        return facts, texts

    async def _make_listing(
        self, server: MCPServer, tools: tuple[OfferedTool, ...], taken: set[str]
    ) -> tuple[ToolsListed, str]:
        made = self._made.get(server.name)
        # By identity: a server that lists its tools again gives others.
        if made is None or made.tools is not tools or made.taken != taken:
            make = partial(make_listing, server, tools, frozenset(taken))
            fact, text = await self._do_aside(make, sum(tool.size for tool in tools))
            made = self._made[server.name] = _Made(tools=tools, taken=frozenset(taken), fact=fact, text=text)
        return made.fact, made.text

    async def _choose_schemas(self, name: str, text: str, offered: set[str]) -> str:
        choice = f"{name} {digest(encode_text(sorted(offered)))}"
        chosen = self._cache.get(choice)
        if chosen is None:
            chosen = await self._do_aside(partial(choose_schemas, text, offered), len(text))
            self._cache[choice] = chosen
        return chosen

    async def _do_aside(self, work: Callable[[], T], size: int) -> T:
        """Do work that takes its time for a long list, where tools run: no one else waits for it."""
        if size < _LONG_LIST:
            return work()
        result: T = await self._runner(work, is_async=False, seconds=None)
        return result

    async def _ask_servers(self, agent: Agent) -> list[Offer]:
        return list(await asyncio.gather(*(self._pool.find_tools(self._scope, server) for server in agent.mcp_servers)))

    async def _read_texts(self, hashes: Sequence[str]) -> Mapping[str, str]:
        missing = [name for name in hashes if name not in self._cache]
        if missing and self._read_stored is not None:
            self._cache.update(await self._read_stored(missing))
        return {name: text for name in hashes if (text := self._cache.get(name)) is not None}
