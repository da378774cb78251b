"""Redaction, deletion, the audit log, checks of a session and proofs over HTTP."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from sqlalchemy import text

from swarmkeep.events.codec import Json, decode, encode
from swarmkeep.history.proofs import Proof, TreeHash, parse_note
from swarmkeep.runs.sessions import hold_session
from swarmkeep.store.opening import SqlStore, open_store
from swarmkeep.store.records import SessionKey
from tests.history.test_proofs import check
from tests.http.server import PATIENCE_SECONDS, RunningServer, check_problem, server_settings, start_server
from tests.store.sessions import begin_session
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

CANARY = "canary-7f3a9c"


async def redact(service: RunningServer, session: str, **body: Any) -> Json:
    answer = await service.post(f"{session}/redact", {"reason": "asked for", **body})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


async def test_what_was_redacted_is_shown_nowhere(service: RunningServer, model: ScriptedModel) -> None:
    model.say(f"You said {CANARY}.")
    session = await service.session(context_variables={"name": CANARY}, metadata={"note": CANARY})
    await service.run(session, CANARY)
    events = await service.events(session)
    last = events[-1]["seq"]
    done = await redact(service, session, seqs=list(range(1, last + 1)))
    assert (done["seqs"], done["seq"], done["forks"]) == (list(range(1, last + 1)), last + 1, [])
    assert done["session"]["seq"] == last + 1
    for path in ("", "/messages", "/events?limit=200", "/runs", f"?at={last}", f"/messages?at={last}"):
        assert CANARY not in (await service.get(session + path)).text
    assert CANARY not in (await service.get("/v1/sessions")).text
    assert [event["hash"] for event in await service.events(session)][:-1] == [event["hash"] for event in events]
    assert (await service.get(f"{session}/verify")).json()["valid"]
    model.say("And on it goes.")
    assert (await service.run(session, "hello"))["status"] == "completed"
    assert CANARY not in str(model.requests[-1])


async def test_dry_run_reports_without_removing(service: RunningServer, model: ScriptedModel) -> None:
    model.say(f"You said {CANARY}.")
    session = await service.session()
    await service.run(session, CANARY)
    fork = (await service.post(f"{session}/fork", {})).json()["id"]
    before = await service.events(session)
    body = {"seqs": [2, 4], "reason": "asked for", "include_forks": True}
    answers = [
        await service.post(f"{session}/redact", {**body, "dry_run": True}, headers={"Idempotency-Key": "k"})
        for _ in range(2)
    ]
    told = answers[1].json()
    assert (told["seqs"], told["seq"]) == ([2, 4], None)
    assert told["forks"] == [{"session_id": fork, "seqs": [2, 4], "redacted": False}]
    assert await service.events(session) == before
    assert (await redact(service, session, **body))["seqs"] == told["seqs"]
    assert (await redact(service, session, **body, dry_run=True))["seqs"] == []


async def test_words_are_redacted_while_a_run_waits(service: RunningServer, model: ScriptedModel) -> None:
    model.call("refund", {"order": "A-17"}, id="c1")
    session = await service.session()
    run = await service.run(session, f"Refund A-17, my card is {CANARY}")
    assert run["status"] == "waiting"
    events = await service.events(session)
    (said,) = [event["seq"] for event in events if CANARY in str(event["data"])]
    # What the run goes on from stays: its options, and the call that a person looks at.
    awaited = [event["seq"] for event in events if event["run_id"] and event["seq"] != said]
    assert len(awaited) >= 4
    for seq in awaited:
        for dry_run in (True, False):
            body = {"seqs": [said, seq], "reason": "x", "dry_run": dry_run}
            found = check_problem(await service.post(f"{session}/redact", body), 409, "session_busy")
            assert found["active_run_id"] == run["id"]
    redacted = await redact(service, session, seqs=[said], reason="a card number")
    assert redacted["seqs"] == [said]
    assert CANARY not in str(await service.events(session))
    assert (await service.get(f"{session}/verify")).json()["valid"] is True
    # It goes on with the call as it was shown.
    model.say("It is paid back.")
    decided = {"approvals": [{"tool_call_id": "c1", "decision": "approve"}]}
    ended = (await service.post(f"{session}/runs/{run['id']}/resume", decided)).json()
    assert ended["status"] == "completed"
    sent = str(model.requests[-1]["messages"])
    assert "[redacted]" in sent
    assert "A-17" in sent
    assert CANARY not in sent
    assert (await service.get(f"{session}/verify")).json()["valid"] is True


async def test_what_cannot_be_redacted_is_refused(service: RunningServer) -> None:
    session = await service.session()
    for body in ({}, {"seqs": [1]}, {"seqs": [], "reason": "x"}, {"seqs": [0], "reason": "x"}, {"reason": "x"}):
        check_problem(await service.post(f"{session}/redact", body), 400, "invalid_request")
    check_problem(await service.post(f"{session}/redact", {"seqs": [1], "reason": ""}), 400, "invalid_request")
    check_problem(await service.post(f"{session}/redact", {"seqs": [2], "reason": "x"}), 404, "event_not_found")
    check_problem(
        await service.post("/v1/sessions/nobody/redact", {"seqs": [2], "reason": "x"}), 404, "session_not_found"
    )


async def test_held_session_is_kept(service: RunningServer, model: ScriptedModel) -> None:
    session = await service.session(messages=[{"role": "user", "content": CANARY}])
    check_problem(await service.client.put(f"{session}/hold", json={"reason": ""}), 400, "invalid_request")
    held = (await service.client.put(f"{session}/hold", json={"reason": "case 12"})).json()
    assert held["hold"] == {"reason": "case 12", "by": None, "at": held["updated_at"]}
    listed = (await service.get("/v1/sessions")).json()["data"][0]
    assert listed["hold"]["reason"] == "case 12"
    check_problem(await service.post(f"{session}/redact", {"seqs": [2], "reason": "x"}), 409, "on_hold")
    check_problem(await service.client.delete(session), 409, "on_hold")
    check_problem(await service.client.delete(f"{session}?force=true"), 409, "on_hold")
    model.say("I go on.")
    assert (await service.run(session))["status"] == "completed"
    assert "hold" not in (await service.client.delete(f"{session}/hold")).json()
    assert (await service.client.delete(session)).status_code == 204


async def test_deletion_shown_in_audit_log(service: RunningServer) -> None:
    paths = [await service.session() for _ in range(3)]
    heads = [(await service.get(path)).json() for path in paths]
    for path in paths:
        assert (await service.delete(path, params={"reason": f"why {path}"})).status_code == 204
    first = (await service.get("/v1/audit", params={"limit": 2})).json()
    assert [entry["data"]["session_id"] for entry in first["data"]] == [head["id"] for head in heads[:2]]
    rest = (await service.get("/v1/audit", params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert rest["next_cursor"] is None
    (entry,) = rest["data"]
    assert (entry["seq"], entry["type"], entry["by"]) == (3, "session.deleted", None)
    assert entry["data"] == {
        "session_id": heads[2]["id"],
        "seq": 1,
        "hash": heads[2]["hash"],
        "reason": f"why {paths[2]}",
    }
    checked = (await service.get("/v1/audit/verify", params={"head": f"3:{entry['hash']}"})).json()
    assert (checked["valid"], checked["events"], checked["head"]["seq"]) == (True, 3, 3)
    checked = (await service.get("/v1/audit/verify", params={"head": f"4:{entry['hash']}"})).json()
    assert [found["code"] for found in checked["problems"]] == ["truncated"]


async def test_session_deleted_only_as_seen(service: RunningServer) -> None:
    session = await service.session()
    check_problem(await service.delete(session, headers={"If-Match": '"2"'}), 412, "seq_mismatch")
    assert (await service.delete(session, headers={"If-Match": '"1"'})).status_code == 204


@pytest.mark.parametrize("reason", ["", "x" * 1000])
async def test_a_reason_may_be_given(service: RunningServer, reason: str) -> None:
    session = await service.session()
    assert (await service.delete(session, params={"reason": reason})).status_code == 204
    check_problem(await service.delete("/v1/sessions/x", params={"reason": "x" * 1001}), 400, "invalid_request")


async def test_server_deletes_what_is_due(ready_url: str) -> None:
    old = open_store(ready_url, clock=lambda: datetime.now(UTC) - timedelta(days=40))
    for name in ("old", "held"):
        await begin_session(old, SessionKey("default", name))
    await hold_session(old, SessionKey("default", "held"), "case 12", by=None)
    await old.close()
    async with start_server(server_settings(database_url=ready_url, retention="30d")) as service:
        await service.session(id="new")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await service.get("/v1/sessions/old")).status_code != 404:
                pass
        due = (await service.get("/v1/retention")).json()
        assert [(one["session_id"], one["held"], one["keep"]) for one in due["data"]] == [("held", True, "30d")]
        later = (await service.get("/v1/retention?before=2100-01-01T00:00:00Z")).json()
        assert [one["session_id"] for one in later["data"]] == ["new", "held"]
        check_problem(await service.get("/v1/retention?before=soon"), 400, "invalid_request")
        entries = (await service.get("/v1/audit")).json()["data"]
        assert [entry["by"] for entry in entries if entry["type"] == "session.deleted"] == ["retention"]


# Checks of a session, checkpoints of the log of heads, and what is proven from them.


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
