"""MCPServer: where an agent's further tools come from, by the Model Context Protocol."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Annotated, Literal, Self
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Scope = Literal["server", "session"]

_LAUNCHERS = re.compile(
    r"(python[\d.]*|pythonw|node|deno|bun|npx|uvx|uv|pipx|docker|podman|bash|sh|env|run|tool|exec|cmd)(\.exe)?"
)
_UNFIT = re.compile(r"[^A-Za-z0-9_-]+")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


class MCPServer(BaseModel):
    """A server of tools: a `command` that is started and spoken to over its standard input and output, or a `url`
    (streamable HTTP). `env` and `headers` are never recorded, logged or shown.

    `name` is what it is called in the log; by default it is made of the command or the URL. `prefix` and an
    underscore go before the names of all its tools; without one, `name` does where a name clashes with another function
    of the agent. `tools`: only these, by the server's own names.

    What a server says of its tools counts only with `trust_hints`: `idempotentHint` and `readOnlyHint` as
    `@tool(idempotent=True)`, `destructiveHint` as `@tool(requires_approval=True)`. `requires_approval`: all of its
    calls need one, or those of the tools named. `timeout`: seconds for a call, `connect_timeout` for how long a
    request to the model waits for the server. `scope="session"`: a connection, and so a process, for each session.
    `files=False`: pictures and other files that it answers with are named, and not kept.

    Raises ValueError for what cannot be a server.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    command: tuple[str, ...] = Field(default=(), repr=False)
    url: str = Field(default="", repr=False)
    env: dict[str, str] = Field(default={}, repr=False)
    headers: dict[str, str] = Field(default={}, repr=False)
    name: str = ""
    prefix: str | None = None
    tools: tuple[str, ...] | None = None
    trust_hints: bool = False
    requires_approval: bool | tuple[str, ...] = False
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    connect_timeout: Annotated[float, Field(gt=0, le=600)] = 10.0
    scope: Scope = "server"
    files: bool = True

    @field_validator("name", "prefix")
    @classmethod
    def _check_name(cls, value: str | None) -> str | None:
        if value and not _NAME.fullmatch(value):
            raise ValueError("must be 1 to 32 letters, digits, _ and -")
        return value

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either a command, as a list, or a url")
        if self.env and self.url:
            raise ValueError("env needs a command; for a url, use headers")
        if self.headers and self.command:
            raise ValueError("headers need a url; for a command, use env")
        if any("\0" in text for text in (*self.command, *self.env, *self.env.values())):
            raise ValueError("a command and its env cannot hold NUL")
        if self.url and (not _split(self.url).hostname or _split(self.url).scheme not in ("http", "https")):
            raise ValueError("the url must begin with http:// or https://, and name a host")
        if not self.name:
            # Frozen is for others.
            self.__dict__["name"] = _make_name(self.command, self.url)
        return self

    @property
    def kind(self) -> Literal["stdio", "http"]:
        return "stdio" if self.command else "http"

    @property
    def address(self) -> str:
        """The address of the server, without anything that may be secret: the program, or the URL's host."""
        if self.command:
            return PurePath(self.command[0]).name
        parts = _split(self.url)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname}{port}"

    @property
    def digest(self) -> str:
        """Equal for servers that one connection can serve: it keeps a list of the tools that are offered, too."""
        tools = None if self.tools is None else sorted(self.tools)
        parts = [self.command, self.url, self.env, self.headers, self.name, self.connect_timeout, self.files, tools]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def offers(self, tool: str) -> bool:
        return self.tools is None or tool in self.tools

    def needs_approval(self, tool: str, *, is_destructive: bool) -> bool:
        """Tell if a person decides before a call of this tool, by the server's own name for it."""
        if isinstance(self.requires_approval, bool):
            return self.requires_approval or (self.trust_hints and is_destructive)
        return tool in self.requires_approval or (self.trust_hints and is_destructive)

    def list_secrets(self) -> Iterator[str]:
        """The texts that must not be shown: values of the environment, of headers, and of the URL's parts."""
        for value in (*self.env.values(), *self.headers.values()):
            yield value
            # Of `Bearer abc`, `abc` as well.
            yield value.rpartition(" ")[2]
        parts = _split(self.url)
        yield from (text for text in (parts.username, parts.password) if text)
        yield from (value for _, value in parse_qsl(parts.query))
        # Of `--token=abc`, and of `TOKEN=abc` as `env` and containers take it.
        yield from (value for _, _, value in (part.partition("=") for part in self.command) if value)


def check_mcp_servers(value: object, where: str) -> list[MCPServer]:
    """A list of servers, each with a name of its own. Raises ValueError."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{where} must be a list of MCPServer, not a {type(value).__name__}")
    seen: set[str] = set()
    for server in value:
        if not isinstance(server, MCPServer):
            raise ValueError(f"{where}: {type(server).__name__} is not an MCPServer")
        if server.name in seen:
            raise ValueError(f"{where}: two servers are called {server.name!r}; give one of them another name")
        seen.add(server.name)
    return list(value)


def _make_name(command: Sequence[str], url: str) -> str:
    if url:
        return _fit(_split(url).hostname or "")
    # What is given to the program may be secret, and a name is shown to everybody.
    words = [PurePath(part).name for part in command if not part.startswith("-") and "=" not in part]
    chosen = next((word for word in words if not _LAUNCHERS.fullmatch(word)), PurePath(command[0]).name)
    return _fit(chosen.rpartition("@")[0] or chosen if "@" in chosen else PurePath(chosen).stem)


def _fit(text: str) -> str:
    return _UNFIT.sub("_", text).strip("_")[:32] or "mcp"


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError("the url cannot be read") from None
    return parts
