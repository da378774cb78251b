"""What a key may do follows from its role: on every route of the document, and over a live connection."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from swarmkeep.store.keys import Role
from tests.http.auth.keys import Headers, create_key, key_store
from tests.http.operations import read_operations
from tests.http.server import RunningServer, check_problem, scripted, start_server
from tests.http.websocket.client import connect_session
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

ROLES: dict[Role, set[str]] = {
    "read": {"read"},
    "run": {"read", "run"},
    "approve": {"read", "approve"},
    "support": {"read", "run", "approve"},
    "audit": {"read", "audit"},
    "write": {"read", "run", "approve", "audit", "write"},
    "admin": {"read", "run", "approve", "audit", "write", "keys", "webhooks"},
}

# What each operation needs.
NEEDED: dict[str, set[str]] = {
    "POST /v1/sessions": {"run"},
    "GET /v1/sessions": {"read"},
    "GET /v1/sessions/{session_id}": {"read"},
    "PATCH /v1/sessions/{session_id}": {"run"},
    "DELETE /v1/sessions/{session_id}": {"write"},
    "POST /v1/sessions/{session_id}/fork": {"run"},
    "GET /v1/sessions/{session_id}/forks": {"read"},
    "POST /v1/sessions/{session_id}/redact": {"write"},
    "PUT /v1/sessions/{session_id}/hold": {"write"},
    "DELETE /v1/sessions/{session_id}/hold": {"write"},
    "POST /v1/sessions/{session_id}/compact": {"run"},
    "POST /v1/sessions/{session_id}/takeover": {"run"},
    "POST /v1/sessions/{session_id}/answer": {"run"},
    "POST /v1/sessions/{session_id}/handback": {"run"},
    "POST /v1/sessions/{session_id}/assign": {"run"},
    "POST /v1/sessions/{session_id}/notes": {"run"},
    "POST /v1/sessions/{session_id}/feedback": {"run"},
    "GET /v1/sessions/{session_id}/messages": {"read"},
    "DELETE /v1/sessions/{session_id}/messages/{seq}": {"run"},
    "GET /v1/sessions/{session_id}/events": {"read"},
    "GET /v1/sessions/{session_id}/events/{seq}/request": {"read"},
    "GET /v1/sessions/{session_id}/verify": {"read"},
    "GET /v1/sessions/{session_id}/proof": {"read"},
    "GET /v1/sessions/{session_id}/blobs/{hash}": {"read"},
    "GET /v1/sessions/{session_id}/diff": {"read"},
    "GET /v1/sessions/{session_id}/compare": {"read"},
    "GET /v1/sessions/{session_id}/transcript": {"read"},
    "GET /v1/sessions/{session_id}/case": {"read"},
    "POST /v1/sessions/{session_id}/replay": {"read"},
    "POST /v1/sessions/{session_id}/messages": {"run"},
    "POST /v1/sessions/{session_id}/runs": {"run"},
    "GET /v1/sessions/{session_id}/runs": {"read"},
    "GET /v1/sessions/{session_id}/runs/{run_id}": {"read"},
    "GET /v1/sessions/{session_id}/runs/{run_id}/stream": {"read"},
    "POST /v1/sessions/{session_id}/runs/{run_id}/cancel": {"run"},
    "POST /v1/sessions/{session_id}/runs/{run_id}/resume": {"run"},  # with nothing in its body; see below
    "GET /v1/runs": {"read"},
    "GET /v1/runs/figures": {"read"},
    "GET /v1/agents": {"read"},
    "GET /v1/agents/{name}": {"read"},
    "GET /v1/usage": {"read"},
    "GET /v1/quotas": {"read"},
    "GET /v1/prices": {"read"},
    "GET /v1/counts": {"read"},
    "GET /v1/export": {"read"},
    "GET /v1/evidence": {"read"},
    "POST /v1/import": {"write"},
    "GET /v1/me": {"read"},
    "GET /v1/keys": {"keys"},
    "POST /v1/keys": {"keys"},
    "POST /v1/keys/{key_id}/revoke": {"keys"},
    "GET /v1/audit": {"audit"},
    "GET /v1/audit/verify": {"audit"},
    "GET /v1/checkpoint": {"audit"},
    "GET /v1/events": {"read"},
    "POST /v1/people/erase": {"write"},
    "GET /v1/consumers": {"read"},
    "GET /v1/consumers/{consumer}": {"read"},
    "PUT /v1/consumers/{consumer}": {"run", "audit"},
    "DELETE /v1/consumers/{consumer}": {"run", "audit"},
    "GET /v1/webhooks": {"webhooks"},
    "POST /v1/webhooks": {"webhooks"},
    "GET /v1/webhooks/{webhook_id}": {"webhooks"},
    "PATCH /v1/webhooks/{webhook_id}": {"webhooks"},
    "DELETE /v1/webhooks/{webhook_id}": {"webhooks"},
    "POST /v1/webhooks/{webhook_id}/rotate": {"webhooks"},
    "POST /v1/webhooks/{webhook_id}/test": {"webhooks"},
    "GET /v1/webhooks/{webhook_id}/deliveries": {"webhooks"},
    "POST /v1/webhooks/{webhook_id}/deliveries/{place}/resend": {"webhooks"},
    "GET /v1/retention": {"read"},
    "GET /v1/checkpoint/leaves": {"audit"},
}
ABSENT = {
    "session_id": "absent", "run_id": "run_none", "seq": "1", "name": "Nobody",
    "consumer": "crm", "webhook_id": "wh_none", "place": "1-1", "key_id": "key_none", "hash": "none",
}  # fmt: skip


async def test_every_route_asks_listed_permission(plain: RunningServer) -> None:
    operations = await read_operations(plain)
    assert {operation.name for operation in operations} == NEEDED.keys()
    assert set(get_args(Role)) == ROLES.keys()
    for role, permissions in ROLES.items():
        key = await create_key(plain, "acme", role=role)
        for operation in operations:
            answer = await plain.client.request(
                operation.method, operation.url(ABSENT), params=operation.needed, json={}, headers=key
            )
            allowed = bool(NEEDED[operation.name] & permissions)
            assert (answer.status_code != 403) == allowed, f"{role}: {operation.name}: {answer.text}"
            if not allowed:
                detail = check_problem(answer, 403, "forbidden")["detail"]
                assert f"`{role}`" in detail
                assert all(f"`{name}`" in detail for name in NEEDED[operation.name])


async def start_waiting_run(service: RunningServer, writer: Headers, session_id: str) -> str:
    """The path of a run that waits for a decision on the call `c1`."""
    await service.post("/v1/sessions", {"id": session_id}, headers=writer)
    run = (await service.post(f"/v1/sessions/{session_id}/runs", {"input": "refund"}, headers=writer)).json()
    assert run["status"] == "waiting"
    return f"/v1/sessions/{session_id}/runs/{run['id']}"


APPROVE = {"approvals": [{"tool_call_id": "c1", "decision": "approve"}]}
RESULT = {"tool_results": [{"tool_call_id": "c1", "content": "done"}]}


@pytest.mark.parametrize(
    ("role", "body", "allowed"),
    [
        ("run", APPROVE, False),
        ("run", RESULT, True),
        ("run", {}, True),
        ("run", APPROVE | RESULT, False),
        ("approve", APPROVE, True),
        ("approve", RESULT, False),
        ("approve", {}, False),
        ("support", APPROVE, True),
        ("approve", APPROVE | RESULT, False),
        ("audit", APPROVE, False),
        ("write", APPROVE, True),
        ("write", APPROVE | RESULT, True),
    ],
)
@pytest.mark.parametrize("live", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_resuming_needs_what_its_body_does(
    service: RunningServer, model: ScriptedModel, role: Role, body: dict[str, Any], allowed: bool, live: bool
) -> None:
    model.call("refund", {"order": "1"}, id="c1")
    writer, key = await create_key(service, "acme", role="run"), await create_key(service, "acme", role=role)
    run = await start_waiting_run(service, writer, "s")
    if allowed and body == APPROVE:
        model.say("Done.")
    if live:
        async with connect_session(service, "/v1/sessions/s", additional_headers=key) as viewer:
            code = (await viewer.answer("run.resume", run_id=run.rpartition("/")[2], **body)).data.get("code")
    else:
        code = (await service.post(f"{run}/resume", body, headers=key)).json().get("code")
    assert (code != "forbidden") == allowed
    if not allowed:
        assert (await service.get(run, headers=key)).json()["status"] == "waiting"
    elif body == APPROVE:
        async with service.stream(f"{run}/stream", **key) as frames:
            await frames.until("done")


async def test_live_connection_refuses_unpermitted_commands(plain: RunningServer) -> None:
    writer, approver = await create_key(plain, "acme"), await create_key(plain, "acme", role="approve")
    await plain.post("/v1/sessions", {"id": "s"}, headers=writer)
    async with connect_session(plain, "/v1/sessions/s", additional_headers=approver) as viewer:
        for command in ({"type_": "run.create", "input": "x"}, {"type_": "run.cancel", "run_id": "run_none"}):
            refused = (await viewer.answer(**command)).data
            assert refused["code"] == "forbidden"
            assert "`run`" in refused["detail"]
    runner = await create_key(plain, "acme", role="run")
    async with connect_session(plain, "/v1/sessions/s", additional_headers=runner) as viewer:
        assert (await viewer.answer("run.create", input="x")).event == "accepted"


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("queued", [False, True])
async def test_run_starter_may_not_approve_if_configured(
    ready_url: str, model: ScriptedModel, separate: bool, queued: bool
) -> None:
    async with start_server(scripted(ready_url, model, separate_approvers=separate)) as service:
        starter, other = await create_key(service, "acme", name="Ann"), await create_key(service, "acme")
        await service.post("/v1/sessions", {"id": "s"}, headers=starter)
        if queued:
            # Somebody else's run is before it.
            model.say("first")
            model.hang(then="second")
            await service.post("/v1/sessions/s/runs", {"input": "x"}, headers=other)
            first = await service.post("/v1/sessions/s/runs", {"input": "x", "background": True}, headers=other)
            await model.wait_for_requests_async(2)
        model.call("refund", {"order": "1"}, id="c1")
        body = {"input": "refund", "on_busy": "queue", "background": True}
        run = (await service.post("/v1/sessions/s/runs", body, headers=starter)).json()
        path = f"/v1/sessions/s/runs/{run['id']}"
        if queued:
            assert first.json()["status"] == "running"
            model.release()
        async with service.stream(f"{path}/stream", **starter) as frames:
            await frames.until("run.waiting")
        (key,) = [key for key in await key_store(service).list_keys() if key.name == "Ann"]
        events = (await service.get("/v1/sessions/s/events?type=run.started", headers=other)).json()["data"]
        assert events[-1]["data"]["by"] == key.label
        if separate:
            refused = await service.post(f"{path}/resume", APPROVE, headers=starter)
            assert "started" in check_problem(refused, 403, "forbidden")["detail"]
            async with connect_session(service, "/v1/sessions/s", additional_headers=starter) as viewer:
                answer = await viewer.answer("run.resume", run_id=run["id"], **APPROVE)
                assert answer.data["code"] == "forbidden"
        model.say("Done.")
        answer = await service.post(f"{path}/resume", APPROVE, headers=other if separate else starter)
        assert answer.json()["output_text"] == "Done."


async def test_audit_log_names_decision_makers(service: RunningServer, model: ScriptedModel) -> None:
    writer = await create_key(service, "acme", name="Ann")
    (key,) = await key_store(service).list_keys()
    model.call("refund", {"order": "1"}, id="c1")
    run = await start_waiting_run(service, writer, "s")
    model.say("Done.")
    decision = {"tool_call_id": "c1", "decision": "approve", "reason": "the canary"}
    assert (await service.post(f"{run}/resume", {"approvals": [decision]}, headers=writer)).status_code == 200
    body = {"seqs": [1], "reason": "the canary"}
    assert (await service.post("/v1/sessions/s/redact", body, headers=writer)).status_code == 200
    listed = await service.get("/v1/audit", headers=writer)
    decided, redacted = listed.json()["data"][1:]
    events = (await service.get("/v1/sessions/s/events?limit=200", headers=writer)).json()["data"]
    recorded = {event["type"]: event for event in events}
    # Of a decision the name is a part of the event, which can be redacted; the id stays.
    for entry, type_, by, more in (
        (decided, "approval.decided", key.id, {"run_id": run.rpartition("/")[2], "decision": "approve"}),
        (redacted, "session.redacted", key.label, {"seqs": [1]}),
    ):
        assert (entry["type"], entry["by"]) == (type_, by)
        place = {"session_id": "s", "seq": recorded[type_]["seq"], "hash": recorded[type_]["hash"]}
        assert entry["data"] == {**place, **more, "reason": None}
    # Reasons stand in the session, and go with it.
    assert "canary" not in listed.text
    assert (await service.get("/v1/audit/verify", headers=writer)).json()["valid"]
