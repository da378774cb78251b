"""The MCP servers of this process's agents. What speaks to them is loaded with the first agent that has some."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec
from cachetools import LRUCache

from swarmkeep.agent import Agent, MCPServer, Tool
from swarmkeep.agent.output import OUTPUT_TOOL
from swarmkeep.decide.checks import FileLimits
from swarmkeep.events.codec import digest, encode_text
from swarmkeep.events.facts import SessionEvent, ToolsListed
from swarmkeep.events.fold import find_listing
from swarmkeep.events.state import State
from swarmkeep.mcp.statuses import ServerStatus
from swarmkeep.runs.agents import AgentsError
from swarmkeep.runs.tool_runners import ToolRunner
from swarmkeep.runs.toolbox import ReadTexts, RecordedToolbox, Toolbox, choose_schemas
from swarmkeep.store.records import SessionKey

if TYPE_CHECKING:
    from swarmkeep.mcp.contents import OfferedTool
    from swarmkeep.mcp.pool import Offer, ServerPool

_MISSING = "mcp_servers need the MCP client, which is not installed: pip install 'swarmkeep[mcp]'"
_WRONG_VERSION = (
    "mcp_servers need the package mcp from version 2.3 on, and {} is installed: pip install 'swarmkeep[mcp]'"
)


def _find_version() -> str:
    try:
        return version("mcp")
    except PackageNotFoundError:
        return "another one"


class ToolServers:
    """The connections that all sessions of a process have to their agents' servers. `files`: which they may give."""

    def __init__(self, files: FileLimits | None = None) -> None:
        self._files = files or FileLimits()
        self._pool: ServerPool | None = None
        self._texts: TextCache | None = None

    def start(self, agents: Iterable[Agent]) -> None:
        """Begin to connect to the servers that sessions share, and wait for none."""
        for server in (server for agent in agents for server in agent.mcp_servers):
            if server.scope == "server":
                self._open()[0].open(server, "")

    def make_toolbox(self, scope: str, runner: ToolRunner, read_texts: ReadTexts | None = None) -> Toolbox:
        """For one session, which `scope` names. `read_texts` reads texts that it has stored."""
        return _LazyToolbox(lambda: self._make_toolbox(scope, runner, read_texts))

    def _make_toolbox(self, scope: str, runner: ToolRunner, read_texts: ReadTexts | None) -> Toolbox:
        pool, texts = self._open()
        return ServerToolbox(pool, scope, texts, runner, read_texts)

    def _open(self) -> tuple[ServerPool, TextCache]:
        if self._pool is None or self._texts is None:
            if find_spec("mcp") is None:
                raise ModuleNotFoundError(_MISSING, name="mcp")
            try:
                from swarmkeep.mcp.pool import ServerPool
                from swarmkeep.mcp.transports import ConnectionLimits
            except ImportError as error:
                # Earlier releases have other names.
                raise AgentsError(_WRONG_VERSION.format(_find_version())) from error

            self._pool, self._texts = ServerPool(ConnectionLimits(files=self._files)), make_text_cache()
            # If it is not closed, it goes with its user, or with the program.
            weakref.finalize(self, self._pool.close_blocking)
        return self._pool, self._texts

    async def ask(self, servers: Sequence[MCPServer]) -> list[ServerStatus]:
        """Return the status of these, once each was asked for its tools."""
        pool = self._open()[0]
        await asyncio.gather(*(pool.find_tools("", server) for server in servers))
        return pool.list_statuses()

    def list_statuses(self) -> list[ServerStatus]:
        return [] if self._pool is None else self._pool.list_statuses()

    def close_scope(self, scope: str) -> None:
        if self._pool is not None:
            self._pool.close_scope(scope)

    def close_session(self, key: SessionKey) -> None:
        """Close what a session has had of its own, which was deleted: another may get its id."""
        self.close_scope(_name_session(key))

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()


def name_scope(key: SessionKey, created_at: str) -> str:
    """Name the scope of a stored session's own connections: on other servers, they outlive the session for a while."""
    return f"{_name_session(key)}{created_at}"


def _name_session(key: SessionKey) -> str:
    return f"{key.tenant}/{key.id}/"


def check_client(agents: Iterable[Agent]) -> None:
    """Raise AgentsError if an agent has servers, and nothing here can speak to them."""
    for agent in agents:
        if agent.mcp_servers and find_spec("mcp") is None:
            raise AgentsError(f"agent {agent.name!r}: {_MISSING}")
        if agent.mcp_servers and _find_version().startswith(("0.", "1.")):
            raise AgentsError(f"agent {agent.name!r}: {_WRONG_VERSION.format(_find_version())}")


class _LazyToolbox:
    """A toolbox that is opened for the first agent with servers."""

    def __init__(self, open_toolbox: Callable[[], Toolbox]) -> None:
        self._open_toolbox = open_toolbox
        self._opened: Toolbox | None = None

    def _get(self) -> Toolbox:
        if self._opened is None:
            self._opened = self._open_toolbox()
        return self._opened

    def list_tools(self, agent: Agent, state: State) -> dict[str, Tool]:
        return self._get().list_tools(agent, state) if agent.mcp_servers else agent.tools()

    async def list_anew(self, agent: Agent, state: State) -> tuple[list[SessionEvent], dict[str, str]]:
        return await self._get().list_anew(agent, state) if agent.mcp_servers else ([], {})

    async def describe(self, agent: Agent, state: State) -> list[str]:
        return await self._get().describe(agent, state) if agent.mcp_servers else []


# The tools of one session's agents, with those of their MCP servers as they are now.

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
            from swarmkeep.mcp.contents import make_listing

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
