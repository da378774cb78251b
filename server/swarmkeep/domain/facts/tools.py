"""Facts about tools that are not an agent's own functions."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.domain.facts.fact import Fact


class ListedTool(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tool under the name that the model is given; `tool` is its server's own name for it, where that is another.

    `idempotent` and `destructive`: so its server says.
    """

    name: str
    tool: str | UnsetType = UNSET
    idempotent: bool | UnsetType = UNSET
    destructive: bool | UnsetType = UNSET

    @property
    def own_name(self) -> str:
        return self.name if self.tool is UNSET else self.tool


class ToolsListed(Fact, frozen=True, kw_only=True):
    """From here on the event's agent is offered these tools of an MCP server, and no others of it.

    `schemas`: the SHA-256 (hex) of the text that describes them in requests, a JSON array without what is around it.
    `error`: why there is no list.
    """

    type: ClassVar[str] = "tools.listed"
    server: str
    tools: tuple[ListedTool, ...] = ()
    schemas: str | None = None
    error: str | UnsetType = UNSET

    @property
    def is_without_schemas(self) -> bool:
        """Tell if there are tools whose descriptions were redacted."""
        return bool(self.tools) and self.schemas is None


class ToolListing(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is offered of an MCP server."""

    agent: str
    fact: ToolsListed
