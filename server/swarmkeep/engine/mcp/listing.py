"""What a server offers, and whether that is still so."""

from __future__ import annotations

import asyncio
import logging

import msgspec
from mcp import Client
from mcp.types import ToolListChangedNotification

from swarmkeep.agent import MCPServer
from swarmkeep.engine.mcp.client import list_offered
from swarmkeep.engine.mcp.contents import OfferedTool
from swarmkeep.engine.models.secrets import Secrets

log = logging.getLogger(__name__)

_NAMES_CHARACTERS = 500


class ToolList:
    """The tools of one server, as they were listed last. `tools` is None before that."""

    def __init__(self, server: MCPServer, secrets: Secrets) -> None:
        self.tools: tuple[OfferedTool, ...] | None = None
        self._server = server
        self._secrets = secrets
        self.left = ""
        """Which tools agents do without, for whoever runs this."""
        self._listed_at = 0.0
        self._is_stale = False

    def is_older_than(self, seconds: float) -> bool:
        """Whether it was listed before that, or the server has said that it has changed."""
        return self._is_stale or asyncio.get_running_loop().time() - self._listed_at > seconds

    async def list_anew(self, client: Client) -> None:
        self._is_stale = False
        offered, left = await list_offered(client, self._server)
        self._tell_left(left)
        self.tools = tuple(msgspec.convert(self._secrets.mask(msgspec.to_builtins(offered)), list[OfferedTool]))
        self._listed_at = asyncio.get_running_loop().time()

    def _tell_left(self, left: list[str]) -> None:
        """Tell whoever runs this which tools agents do without, once."""
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
