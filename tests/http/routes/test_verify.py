"""Checking a session over HTTP."""

from __future__ import annotations

from typing import cast

from sqlalchemy import text

from swarmkeep.store.opening import SqlStore
from tests.http.server import RunningServer, check_problem


async def test_a_session_is_checked(service: RunningServer) -> None:
    session = await service.session(messages=[{"role": "user", "content": "hello"}])
    seen = (await service.get(session)).json()
    found = (await service.get(f"{session}/verify")).json()
    head = {"seq": seen["seq"], "hash": seen["hash"]}
    assert found == {
        "valid": True,
        "events": 2,
        "head": head,
        "problems": [],
        "problem_count": 0,
        "redacted": [],
        "redacted_count": 0,
    }
    check_problem(await service.get("/v1/sessions/nobody/verify"), 404, "session_not_found")


async def test_session_checked_against_noted_head(service: RunningServer) -> None:
    session = await service.session()
    digest = (await service.get(session)).json()["hash"]

    async def codes(head: str) -> list[str]:
        found = (await service.get(f"{session}/verify", params={"head": head})).json()
        assert found["valid"] is not bool(found["problems"])
        return [one["code"] for one in found["problems"]]

    assert await codes(f"1:{digest}") == await codes(f"1:{digest.upper()}") == []
    assert await codes(f"2:{digest}") == ["truncated"]
    assert await codes(f"1:{'0' * 64}") == ["rewritten"]
    for wrong in (
        "",
        "1",
        f"0:{digest}",
        f"1:{digest[1:]}",
        f"x:{digest}",
        f" 1:{digest}",
        f"1:{digest}:",
        "٣:" + digest,
    ):
        found = check_problem(await service.get(f"{session}/verify", params={"head": wrong}), 400, "invalid_request")
        assert found["errors"][0]["pointer"] == "/query/head"


async def test_changed_event_named_and_shown(service: RunningServer) -> None:
    session = await service.session(messages=[{"role": "user", "content": "hello"}, {"role": "user", "content": "you"}])
    database = cast(SqlStore, service.engine.store).database
    damage = text("UPDATE events SET payload = '{\"message\"' WHERE seq = 2")
    await database.write(lambda connection: connection.execute(damage) and None)
    found = (await service.get(f"{session}/verify")).json()
    assert (found["valid"], found["problems"][0]["seq"], found["problems"][0]["code"]) == (False, 2, "payload_differs")
    events = await service.events(session)
    assert [event["seq"] for event in events] == [1, 2, 3]
    assert events[1]["data"] == '{"message"'
