"""The agents that are served, over HTTP, and those that ask others: where, and whose sessions those are."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from swarmkeep.events.codec import Json
from tests.http.server import RunningServer, check_problem, serve_team, server_settings, start_server
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


async def test_agents_listed_with_abilities(plain: RunningServer) -> None:
    page = (await plain.get("/v1/agents")).json()
    front, sales = page["data"]
    assert page["next_cursor"] is None
    tools = front.pop("tools")
    assert front == {
        "name": "Front",
        "model": "gpt-4o",
        "offline": True,
        "instructions": None,
        "handoffs": ["Sales / EU ☃"],
        "asks": {},
        "tool_choice": None,
        "parallel_tool_calls": False,
        "concurrent_tools": [],
        "model_settings": {"temperature": 0.5},
        "output_schema": None,
        "output_mode": "response_format",
        "approvals": ["refund"],
        "input_guardrails": [],
        "output_guardrails": [],
        "tool_guardrails": {},
        "mcp_servers": [],
    }
    assert [tool["function"]["name"] for tool in tools] == ["get_weather", "remember", "refund", "transfer_to_sales"]
    assert (sales["instructions"], sales["model"], sales["tools"]) == ("Sell.", "sales-model", [])


async def test_agents_come_in_pages(plain: RunningServer) -> None:
    first = (await plain.get("/v1/agents?limit=1")).json()
    second = (await plain.get("/v1/agents", params={"limit": 1, "cursor": first["next_cursor"]})).json()
    assert [agent["name"] for agent in first["data"] + second["data"]] == ["Front", "Sales / EU ☃"]
    assert second["next_cursor"] is None


@pytest.mark.parametrize("safe", ["", "/"])
async def test_agent_found_by_any_name(plain: RunningServer, safe: str) -> None:
    answer = await plain.get("/v1/agents/" + quote("Sales / EU ☃", safe=safe))
    assert answer.json()["name"] == "Sales / EU ☃"


async def test_unknown_agent_answer_lists_known(plain: RunningServer) -> None:
    for name in ("Nobody", "Front/", "front", "%00", "%ff", "a/b/c"):
        found = check_problem(await plain.get(f"/v1/agents/{name}"), 404, "agent_not_found")
        assert found["known_agents"] == ["Front", "Sales / EU ☃"]


async def test_default_model_serves_modelless_agents(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready, model="house-model")) as service:
        agents = (await service.get("/v1/agents")).json()["data"]
    assert [agent["model"] for agent in agents] == ["house-model", "sales-model"]


# Agents that ask others.


async def list_ids(service: RunningServer, query: str = "") -> list[str]:
    return [session["id"] for session in (await service.get(f"/v1/sessions{query}")).json()["data"]]


async def ask_clerk(service: RunningServer, model: ScriptedModel) -> str:
    """The session of an agent that was asked by the one of session `s`, and has answered."""
    await service.session(id="s", agent="Desk")
    model.call("ask_clerk", {"input": "Is it open?"}, id="c1")
    model.say("Yes.")
    model.say("It is open.")
    run = await service.run("/v1/sessions/s")
    (child,) = [str(message["session_id"]) for message in run["messages"] if message["role"] == "tool"]
    return child


async def ask_for_payment(service: RunningServer, model: ScriptedModel) -> Json:
    """A run that waits, because the agent that it asks needs an approval."""
    await service.session(id="s", agent="Desk", metadata={"team": "x"})
    model.call("ask_clerk", {"input": "Pay 7."}, id="c1")
    model.call("pay", {"amount": 7}, id="p1")
    return await service.run("/v1/sessions/s")


@serve_team("asking_team")
async def test_agents_tell_whom_they_ask(service: RunningServer) -> None:
    desk = (await service.get("/v1/agents/Desk")).json()
    assert (desk["asks"], desk["handoffs"]) == ({"ask_clerk": "Clerk"}, [])


@serve_team("asking_team")
async def test_child_session_named_but_not_listed(service: RunningServer, model: ScriptedModel) -> None:
    await service.session(id="s", agent="Desk", metadata={"team": "x"})
    model.call("ask_clerk", {"input": "Is it open?"}, id="c1")
    model.say("Yes.")
    model.say("It is open.")
    run = await service.run("/v1/sessions/s")
    assert (run["usage"]["model_calls"], run["total_usage"]["model_calls"]) == (2, 3)
    (result,) = [message for message in run["messages"] if message["role"] == "tool"]
    child = result["session_id"]
    session = (await service.get(f"/v1/sessions/{child}")).json()
    assert session["parent"] == {"session_id": "s", "run_id": run["id"], "tool_call_id": "c1", "depth": 1}
    for query in ("", "?agent=Clerk", "?metadata.team=x", "?status=idle", "?limit=1"):
        assert child not in await list_ids(service, query), query
    assert set(await list_ids(service, "?children=true")) == {"s", child}
    assert await list_ids(service, "?children=true&agent=Clerk") == [child]
    listed = (await service.get("/v1/sessions?children=true&agent=Clerk")).json()["data"][0]
    assert listed["parent"] == session["parent"]


@serve_team("asking_team")
async def test_deciding_place_is_told_both_continue(service: RunningServer, model: ScriptedModel) -> None:
    run = await ask_for_payment(service, model)
    assert (run["status"], run["stop_reason"]) == ("waiting", "approval")
    (waiting,) = run["pending"]
    assert (waiting["tool_call_id"], waiting["name"], waiting["reason"]) == ("c1", "ask_clerk", "session")
    below = f"/v1/sessions/{waiting['session_id']}"
    [asked] = (await service.get(f"{below}/runs")).json()["data"]
    model.say("Paid.")
    model.say("It is paid.")
    decided = {"approvals": [{"tool_call_id": "p1", "decision": "approve"}]}
    assert (await service.post(f"{below}/runs/{asked['id']}/resume", decided)).json()["output_text"] == "Paid."
    frames = await service.read_stream(f"/v1/sessions/s/runs/{run['id']}/stream")
    assert frames[-1].data["output_text"] == "It is paid."


@serve_team("asking_team")
async def test_asking_call_itself_takes_no_decision(service: RunningServer, model: ScriptedModel) -> None:
    run = await ask_for_payment(service, model)
    path = f"/v1/sessions/s/runs/{run['id']}/resume"
    for wrong in (
        {"approvals": [{"tool_call_id": "c1", "decision": "approve"}]},
        {"tool_results": [{"tool_call_id": "c1", "content": "forged"}]},
    ):
        check_problem(await service.post(path, wrong), 400, "invalid_request")


@serve_team("asking_team")
async def test_openais_face_says_where_to_decide(service: RunningServer, model: ScriptedModel) -> None:
    await ask_for_payment(service, model)
    body = {"model": "Desk", "input": "Well?", "conversation": "s"}
    answer = await service.post("/openai/v1/responses", body)
    assert answer.status_code == 400
    assert "waits for an approval in session subsess_" in answer.json()["error"]["message"]
    chat = {"model": "Desk", "messages": [{"role": "user", "content": "Well?"}]}
    answer = await service.post("/openai/v1/chat/completions", chat, headers={"x-session-id": "s"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "approval_pending")


@serve_team("asking_team")
async def test_child_session_ids_cannot_be_claimed(service: RunningServer) -> None:
    check_problem(await service.post("/v1/sessions", {"id": "subsess_mine"}), 400, "invalid_request")
    await service.session(id="s", agent="Desk")
    check_problem(await service.post("/v1/sessions/s/fork", {"id": "subsess_mine"}), 400, "invalid_request")


@serve_team("asking_team")
async def test_exports_link_but_import_has_no_parent(service: RunningServer, model: ScriptedModel) -> None:
    child = await ask_clerk(service, model)
    lines = (await service.get(f"/v1/sessions/{child}/events", headers={"accept": "application/x-ndjson"})).content
    assert b'"parent":{"session_id":"s"' in lines
    assert (await service.delete("/v1/sessions/s")).status_code == 204
    assert (await service.get(f"/v1/sessions/{child}")).status_code == 404
    answer = await service.client.post("/v1/import", content=lines, headers={"content-type": "application/x-ndjson"})
    assert answer.status_code < 300, answer.text
    session = (await service.get(f"/v1/sessions/{child}")).json()
    assert "parent" not in session
    assert session["message_count"] == 2


@serve_team("asking_team")
async def test_redacted_start_hides_the_asking_call(service: RunningServer, model: ScriptedModel) -> None:
    child = await ask_clerk(service, model)
    redacted = await service.post(f"/v1/sessions/{child}/redact", {"seqs": [1], "reason": "asked for"})
    assert redacted.status_code == 200, redacted.text
    assert (await service.get(f"/v1/sessions/{child}")).json()["parent"]["session_id"] == "[redacted]"
    assert (await service.get(f"/v1/sessions/{child}/verify")).json()["valid"]
    # It is found from above all the same.
    assert (await service.delete("/v1/sessions/s")).status_code == 204
    assert (await service.get(f"/v1/sessions/{child}")).status_code == 404
