"""Active runs in both clients."""

from __future__ import annotations

from swarmkeep_client import AsyncClient, Client
from tests.client.stub_server import StubServer, make_json_reply


async def test_active_runs_come_page_by_page(server: StubServer, client: Client, async_client: AsyncClient) -> None:
    def script() -> None:
        for name, cursor in (("r1", "c"), ("r2", None)):
            run = {"id": name, "session_id": "s", "status": "waiting", "agent": "A", "since": "then", "later": 1}
            server.script(make_json_reply({"data": [run], "next_cursor": cursor}))

    script()
    assert [run.id for run in client.active_runs("waiting", page_size=1)] == ["r1", "r2"]
    script()
    assert [(run.id, run.server) async for run in async_client.active_runs("waiting", page_size=1)] == [
        ("r1", None), ("r2", None),
    ]  # fmt: skip
    lines = ["GET /v1/runs?status=waiting&limit=1", "GET /v1/runs?status=waiting&limit=1&cursor=c"]
    assert server.lines == lines * 2
