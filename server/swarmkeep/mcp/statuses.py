"""Tell the operator the status of an MCP server."""

from __future__ import annotations

import msgspec


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a server, for its operator.

    `tools` is how many it offers, if it ever said so; `left` names those that are too large or too many to be offered;
    `last_words` is what it wrote to its standard error before it went.
    """

    name: str
    address: str
    status: str
    error: str | None
    tools: int | None
    last_words: str = ""
    left: str = ""
