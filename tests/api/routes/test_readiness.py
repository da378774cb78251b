"""What the server says of the MCP servers of its agents."""

from __future__ import annotations

from swarmkeep.api.routes.health import sum_up
from swarmkeep.engine.mcp.servers import ServerStatus


def make_status(name: str, status: str) -> ServerStatus:
    return ServerStatus(name=name, address="x", status=status, error=None, tools=None)


def test_of_servers_with_one_name_the_one_that_does_not_answer_is_told() -> None:
    found = [make_status("notes", "unreachable"), make_status("notes", "connected"), make_status("mail", "connected")]
    for servers in (found, found[::-1]):
        assert sum_up(servers) == {"notes": "unreachable", "mail": "connected"}
