"""The door for assistants: `/v1`'s reads as tools and resources, by the official client and its conformance suite."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import PaginatedRequestParams

from swarmkeep.events.codec import Json
from tests.http.auth.keys import create_key
from tests.http.server import PATIENCE_SECONDS, RunningServer, check_problem
from tests.support.npm import NODE, install_packages
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
ACCEPTED = {"accept": "application/json, text/event-stream"}
# Those that need no tools or prompts that are made for the suite.
SCENARIOS = ["server-initialize", "ping", "tools-list", "resources-list", "dns-rebinding-protection"]


@asynccontextmanager
async def connect(service: RunningServer, headers: dict[str, str] | None = None) -> AsyncIterator[ClientSession]:
    async with (
        httpx2.AsyncClient(headers=headers, timeout=PATIENCE_SECONDS, verify=False) as client,
        streamable_http_client(f"{service.url}/mcp", http_client=client) as (reads, writes),
        ClientSession(reads, writes) as session,
    ):
        await session.initialize()
        yield session


async def call(session: ClientSession, tool: str, **arguments: Any) -> Any:
    """The JSON of a result, or the words of an error."""
    result: Any = await session.call_tool(tool, arguments)
    text = result.content[0].text
    return text if result.is_error else json.loads(text)


async def send(service: RunningServer, message: Any, **headers: str) -> httpx2.Response:
    return await service.post("/mcp", message, headers={**ACCEPTED, **headers})


async def test_tools_answer_as_routes_do(service: RunningServer, model: ScriptedModel) -> None:
    path = await service.session(id="s", metadata={"customer": "ann"})
    await service.session(id="other")
    model.say("Hello, Ann.")
    await service.run(path, "Good morning.")
    reads: list[tuple[str, Json, str]] = [
        ("get_session", {}, ""),
        ("list_messages", {}, "/messages?limit=20"),
        (
            "list_events",
            {"after": 2, "type": ["message.added", "run.completed"]},
            "/events?after=2&type=message.added&type=run.completed&limit=20",
        ),
        ("get_event_request", {"seq": 4}, "/events/4/request"),
        ("list_runs", {}, "/runs?limit=20"),
        ("verify_session", {}, "/verify"),
        ("diff_session", {"before": 1, "after": 5}, "/diff?before=1&after=5"),
        ("compare_sessions", {"with": "other"}, "/compare?with=other"),
        ("list_forks", {}, "/forks?limit=20"),
    ]
    async with connect(service) as session:
        for tool, arguments, route in reads:
            found = await call(session, tool, session_id="s", **arguments)
            assert found == (await service.get(f"{path}{route}")).json(), tool
        replayed = await call(session, "replay_session", session_id="s", ignore=["instructions"])
        assert (replayed["matches"], replayed["turns"]) == (True, 1)
        listed = await call(session, "list_sessions", metadata={"customer": "ann"})
        assert [one["id"] for one in listed["data"]] == ["s"]
        for tool in ("list_agents", "get_usage", "list_audit", "verify_audit", "get_run_figures"):
            assert isinstance(await call(session, tool), dict)
    assert (await service.get(path)).json()["seq"] == 5


async def test_tools_fit_role_and_read_only(service: RunningServer) -> None:
    names = {}
    for role in ("read", "run", "approve", "support", "audit", "write"):
        async with connect(service, await create_key(service, "acme", role=role)) as session:
            tools = (await session.list_tools()).tools
            names[role] = {tool.name for tool in tools}
            assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)
            assert "$ref" not in str([tool.input_schema for tool in tools])
            if role == "read":
                with pytest.raises(MCPError, match="there is no tool 'list_audit'"):
                    await session.call_tool("list_audit", {})
    assert names["write"] - names["read"] == {"list_audit", "verify_audit"}
    assert names["audit"] == names["write"]
    assert names["read"] == names["run"] == names["approve"] == names["support"]


async def test_tenants_are_apart(service: RunningServer) -> None:
    acme, other = await create_key(service, "acme"), await create_key(service, "other")
    await service.post("/v1/sessions", {"id": "s"}, headers=acme)
    check_problem(await send(service, CALL), 401, "unauthenticated")
    async with connect(service, other) as session:
        assert (await call(session, "get_session", session_id="s")).startswith("session_not_found: ")
        assert (await call(session, "list_sessions"))["data"] == []
        assert (await session.list_resources()).resources == []
        with pytest.raises(MCPError, match="session_not_found"):
            await session.read_resource("swarmkeep://sessions/s")


async def test_resources_are_paged_and_read(plain: RunningServer) -> None:
    for number in range(51):
        await plain.session(id=f"s{number}")
    async with connect(plain) as session:
        first = await session.list_resources()
        second = await session.list_resources(params=PaginatedRequestParams(cursor=first.next_cursor))
        assert (len(first.resources), len(second.resources), second.next_cursor) == (50, 1, None)
        uri = second.resources[0].uri
        assert uri == "swarmkeep://sessions/s0/transcript"
        (transcript,) = (await session.read_resource(uri)).contents
        assert (transcript.mime_type, transcript.text.splitlines()[0]) == ("text/markdown", "# Session s0")  # type: ignore[union-attr]
        (state,) = (await session.read_resource("swarmkeep://sessions/s0")).contents
        assert json.loads(state.text)["id"] == "s0"  # type: ignore[union-attr]
        for odd in (
            "swarmkeep://sessions/../keys",
            "swarmkeep://keys",
            "file:///etc/passwd",
            "swarmkeep://sessions/s0/x",
        ):
            with pytest.raises(MCPError, match="there is no resource"):
                await session.read_resource(odd)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"session_id": "s/transcript"}, "session_id is not valid"),
        ({"session_id": ".."}, "session_id is not valid"),
        ({"session_id": "s?at=1"}, "session_id is not valid"),
        ({"session_id": "s%2Fevents"}, "session_id is not valid"),
        ({"session_id": {"a": 1}}, "session_id is not valid"),
        ({"session_id": "x" * 129}, "session_id is not valid"),
        ({}, "the argument 'session_id' is missing"),
        ({"session_id": "s", "odd": 1}, "there is no argument 'odd'; there are: session_id, at"),
        ({"session_id": "s", "at": "first"}, "invalid_request: "),
        ({"session_id": "s", "at": [1, 2]}, "invalid_request: "),
    ],
)
async def test_wrong_arguments_are_explained(plain: RunningServer, arguments: Json, words: str) -> None:
    await plain.session(id="s")
    answer = await send(plain, {**CALL, "params": {"name": "get_session", "arguments": arguments}})
    result = answer.json()["result"]
    assert result["isError"]
    assert words in result["content"][0]["text"]


async def test_no_message_is_an_internal_error(plain: RunningServer) -> None:
    texts = [
        "", "{", "[]", "null", "7", '"\\ud800"', "[" * 1000, '{"jsonrpc": "2.0", "id": 1, "method": "nothing"}',
        json.dumps([CALL] * 3), json.dumps(CALL),
        json.dumps({**CALL, "params": {"name": "list_sessions", "arguments": 7}}),
        json.dumps({**CALL, "params": {"name": "x" * 10_000}}),
        json.dumps({**CALL, "params": {"name": "list_sessions", "arguments": {"metadata": ["a"]}}}),
        json.dumps({**CALL, "method": "resources/list", "params": {"cursor": "none of ours"}}),
        '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list_sessions", "arguments": '
        '{"q": "\\ud83d"}}}',
    ]  # fmt: skip
    for text in texts:
        sent = {**ACCEPTED, "content-type": "application/json"}
        answer = await plain.client.post("/mcp", content=text.encode(), headers=sent)
        assert answer.status_code in (200, 400), (text[:100], answer.text)
        assert "Traceback" not in answer.text
        assert answer.status_code == 400 or "isError" in answer.text or "error" in answer.json(), text[:100]
    check_problem(await plain.get("/mcp"), 405, "method_not_allowed")
    check_problem(await send(plain, {**CALL, "params": {"name": "x" * 300_000}}), 413, "too_large")
    assert (await send(plain, {"jsonrpc": "2.0", "method": "notifications/initialized"})).status_code == 202


async def test_answer_is_bounded(plain: RunningServer) -> None:
    path = await plain.session(id="s")
    for _ in range(9):
        answer = await plain.post(f"{path}/messages", {"messages": [{"role": "user", "content": "x" * 1_000_000}]})
        assert answer.status_code < 300, answer.text
    for tool, arguments in (("resources/read", {"uri": "swarmkeep://sessions/s/transcript"}), ("ping", {})):
        answer = await send(plain, {"jsonrpc": "2.0", "id": 1, "method": tool, "params": arguments})
        assert len(answer.content) < 1_000, tool
        assert ("too_large" in answer.text) == (tool != "ping")
    # A page of a list ends early by itself.
    async with connect(plain) as session:
        assert (await call(session, "list_messages", session_id="s"))["next_cursor"]


async def test_any_server_answers_and_names_the_request(pair: tuple[RunningServer, RunningServer]) -> None:
    one, other = pair
    await one.session(id="s")
    message = {**CALL, "params": {"name": "get_session", "arguments": {"session_id": "s"}}}
    answers = [await send(server, message, **{"x-request-id": "mine"}) for server in (one, other)]
    assert answers[0].json() == answers[1].json()
    assert [answer.headers["x-request-id"] for answer in answers] == ["mine", "mine"]


@pytest.mark.long
async def test_conformance_suite(plain: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = await asyncio.to_thread(install_packages, tmp_path_factory.getbasetemp())
    if folder is None:
        pytest.skip("npm cannot install packages here")
    await plain.session(id="s")
    for scenario in SCENARIOS:
        process = await asyncio.create_subprocess_exec(
            NODE, "node_modules/.bin/conformance", "server", "--url", f"{plain.url}/mcp", "--scenario", scenario,
            cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE_SECONDS):
            output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        assert "0 failed, 0 warnings" in output.decode()
