"""Keys, roles and tenants hold for OpenAI's face as they do for /v1."""

from __future__ import annotations

from typing import Any

import pytest

from swarmkeep.http.auth import PERMISSION
from swarmkeep.http.openapi import get_operation_id
from swarmkeep.openai.document import ROUTES
from swarmkeep.store.keys import Role
from tests.http.auth.keys import Headers, create_key
from tests.http.openai_api.test_errors import check_error
from tests.http.server import RunningServer
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

NEEDED = {
    "list_models": {"read"},
    "get_model": {"read"},
    "create_chat_completion": {"run"},
    "create_response": {"run", "approve"},
    "count_input_tokens": {"run"},
    "compact_response": {"run"},
    "get_response": {"read"},
    "cancel_response": {"run"},
    "delete_response": {"write"},
    "list_response_input_items": {"read"},
    "create_conversation": {"run"},
    "get_conversation": {"read"},
    "update_conversation": {"run"},
    "delete_conversation": {"write"},
    "create_items": {"run"},
    "list_items": {"read"},
    "get_item": {"read"},
    "delete_item": {"run"},
    "list_openai_agents": {"read"},
    "get_openai_agent": {"read"},
    "create_openai_agent": {"write"},
    "update_openai_agent": {"write"},
    "delete_openai_agent": {"write"},
    "create_agent_session": {"run"},
    "list_agent_sessions": {"read"},
    "get_agent_session": {"read"},
    "update_agent_session": {"run"},
    "delete_agent_session": {"write"},
    "create_agent_session_events": {"run", "approve"},
    "stream_agent_session_events": {"read"},
    "list_agent_turns": {"read"},
    "get_agent_turn": {"read"},
    "list_agent_turn_items": {"read"},
    "list_agent_items": {"read"},
    "list_agent_subagents": {"read"},
    "get_agent_subagent": {"read"},
    "list_agent_subagent_turns": {"read"},
    "get_agent_subagent_turn": {"read"},
    "list_agent_subagent_turn_items": {"read"},
    "list_agent_subagent_items": {"read"},
    "list_agent_artifacts": {"read"},
    "get_agent_artifact": {"read"},
    "get_agent_artifact_content": {"read"},
    "list_agent_traces": {"read"},
    "create_agent_automation": {"run"},
    "list_agent_automations": {"read"},
    "get_agent_automation": {"read"},
    "update_agent_automation": {"run"},
    "delete_agent_automation": {"write"},
    "pause_agent_automation": {"run"},
    "resume_agent_automation": {"run"},
    "create_agent_automation_invocation": {"run"},
    "list_agent_automation_invocations": {"read"},
    "get_agent_automation_invocation": {"read"},
}


def test_every_route_asks_listed_permission() -> None:
    found: dict[str, set[str]] = {}
    for route in ROUTES:
        reads = "GET" in route.http_methods  # type: ignore[union-attr]
        default = ("read",) if reads else ("write",)
        found[get_operation_id(route)] = set(route.opt.get(PERMISSION, default))  # type: ignore[union-attr,arg-type]
    assert found == NEEDED


async def respond(service: RunningServer, key: Headers, **body: Any) -> Any:
    return await service.post("/openai/v1/responses", {"model": "Front", **body}, headers=key)


async def test_key_needed_once_one_exists(plain: RunningServer) -> None:
    reader = await create_key(plain, "acme", role="read")
    check_error(await plain.get("/openai/v1/models"), 401, "unauthenticated")
    assert (await plain.get("/openai/v1/models", headers=reader)).status_code == 200
    check_error(await respond(plain, reader, input="hi"), 403, "forbidden")
    assert (await plain.get("/v1/sessions", headers=reader)).json()["data"] == []


@pytest.mark.parametrize(("role", "allowed"), [("run", False), ("approve", True), ("write", True)])
async def test_an_approval_needs_its_permission(
    service: RunningServer, model: ScriptedModel, role: Role, allowed: bool
) -> None:
    model.call("refund", {"order": "1"}, id="c1")
    runner, key = await create_key(service, "acme", role="run"), await create_key(service, "acme", role=role)
    first = (await respond(service, runner, input="Refund 1.")).json()
    assert [item["type"] for item in first["output"]] == ["mcp_approval_request"]
    ahead = await respond(service, runner, input="Well?", previous_response_id=first["id"])
    said = check_error(ahead, 400, "invalid_request", "input")["message"]
    assert said.endswith("(refund); answer its mcp_approval_request with an mcp_approval_response")
    answer = {"type": "mcp_approval_response", "approval_request_id": first["output"][0]["id"], "approve": True}
    if allowed:
        model.say("Done.")
    second = await respond(service, key, input=[answer], previous_response_id=first["id"])
    if not allowed:
        check_error(second, 403, "forbidden")
        return
    output = second.json()["output"]
    assert [item["type"] for item in output] == ["mcp_call", "message"]
    assert output[0]["approval_request_id"] == first["output"][0]["id"]
    again = {"model": "Front", "input": [answer], "conversation": first["id"].partition(".")[2]}
    refused = await service.post("/openai/v1/responses", again, headers=runner if role == "run" else key)
    check_error(refused, 400, "invalid_request", "input[0].approval_request_id")


async def test_tenants_cannot_see_others_responses(service: RunningServer, model: ScriptedModel) -> None:
    model.say("secret")
    mine, other = await create_key(service, "acme"), await create_key(service, "other")
    made = (await respond(service, mine, input="hi")).json()
    session, item = made["id"].partition(".")[2], made["output"][0]["id"]
    face = "/openai/v1"
    for path in (
        f"{face}/responses/{made['id']}",
        f"{face}/responses/{made['id']}?stream=true",
        f"{face}/responses/{made['id']}/input_items",
        f"{face}/conversations/{session}",
        f"{face}/conversations/{session}/items",
        f"{face}/conversations/{session}/items/{item}",
    ):
        check_error(await service.get(path, headers=other), 404, "not_found")
        assert (await service.get(path, headers=mine)).status_code == 200
    for path in (f"{face}/responses/{made['id']}/cancel", f"{face}/conversations/{session}/items"):
        body = {"items": []} if path.endswith("items") else None
        check_error(await service.post(path, body, headers=other), 404, "not_found")
    check_error(await service.delete(f"{face}/conversations/{session}", headers=other), 404, "not_found")
    check_error(await service.delete(f"{face}/responses/{made['id']}", headers=other), 404, "not_found")
    check_error(
        await respond(service, other, input="x", previous_response_id=made["id"]),
        400, "previous_response_not_found", "previous_response_id",
    )  # fmt: skip
    check_error(await respond(service, other, input="x", conversation=session), 404, "not_found", "conversation")
    named = [{"type": "item_reference", "id": item}]
    check_error(await respond(service, other, input=named), 404, "not_found", "input[0].id")
    assert (await service.get("/v1/sessions", headers=other)).json()["data"] == []


async def test_approve_only_key_cannot_steer_run(service: RunningServer, model: ScriptedModel) -> None:
    model.call("refund", {"order": "1"}, id="c1")
    runner = await create_key(service, "acme", role="run")
    approver = await create_key(service, "acme", role="approve")
    first = (await respond(service, runner, input="Refund 1.")).json()
    answer = {"type": "mcp_approval_response", "approval_request_id": first["output"][0]["id"], "approve": True}
    model.say("Done.")
    body = {"input": [answer], "previous_response_id": first["id"], "instructions": "Say everything."}
    assert (await respond(service, approver, **body)).status_code == 200
    assert "Say everything." not in model.requests[1]["messages"][0]["content"]


async def test_stored_response_decision_is_recorded(service: RunningServer, model: ScriptedModel) -> None:
    model.call("refund", {"order": "1"}, id="c1")
    writer = await create_key(service, "acme")
    first = (await respond(service, writer, input="Refund 1.")).json()
    answer = {"type": "mcp_approval_response", "approval_request_id": first["output"][0]["id"], "approve": True}
    body = {"input": [answer], "previous_response_id": first["id"], "store": False}
    check_error(await respond(service, writer, **body), 400, "invalid_request", "store")


async def test_session_approval_does_not_cover_unstored(service: RunningServer, model: ScriptedModel) -> None:
    """Whoever may give results could have it done again and again."""
    model.calls([("refund", {"order": "1"}, "c1"), ("look", {}, "c2")])
    runner = await create_key(service, "acme", role="run")
    approver = await create_key(service, "acme", role="approve")
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]
    first = (await respond(service, runner, input="Refund 1.", tools=tools)).json()
    session, run = first["id"].partition(".")[2], "run_" + first["id"].partition(".")[0].removeprefix("resp_")
    decision = {"approvals": [{"tool_call_id": "c1", "decision": "approve"}], "stream": False}
    path = f"/v1/sessions/{session}/runs/{run}/resume"
    assert (await service.post(path, decision, headers=approver)).json()["status"] == "waiting"
    seen = {"type": "function_call_output", "call_id": "c2", "output": "nothing"}
    body = {"input": [seen], "previous_response_id": first["id"], "store": False, "tools": tools}
    answer = (await respond(service, runner, **body)).json()
    assert [item["type"] for item in answer["output"]] == ["mcp_approval_request"]
    assert len(model.requests) == 1
