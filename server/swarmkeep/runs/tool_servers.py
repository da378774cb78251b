"""The MCP servers of this process's agents. What speaks to them is loaded with the first agent that has some."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from swarmkeep.agent import Agent, MCPServer, Tool
from swarmkeep.agent.mcp_servers import ServerStatus
from swarmkeep.decide.checks import FileLimits
from swarmkeep.events.facts import SessionEvent
from swarmkeep.events.state import State
from swarmkeep.runs.agents import AgentsError
from swarmkeep.runs.tool_runners import ToolRunner
from swarmkeep.runs.toolbox import ReadTexts, Toolbox
from swarmkeep.store.records import SessionKey

if TYPE_CHECKING:
    from swarmkeep.mcp.pool import ServerPool
    from swarmkeep.runs.server_toolbox import TextCache


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
        from swarmkeep.runs.server_toolbox import ServerToolbox

        pool, texts = self._open()
        return ServerToolbox(pool, scope, texts, runner, read_texts)

    def _open(self) -> tuple[ServerPool, TextCache]:
        if self._pool is None or self._texts is None:
            if find_spec("mcp") is None:
                raise ModuleNotFoundError(_MISSING, name="mcp")
            try:
                from swarmkeep.mcp.pool import ServerPool
                from swarmkeep.mcp.transports import ConnectionLimits
                from swarmkeep.runs.server_toolbox import make_text_cache
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
