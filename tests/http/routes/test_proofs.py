"""Checks of a session, checkpoints of the log of heads, and what is proven from them, over HTTP."""

from __future__ import annotations

from typing import cast

import pytest
from sqlalchemy import text

from swarmkeep.events.codec import decode, encode
from swarmkeep.history.proofs import Proof, TreeHash, parse_note
from swarmkeep.store.opening import SqlStore
from tests.history.test_proofs import check
from tests.http.server import RunningServer, check_problem

pytestmark = pytest.mark.one_database


async def test_sessions_are_proven_over_http(service: RunningServer) -> None:
    check_problem(await service.get("/v1/sessions/absent/proof"), 404, "checkpoint_not_found")
    first = await service.session()
    kept = (await service.get("/v1/checkpoint")).json()
    assert (kept["number"], kept["size"], kept["origin"], kept["public_key"]) == (1, 1, "swarmkeep/default", None)
    assert (await service.get("/v1/checkpoint")).json() == kept
    assert "consistency" not in kept
    await service.post(f"{first}/messages", {"messages": [{"role": "user", "content": "hello"}]})
    second = await service.session()
    newest = (await service.get("/v1/checkpoint?since=1")).json()
    assert (newest["number"], newest["size"]) == (2, 3)
    assert (await service.get("/v1/checkpoint?number=1")).json() == kept
    leaves = (await service.get("/v1/checkpoint/leaves?limit=2")).json()
    leaves["data"] += (await service.get(f"/v1/checkpoint/leaves?cursor={leaves['next_cursor']}")).json()["data"]
    tree = TreeHash()
    for leaf in leaves["data"]:
        tree.add(leaf["leaf"].encode())
    assert tree.root == parse_note(newest["note"].encode()).root
    for path in (f"{first}/proof?checkpoint=1", f"{first}/proof", f"{second}/proof"):
        proof = (await service.get(path)).json()
        check(decode(encode(proof), Proof))
        state = (await service.get(path.partition("/proof")[0])).json()
        assert path.endswith("1") or proof["hash"] == state["hash"]
    check_problem(await service.get(f"{second}/proof?checkpoint=1"), 404, "not_in_checkpoint")
    check_problem(await service.get(f"{second}/proof?checkpoint=3"), 404, "checkpoint_not_found")
    check_problem(await service.get("/v1/sessions/absent/proof"), 404, "session_not_found")
    check_problem(await service.get("/v1/checkpoint?number=9"), 404, "checkpoint_not_found")
    refused = check_problem(await service.get("/v1/checkpoint?since=4"), 400, "invalid_request")
    assert refused["errors"][0]["pointer"] == "/query/since"


# Checking a session over HTTP.


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
