"""Keys, roles, tenants, quotas and refusals: as for every other route."""

from __future__ import annotations

from typing import Any

import pytest

from swarmkeep.events.codec import Json
from tests.http.agui.client import apply_events, list_types, make_input, open_stream, run, user
from tests.http.auth.keys import create_key
from tests.http.server import RunningServer, check_problem, scripted, start_server
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

ASK = [user("Please.", "u1")]
STATE = {"name": "Ann"}


async def test_key_is_needed_once_there_is_one(plain: RunningServer) -> None:
    reader, auditor = await create_key(plain, "acme", role="read"), await create_key(plain, "acme", role="audit")
    body = make_input("t", ASK, state=STATE)
    check_problem(await plain.post("/agui/Front", body), 401, "unauthenticated")
    check_problem(await plain.post("/agui", body), 401, "unauthenticated")
    for key in (reader, auditor):
        detail = check_problem(await plain.post("/agui/Front", body, headers=key), 403, "forbidden")["detail"]
        assert "`run` or `approve`" in detail


async def test_deciding_and_running_are_roles_of_their_own(service: RunningServer, model: ScriptedModel) -> None:
    runner, approver = await create_key(service, "acme", role="run"), await create_key(service, "acme", role="approve")
    check_problem(await service.post("/agui/Front", make_input("t", ASK), headers=approver), 403, "forbidden")
    model.call("refund", {"order": "1"}, id="c1")
    events = await run(service, "t", ASK, state=STATE, headers=runner)
    (asked,) = events[-1]["outcome"]["interrupts"]
    resume = [{"interruptId": asked["id"], "status": "resolved", "payload": {"approved": True}}]
    held = apply_events(events, ASK)
    refused = await service.post("/agui/Front", make_input("t", held, resume=resume), headers=runner)
    check_problem(refused, 403, "forbidden")
    # One who decides looks on, and changes nothing else.
    assert (await run(service, "t", [], headers=approver))[-1]["outcome"] == events[-1]["outcome"]
    model.say("Done.")
    done = await run(service, "t", held, resume=resume, state={"name": "Eve"}, headers=approver)
    assert done[-1]["outcome"] == {"type": "success"}
    session = (await service.get("/v1/sessions/t", headers=runner)).json()
    assert session["context_variables"] == STATE
    recorded = (await service.get("/v1/sessions/t/events", headers=runner)).json()["data"]
    (by,) = [event["data"]["by"] for event in recorded if event["type"] == "approval.decided"]
    assert by.startswith("key_")


async def test_support_decides_without_speaking_as_user(service: RunningServer, model: ScriptedModel) -> None:
    runner, support = await create_key(service, "acme", role="run"), await create_key(service, "acme", role="support")
    refused = await service.post("/agui/Front", make_input("t", ASK), headers=support)
    assert "does not speak as the user" in check_problem(refused, 403, "forbidden")["detail"]
    model.call("refund", {"order": "1"}, id="c1")
    events = await run(service, "t", ASK, state=STATE, headers=runner)
    (asked,) = events[-1]["outcome"]["interrupts"]
    resume = [{"interruptId": asked["id"], "status": "resolved", "payload": {"approved": True}}]
    held = apply_events(events, ASK)
    more = make_input("t", [*held, user("And more.", "u2")], resume=resume)
    check_problem(await service.post("/agui/Front", more, headers=support), 403, "forbidden")
    model.say("Done.")
    done = await run(service, "t", held, resume=resume, headers=support)
    assert done[-1]["outcome"] == {"type": "success"}


async def test_threads_of_tenants_are_apart(service: RunningServer, model: ScriptedModel) -> None:
    acme, other = await create_key(service, "acme"), await create_key(service, "other")
    model.say("Hello, Acme.")
    body = make_input("t", ASK, state=STATE)
    assert (await service.post("/agui/Front", body, headers=acme)).status_code == 200
    assert list_types(await run(service, "t", [], headers=other)) == ["RUN_STARTED", "STATE_SNAPSHOT", "RUN_FINISHED"]
    model.say("Hello, Other.")
    assert "Acme" not in (await service.post("/agui/Front", body, headers=other)).text


async def test_quotas_hold(sqlite_ready: str, model: ScriptedModel) -> None:
    async with start_server(scripted(sqlite_ready, model, max_queued_runs=1)) as service:
        model.hang("First", then=".")
        model.say("Second.")
        body = make_input("t", [user("a", "1")], state=STATE)
        async with open_stream(service, body) as first:
            await first.until("TEXT_MESSAGE_CONTENT")
            async with open_stream(service, make_input("t", [user("b", "2")])) as second:
                await second.until("STATE_SNAPSHOT")
                refused = await service.post("/agui/Front", make_input("t", [user("c", "3")]))
                assert "SWARMKEEP_MAX_QUEUED_RUNS" in check_problem(refused, 429, "quota_exceeded")["detail"]
                model.release()
                await first.read_rest()
                await second.read_rest()


LONG = "x" * 300


@pytest.mark.parametrize(
    ("agent", "changed", "status", "pointer"),
    [
        ("Nobody", {}, 404, None),
        ("Front", {"threadId": "a b"}, 400, "/threadId"),
        ("Front", {"threadId": "subsess_1"}, 400, "/threadId"),
        ("Front", {"runId": ""}, 400, "/runId"),
        ("Front", {"runId": "a b"}, 400, "/runId"),
        ("Front", {"runId": "a\n"}, 400, "/runId"),
        ("Front", {"state": [1]}, 400, "/state"),
        ("Front", {"unknown": 1}, 400, "/unknown"),
        ("Front", {"messages": [{"role": "user", "content": "x"}]}, 400, "/messages/0/id"),
        ("Front", {"messages": [user("x", LONG)]}, 400, "/messages/0/id"),
        ("Front", {"messages": [{"id": "1", "role": "robot", "content": "x"}]}, 400, "/messages/0/role"),
        ("Front", {"messages": [{"id": "1", "role": ["user"], "content": "x"}]}, 400, "/messages/0/role"),
        ("Front", {"messages": [{"id": "1", "role": "user"}]}, 400, "/messages/0/content"),
        ("Front", {"messages": [user([{"type": "video"}], "1")]}, 400, "/messages/0/content/0"),
        ("Front", {"messages": [{"id": "1", "role": "activity"}, user([1], "2")]}, 400, "/messages/1/content/0"),
        (
            "Front",
            {"messages": [{"id": "1", "role": "assistant", "toolCalls": [{"id": "c"}]}]},
            400,
            "/messages/0/toolCalls/0",
        ),
        ("Front", {"messages": [{"id": "1", "role": "tool", "content": "x"}]}, 400, "/messages/0/tool_call_id"),
        ("Front", {"messages": [{"id": "1", "role": "tool", "content": "x", "toolCallId": "c"}]}, 400, "/messages/0"),
        ("Front", {"tools": [{"name": "a b", "description": ""}]}, 400, "/tools/0/function/name"),
        ("Front", {"tools": [{"name": "refund", "description": ""}]}, 400, "/tools/0"),
        ("Front", {"resume": [{"interruptId": "x", "status": "resolved"}]}, 400, "/resume/0/interruptId"),
        ("Front", {"resume": [{"interruptId": "x", "status": "perhaps"}]}, 400, "/resume/0/status"),
    ],
)
async def test_refusals_name_their_place(
    plain: RunningServer, agent: str, changed: Json, status: int, pointer: str | None
) -> None:
    answer: Any = await plain.post(f"/agui/{agent}", make_input("t", ASK) | changed)
    problem = check_problem(answer, status, "agent_not_found" if status == 404 else "invalid_request")
    assert pointer is None or problem["errors"][0]["pointer"] == pointer
    assert (await plain.get("/v1/sessions/t")).status_code == 404
