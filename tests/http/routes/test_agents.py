"""The agents that are served, over HTTP."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.http.server import RunningServer, check_problem, server_settings, start_server


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
