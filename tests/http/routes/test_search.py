"""Finding sessions over HTTP: while the server indexes behind, with filters, and where it is turned off."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from swarmkeep.events.codec import Json
from tests.http.server import PATIENCE_SECONDS, RunningServer, server_settings, start_server
from tests.support.scripted import ScriptedModel


async def find(server: RunningServer, **params: Any) -> list[Json]:
    answer = await server.get("/v1/sessions", params=params)
    assert answer.status_code == 200, answer.text
    found: list[Json] = answer.json()["data"]
    return found


async def wait_until_found(server: RunningServer, words: str, count: int = 1) -> list[Json]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found := await find(server, q=words)) != count:
            await server.get("/health/ready")
    return found


async def test_search_follows_rename_redaction_and_deletion(service: RunningServer, model: ScriptedModel) -> None:
    assert service.engine.indexing.sessions_behind == 0
    model.say("The zebra is on its way.")
    session = (await service.post("/v1/sessions", {"metadata": {"team": "a"}})).json()
    assert session["title"] is None
    path = f"/v1/sessions/{session['id']}"
    assert (await service.post(f"{path}/runs", {"input": "Where is\nmy   zebra?"})).json()["status"] == "completed"
    (found,) = await wait_until_found(service, "zebr")
    assert (found["id"], found["title"]) == (session["id"], "Where is my zebra?")
    assert (await service.get(path)).json()["title"] == found["title"]
    for match in found["matches"]:
        assert [match["snippet"][begin:end] for begin, end in match["ranges"]] == ["zebr"]
    events = (await service.get(f"{path}/events", params={"type": "message.added"})).json()["data"]
    assert [match["seq"] for match in found["matches"]] == [event["seq"] for event in reversed(events)]
    # With the other filters.
    last = found["updated_at"]
    for params, count in (
        ({"last_run": "completed", "metadata.team": "a", "active_after": last}, 1),
        ({"last_run": "failed"}, 0),
        ({"metadata.team": "b"}, 0),
        ({"active_before": last}, 0),
        ({"active_after": "2999-01-01"}, 0),
        ({"q": "  "}, 1),
        ({"q": '"; *'}, 0),
    ):
        assert len(await find(service, **{"q": "zebra", **params})) == count, params
    assert "matches" not in (await find(service))[0]
    # Another title, and nothing of it any more.
    assert (await service.patch(path, {"metadata": {"title": " A  striped horse "}})).json()[
        "title"
    ] == "A striped horse"
    (found,) = await wait_until_found(service, "striped")
    assert found["matches"][0]["seq"] is None
    await service.post(f"{path}/redact", {"seqs": [event["seq"] for event in events], "reason": "asked for"})
    assert await find(service, q="zebra") == []
    assert (await service.delete(path, params={"reason": "asked"})).status_code == 204
    assert await find(service, q="striped") == []
    entries = (await service.get("/v1/audit")).json()["data"]
    assert entries[-1]["data"]["reason"] == "asked"


@pytest.mark.parametrize(
    "params",
    [{"q": "x" * 201}, {"active_after": "yesterday"}, {"active_before": "2026-13-01"}, {"q": "a", "cursor": "xyz"}],
    ids=str,
)
async def test_invalid_search_refused(plain: RunningServer, params: Json) -> None:
    answer = await plain.get("/v1/sessions", params=params)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


async def test_search_disabled_server_says_so(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready, search="off")) as server:
        await server.post("/v1/sessions", {"id": "a"})
        answer = await server.get("/v1/sessions", params={"q": "a"})
        assert (answer.status_code, answer.json()["code"]) == (501, "search_off")
        assert [one["id"] for one in await find(server)] == ["a"]
    # What was recorded meanwhile is found once it is on again.
    async with start_server(server_settings(database_url=sqlite_ready)) as server:
        await wait_until_found(server, "a")
