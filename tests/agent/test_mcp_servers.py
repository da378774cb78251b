"""MCPServer as a value: what it accepts, what it is called, and what it never shows."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from swarmkeep import Agent, MCPServer

SECRET = "hunter2-and-more"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "either a command"),
        ({"command": ["x"], "url": "http://h/mcp"}, "either a command"),
        ({"command": ["x"], "headers": {"A": "b"}}, "headers need a url"),
        ({"url": "http://h/mcp", "env": {"A": "b"}}, "env needs a command"),
        ({"url": "ftp://h/mcp"}, "http:// or https://"),
        ({"url": "http://h:99999999/mcp"}, "cannot be read"),
        ({"command": ["a\0b"]}, "NUL"),
        ({"command": ["x"], "name": "a b"}, "letters, digits"),
        ({"command": ["x"], "timeout": 0}, "greater than 0"),
        ({"command": ["x"], "scope": "user"}, "'server' or 'session'"),
        ({"command": ["x"], "retries": 3}, "Extra inputs"),
    ],
)
def test_what_is_no_server_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        MCPServer(**given)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"command": ["npx", "-y", "@modelcontextprotocol/server-filesystem", "/data"]}, "server-filesystem"),
        ({"command": ["uvx", "mcp-server-git@1.2"]}, "mcp-server-git"),
        ({"command": ["/usr/bin/python3", "notes.py"]}, "notes"),
        ({"command": ["my-server"]}, "my-server"),
        ({"command": ["env", "API_KEY=secret", "my-server"]}, "my-server"),
        ({"command": ["docker", "run", "-i", "-e", "TOKEN=secret", "mcp/notes"]}, "notes"),
        ({"url": "https://mcp.example.com/mcp"}, "mcp_example_com"),
        ({"command": ["x"], "name": "files"}, "files"),
    ],
)
def test_unnamed_server_gets_a_name(given: dict[str, Any], name: str) -> None:
    assert MCPServer(**given).name == name


def test_secrets_are_not_shown() -> None:
    servers = [
        MCPServer(command=["x", f"--key={SECRET}"], env={"KEY": SECRET}),
        MCPServer(command=["env", f"KEY={SECRET}"]),
        MCPServer(
            url=f"https://me:{SECRET}@h/{SECRET}/mcp?key={SECRET}", headers={"Authorization": f"Bearer {SECRET}"}
        ),
    ]
    shown = [(server.name, server.address) for server in servers]
    assert SECRET not in f"{servers} {shown} {Agent(mcp_servers=servers)!r}"
    assert all(SECRET in set(server.list_secrets()) for server in servers)
    with pytest.raises(ValidationError) as refused:
        MCPServer(command=["x"], url="http://h", env={"KEY": SECRET})
    assert SECRET not in str(refused.value)


def test_server_names_are_unique_per_agent() -> None:
    one = MCPServer(command=["x"])
    with pytest.raises(ValidationError, match="two servers are called 'x'"):
        Agent(mcp_servers=[one, MCPServer(command=["x"], env={"A": "b"})])
    with pytest.raises(ValidationError, match="is not an MCPServer"):
        Agent(mcp_servers=["x"])


def test_hints_count_only_when_trusted() -> None:
    trusted, other = MCPServer(command=["x"], trust_hints=True), MCPServer(command=["x"])
    assert trusted.needs_approval("rm", is_destructive=True)
    assert not other.needs_approval("rm", is_destructive=True)
    assert MCPServer(command=["x"], requires_approval=True).needs_approval("ls", is_destructive=False)
    assert MCPServer(command=["x"], requires_approval=("rm",)).needs_approval("rm", is_destructive=False)
