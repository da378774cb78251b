"""How it is with an MCP server, for whoever runs it."""

from __future__ import annotations

import msgspec


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How it is with a server; `tools` is how many it offers, if it ever said so, and `last_words` what it wrote to its
    standard error before it went, for whoever runs it."""

    name: str
    address: str
    status: str
    error: str | None
    tools: int | None
    last_words: str = ""
