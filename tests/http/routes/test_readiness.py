"""Whether requests are welcome, and what the server says of the MCP servers of its agents."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

from swarmkeep.http.routes.health import sum_up
from swarmkeep.mcp.statuses import ServerStatus
from tests.http.server import RunningServer, check_problem

READY = "/health/ready"


def make_status(name: str, status: str) -> ServerStatus:
    return ServerStatus(name=name, address="x", status=status, error=None, tools=None)


def test_unresponsive_server_of_shared_name_told() -> None:
    found = [make_status("notes", "unreachable"), make_status("notes", "connected"), make_status("mail", "connected")]
    for servers in (found, found[::-1]):
        assert sum_up(servers) == {"notes": "unreachable", "mail": "connected"}


@contextmanager
def disk_full() -> Iterator[None]:
    """This process may not write beyond the first page of any file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_server_unable_to_record_is_unready(plain: RunningServer) -> None:
    session = await plain.session()
    with disk_full():
        assert (await plain.get(READY)).status_code == 200, "it does not know yet"
        check_problem(await plain.post("/v1/sessions", {}), 503, "store_unavailable")
        for _ in range(2):
            check_problem(await plain.get(READY), 503, "store_unavailable")
        assert (await plain.get(session)).status_code == 200
    assert (await plain.get(READY)).status_code == 200
