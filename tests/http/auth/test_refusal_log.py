"""Whoever runs a server sees in its log who was refused, and is not flooded by it."""

from __future__ import annotations

import pytest

from swarmkeep.http.auth import RefusalLog
from tests.http.auth.keys import bearer_headers, key_store
from tests.http.server import server_settings, start_server


def test_refusal_lines_limited_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    refusals = RefusalLog(2, clock=lambda: now)
    for _ in range(5):
        refusals.note(401, "192.0.2.1", "GET /v1/sessions")
    refusals.note(429, "192.0.2.2", "GET /v1/agents")
    now = 61.0
    refusals.note(403, "192.0.2.1", "DELETE /v1/sessions/s")
    assert caplog.messages == [
        "refused GET /v1/sessions as unauthenticated: 192.0.2.1",
        "refused GET /v1/sessions as unauthenticated: 192.0.2.1",
        "refused GET /v1/agents as too many requests: 192.0.2.2",
        "refused DELETE /v1/sessions/s as forbidden: 192.0.2.1; 3 more since the last such line",
    ]


async def test_a_server_tells_whom_it_refused(sqlite_ready: str, caplog: pytest.LogCaptureFixture) -> None:
    async with start_server(server_settings(database_url=sqlite_ready)) as service:
        key, secret = await key_store(service).create("default", role="read")
        wrong = secret[:-1] + ("a" if secret[-1] != "a" else "b")
        assert (await service.get("/v1/sessions")).status_code == 401
        assert (await service.get("/v1/sessions", headers=bearer_headers(wrong))).status_code == 401
        assert (await service.post("/v1/sessions", {}, headers=bearer_headers(secret))).status_code == 403
        assert (await service.get("/v1/sessions", headers=bearer_headers(secret))).status_code == 200
    told = [message for message in caplog.messages if message.startswith("refused ")]
    assert told == [
        "refused GET /v1/sessions as unauthenticated: 127.0.0.1",
        f"refused GET /v1/sessions by {key.id} as unauthenticated: 127.0.0.1",
        f"refused POST /v1/sessions by {key.id} as forbidden: 127.0.0.1",
    ]
    assert secret not in caplog.text
    assert wrong not in caplog.text
