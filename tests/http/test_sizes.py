"""How large the context, the metadata and the messages of a session may be, on every way in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.server import RunningServer, check_problem, scripted, server_settings, start_server
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

LINES = {"Content-Type": "application/x-ndjson"}
LARGE = "x" * 200
CONTEXT, METADATA, MESSAGE = "MAX_CONTEXT_BYTES", "MAX_METADATA_BYTES", "MAX_MESSAGE_BYTES"


@pytest.fixture
async def small(ready_url: str, model: ScriptedModel) -> AsyncIterator[RunningServer]:
    """A server that keeps contexts and messages of 300 bytes, and metadata of 150."""
    limits = {"max_context_bytes": 300, "max_metadata_bytes": 150, "max_message_bytes": 300}
    async with start_server(scripted(ready_url, model, **limits)) as running:
        yield running


async def refuse(service: RunningServer, path: str, body: Any, setting: str, *, method: str = "POST") -> None:
    answer = await service.client.request(method, path, json=body)
    assert f"SWARMKEEP_{setting}" in check_problem(answer, 413, "too_large")["detail"]


async def test_initial_session_content_bounded(small: RunningServer) -> None:
    for body, setting in (
        ({"context_variables": {"a": LARGE * 2}}, CONTEXT),
        ({"metadata": {"a": LARGE}}, METADATA),
        ({"messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": LARGE * 2}]}, MESSAGE),
        ({"messages": [{"role": "user", "content": "hi", "more": LARGE * 2}]}, MESSAGE),
    ):
        await refuse(small, "/v1/sessions", body, setting)
    assert (await small.get("/v1/sessions")).json()["data"] == []
    await small.session(context_variables={"a": LARGE}, metadata={"a": "x" * 100})


async def test_change_refused_for_its_resulting_size(small: RunningServer) -> None:
    session = await small.session(context_variables={"a": LARGE}, metadata={"a": "x" * 100})
    for body, setting in (({"context_variables": {"b": LARGE}}, CONTEXT), ({"metadata": {"b": "x" * 60}}, METADATA)):
        await refuse(small, session, body, setting, method="PATCH")
    await refuse(small, f"{session}/fork", {"metadata": {"b": "x" * 60}}, METADATA)
    await refuse(small, f"{session}/runs", {"input": "hi", "context_variables": {"b": LARGE}}, CONTEXT)
    assert (await small.get(session)).json()["seq"] == 1
    # What takes the place of something else has room.
    assert (await small.patch(session, {"context_variables": {"a": None, "b": LARGE}})).status_code == 200


async def test_run_input_and_results_bounded(small: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "Rome"}, id="c1")
    session = await small.session()
    await refuse(small, f"{session}/runs", {"input": LARGE * 2}, MESSAGE)
    await refuse(small, f"{session}/runs", {"input": [{"role": "user", "content": LARGE * 2}]}, MESSAGE)
    run = await small.run(session, execute_tools=False)
    result = {"tool_call_id": "c1", "content": LARGE * 2}
    await refuse(small, f"{session}/runs/{run['id']}/resume", {"tool_results": [result]}, MESSAGE)
    assert (await small.get(f"{session}/runs/{run['id']}")).json()["status"] == "waiting"


async def test_queued_runs_count_together(small: RunningServer, model: ScriptedModel) -> None:
    model.hang(then="first")
    model.say("second")
    session = await small.session()
    await small.run(session, background=True)
    await model.wait_for_requests_async(1)
    queued = {"input": "hi", "on_busy": "queue", "background": True}
    run = (await small.post(f"{session}/runs", queued | {"context_variables": {"a": LARGE}})).json()
    await refuse(small, f"{session}/runs", queued | {"context_variables": {"b": LARGE}}, CONTEXT)
    model.release()
    async with asyncio.timeout(20):
        await small.read_stream(f"{session}/runs/{run['id']}/stream")
    assert (await small.get(session)).json()["context_variables"] == {"a": LARGE}


async def test_context_outgrowing_function_told_run_continues(small: RunningServer, model: ScriptedModel) -> None:
    model.call("remember", {"key": "b", "value": LARGE}, id="c1")
    model.say("I could not keep it.")
    session = await small.session(context_variables={"a": LARGE})
    run = await small.run(session)
    assert (run["status"], run["context_variables"]) == ("completed", {"a": LARGE})
    [result] = [message for message in model.requests[1]["messages"] if message["role"] == "tool"]
    assert result["content"].startswith("Error: remember ran")
    assert "SWARMKEEP_MAX_CONTEXT_BYTES" in result["content"]
    assert [event["type"] for event in await small.events(session) if event["type"] == "context.updated"] == []


async def test_overlong_result_becomes_model_error(small: RunningServer, model: ScriptedModel) -> None:
    model.call("get_weather", {"city": "R" * 400}, id="c1")
    model.say("That is no city.")
    run = await small.run(await small.session())
    assert run["status"] == "completed"
    [result] = [message for message in run["messages"] if message["role"] == "tool"]
    assert "SWARMKEEP_MAX_MESSAGE_BYTES" in result["content"]


async def test_imports_bounded_and_refusal_leaves_nothing(small: RunningServer, tmp_path: Path) -> None:
    async with start_server(server_settings(database_url=f"sqlite:///{tmp_path}/other.db")) as other:
        for body, setting in (
            ({"context_variables": {"a": LARGE * 2}}, CONTEXT),
            ({"metadata": {"a": LARGE}}, METADATA),
            ({"messages": [{"role": "user", "content": LARGE * 2}]}, MESSAGE),
        ):
            session = await other.session(**body)
            file = (await other.get(f"/v1/export?id={session[13:]}")).content
            answer = await small.client.post("/v1/import", content=file, headers=LINES)
            assert f"SWARMKEEP_{setting}" in check_problem(answer, 413, "too_large")["detail"]
    chat = json.dumps({"messages": [{"role": "user", "content": LARGE * 2}]}).encode()
    answer = await small.client.post("/v1/import?from=chat", content=chat, headers=LINES)
    assert MESSAGE in check_problem(answer, 413, "too_large")["detail"]
    assert (await small.get("/v1/sessions")).json()["data"] == []


@pytest.mark.parametrize("store", [True, False])
async def test_response_instructions_bounded_stored_or_not(
    small: RunningServer, model: ScriptedModel, store: bool
) -> None:
    asked = {"model": "Front", "input": "hi", "instructions": LARGE * 2, "store": store}
    refused = await small.post("/openai/v1/responses", asked)
    assert refused.status_code == 413
    assert f"SWARMKEEP_{MESSAGE}" in refused.json()["error"]["message"]
    assert model.requests == []


async def test_oversized_old_content_may_shrink(sqlite_ready: str) -> None:
    async with start_server(server_settings(database_url=sqlite_ready)) as before:
        session = await before.session(context_variables={"a": LARGE, "b": LARGE})
    async with start_server(server_settings(database_url=sqlite_ready, max_context_bytes=100)) as after:
        assert (await after.patch(session, {"context_variables": {"a": None}})).status_code == 200
        await refuse(after, session, {"context_variables": {"c": 1}}, CONTEXT, method="PATCH")
        assert (await after.run(session))["status"] == "completed"


async def test_largest_allowed_kept_exactly(sqlite_ready: str) -> None:
    largest = {"role": "user", "content": "ä" * 50}
    size = len(json.dumps(largest, ensure_ascii=False, separators=(",", ":")).encode())
    for limit, status in ((size, 201), (size - 1, 413)):
        settings = server_settings(database_url=sqlite_ready, max_message_bytes=limit)
        async with start_server(settings) as service:
            assert (await service.post("/v1/sessions", {"messages": [largest]})).status_code == status
