"""Refusals below /openai/v1: in OpenAI's shape, by the name of what is wrong; keys, roles and tenants as for /v1."""

from __future__ import annotations

from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError

from swarmkeep.events.codec import Json
from swarmkeep.http.auth import PERMISSION
from swarmkeep.http.openapi import get_operation_id
from swarmkeep.openai.document import ROUTES
from swarmkeep.openai.problems import make_error
from swarmkeep.store.keys import Role
from tests.http.auth.keys import Headers, create_key
from tests.http.server import RunningServer, scripted, start_server
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

URL = "/openai/v1/responses"


def check_error(answer: Any, status: int, code: str, param: str | None = None) -> Json:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/json")
    body: Json = answer.json()
    assert list(body) == ["error"]
    error: Json = body["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert (error["code"], error["param"]) == (code, param), error
    assert error["message"]
    return error


# What is asked, and what the refusal names.
NOT_UNDERSTOOD: list[tuple[Json, str]] = [
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"max_tool_calls": 3}, "max_tool_calls"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"whatever": 1}, "whatever"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "get_weather"}]}, "tools[0]"),
    ({"tools": "x"}, "tools"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
    ({"include": ["file_search_call.results"]}, "include[0]"),
    ({"include": ["usage", "message.output_text.logprobs"]}, "include[1]"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"top_logprobs": 0.5}, "top_logprobs"),
    ({"temperature": 3}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"metadata": {f"k{number}": "v" for number in range(17)}}, "metadata"),
    ({"metadata": {"k" * 65: "v"}}, "metadata"),
    ({"input": [{"type": "item_reference", "id": f"msg_s1.c{number}"} for number in range(101)]}, "input"),
    ({"input": [{"type": "item_reference", "id": "msg_s1.c1"}] * 2_001}, "input"),
    ({"text": {"format": {"type": "xml"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"a": "x" * 600_000}}}}, "text.format"),
    ({"conversation": 7}, "conversation"),
    ({"conversation": {"name": "x"}}, "conversation.name"),
    ({"conversation": {"id": "c", "name": "x"}}, "conversation.name"),
    ({"text": {"style": "short"}}, "text.style"),
    ({"text": {"verbosity": 1}}, "text.verbosity"),
    ({"text": {"format": {"type": "text", "name": "n"}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "regex": "x"}}}, "text.format.regex"),
    ({"reasoning": {"effort": 5}}, "reasoning.effort"),
    ({"reasoning": {"effort": "low", "mode": "pro"}}, "reasoning.mode"),
    ({"reasoning": {"budget": 5}}, "reasoning.budget"),
    ({"tools": [{"type": "function", "name": "f", "defer_loading": True}]}, "tools[0].defer_loading"),
    ({"tools": [{"type": "function", "function": {"name": "f", "x": 1}}]}, "tools[0].function.x"),
    ({"tools": [{"type": "function", "function": {"name": "f"}, "x": 1}]}, "tools[0].x"),
    ({"conversation": "c", "previous_response_id": "r"}, "previous_response_id"),
    ({"input": [{"type": "message", "role": "critic", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0].content[0]"),
    ({"input": [{"type": "reasoning", "summary": []}]}, "input[0].type"),
    ({"input": [{"type": "mcp_approval_response", "approval_request_id": "x", "approve": True}]},
     "input[0].approval_request_id"),
    ({"input": [3]}, "input[0]"),
    ({"store": False, "background": True}, "background"),
    ({"stream_options": {"include_usage": True}}, "stream_options.include_usage"),
]  # fmt: skip


async def test_unknown_input_refused_by_name(plain: RunningServer) -> None:
    for body, param in NOT_UNDERSTOOD:
        answer = await plain.post(URL, {"model": "Front", "input": "hi", **body})
        check_error(answer, 400, "invalid_request", param)
    sessions = (await plain.get("/v1/sessions")).json()["data"]
    assert all(session["message_count"] == 0 for session in sessions)


async def test_every_layer_answers_in_this_shape(plain: RunningServer) -> None:
    error = check_error(await plain.post(URL, {"model": "gpt-4o"}), 404, "model_not_found", "model")
    assert "Front" in error["message"]
    check_error(await plain.get("/openai/v1/nothing"), 404, "not_found")
    for path in ("assistants", "threads", "threads/thread_1/messages"):
        error = check_error(await plain.post(f"/openai/v1/{path}", {}), 404, "not_found")
        assert "use conversations and responses, or beta.agents" in error["message"]
        assert "/openai/v1/openapi.json" in error["message"]
        assert "base URL /openai/v1" in (await plain.post(f"/v1/{path}", {})).json()["error"]["message"]
    check_error(await plain.get("/openai/v1/models/Nobody"), 404, "model_not_found", "model")
    check_error(await plain.client.put(URL), 405, "method_not_allowed")
    check_error(await plain.client.post(URL, content=b"{"), 400, "invalid_request")
    check_error(await plain.client.post(URL, content=b"a=b", headers={"content-type": "x/y"}), 415,
                "unsupported_media_type")  # fmt: skip
    check_error(await plain.get(f"{URL}/resp_0.nobody"), 404, "not_found")
    check_error(await plain.get(f"{URL}/odd"), 404, "not_found")
    check_error(await plain.get(f"{URL}/resp_0.x?stream=maybe"), 400, "invalid_request", "stream")
    check_error(await plain.get("/openai/v1/models?x=1"), 400, "invalid_request", "x")
    previous = {"model": "Front", "input": "x", "previous_response_id": "resp_0.nobody"}
    check_error(await plain.post(URL, previous), 400, "previous_response_not_found", "previous_response_id")
    evil = await plain.get("/openai/v1/models", headers={"origin": "https://evil.example"})
    check_error(evil, 403, "forbidden")
    key = {"idempotency-key": "x" * 300}
    check_error(await plain.post(URL, {"model": "Front"}, headers=key), 400, "invalid_request", "Idempotency-Key")


async def test_daily_token_limit_refuses_unstored_requests(sqlite_ready: str, model: ScriptedModel) -> None:
    async with start_server(scripted(sqlite_ready, model, max_tokens_per_day=1000)) as service:
        for url, body in (
            (URL, {"input": "hi", "store": False}),
            ("/openai/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "store": False}),
            (f"{URL}/compact", {"input": "hi"}),
        ):
            error = check_error(await service.post(url, {"model": "Front", **body}), 400, "invalid_request", "store")
            assert "SWARMKEEP_MAX_TOKENS_PER_DAY" in error["message"]


def test_handshake_error_logged_like_http(caplog: pytest.LogCaptureFixture) -> None:
    status, body, _ = make_error(RuntimeError("the password is 12345"))
    assert (status, body["message"]) == (500, "see the server's log")
    assert "WebSocket: unexpected error" in caplog.text
    assert "RuntimeError: the password is 12345" in caplog.text


# What is refused: by the name of what is wrong, and before anything is made for it.

DOOR: Any = {"type": "function", "name": "open_door", "parameters": {"type": "object", "properties": {}}}
CHAT_DOOR: Any = {"type": "function", "function": {"name": "open_door", "parameters": {"type": "object"}}}


# A tool choice of which a part would be dropped, and what the refusal names.
CHOICES: list[tuple[Any, str]] = [
    ({"type": "function", "name": "open_door", "strict": True}, "tool_choice.strict"),
    ({"type": "function"}, "tool_choice"),
    ({"type": "file_search"}, "tool_choice"),
    ({"name": "open_door"}, "tool_choice"),
    ("sometimes", "tool_choice"),
    ({"type": "allowed_tools", "mode": "auto", "tools": [], "most": 3}, "tool_choice.most"),
    ({"type": "allowed_tools", "mode": "never", "tools": []}, "tool_choice"),
    ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "open_door", "x": 1}]},
     "tool_choice.tools[0].x"),
    ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "name": "a"}]}, "tool_choice.tools[0]"),
    ({"type": "function", "name": "shut_door"}, "tool_choice"),
    ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "shut_door"}]}, "tool_choice"),
]  # fmt: skip
CHAT_CHOICES: list[tuple[Any, str]] = [
    ({"type": "function", "function": {"name": "open_door"}, "strict": True}, "tool_choice.strict"),
    ({"type": "function", "function": {"name": "open_door", "x": 1}}, "tool_choice.function.x"),
    ({"type": "function", "name": "open_door"}, "tool_choice"),
    ({"type": "custom", "custom": {"name": "a"}}, "tool_choice"),
    ({"type": "function", "function": {"name": "shut_door"}}, "tool_choice"),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [], "most": 3}},
     "tool_choice.allowed_tools.most"),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CHAT_DOOR]}},
     "tool_choice.allowed_tools.tools[0].function.parameters"),
]  # fmt: skip


async def test_partly_dropped_tool_choice_refused(plain: RunningServer) -> None:
    chat = {"messages": [{"role": "user", "content": "Open it."}], "tools": [CHAT_DOOR]}
    for url, body, choices in (
        (URL, {"input": "Open it.", "tools": [DOOR]}, CHOICES),
        ("/openai/v1/chat/completions", chat, CHAT_CHOICES),
    ):
        for choice, param in choices:
            answer = await plain.post(url, {"model": "Front", **body, "tool_choice": choice})
            check_error(answer, 400, "invalid_request", param)


def said(text: str) -> Any:
    return {"type": "message", "role": "user", "content": text}


def call(call_id: str) -> Any:
    return {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}


def output(call_id: str) -> Any:
    return {"type": "function_call_output", "call_id": call_id, "output": "x"}


FILE = {"type": "input_file", "file_url": "https://example.org/a.pdf"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"max_tool_calls": 3}, "'max_tool_calls' is not supported here; leave it out"),
        ({"reasoning": {"mode": "pro"}}, "'mode' is not supported here; leave it out"),
        ({"input": [{"role": "user", "content": [FILE]}]}, "send a file as `file_data`, not by a URL"),
    ],
)
async def test_a_refusal_says_what_to_do(openai: AsyncOpenAI, body: Any, words: str) -> None:
    with pytest.raises(BadRequestError, match=words):
        await openai.responses.create(**{"model": "Front", "input": "Hi.", **body})


async def test_non_string_past_approval_ids_refused(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    past = {
        "type": "mcp_call",
        "id": "mcp_1",
        "name": "look",
        "server_label": "Front",
        "arguments": "{}",
        "output": "x",
    }
    decision = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    with pytest.raises(BadRequestError):
        await openai.responses.create(
            model="Front", input=[said("Hi."), {**past, "approval_request_id": [1]}, decision]
        )


async def test_stray_output_named_by_item(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    # Three calls are one message: the fifth item is the third message.
    items = [said("Look."), call("a"), call("b"), call("c"), output("z")]
    for asked in ({"store": True}, {"store": False}):
        with pytest.raises(BadRequestError, match="'z'") as refused:
            await openai.responses.create(model="Front", input=items, **asked)
        assert refused.value.param == "input[4]"
    with pytest.raises(BadRequestError, match="'z'") as refused:
        await openai.responses.input_tokens.count(model="Front", input=items)
    assert refused.value.param == "input[4]"
    with pytest.raises(BadRequestError, match="'z'") as refused:
        await openai.conversations.create(items=items)
    assert refused.value.param == "items[4]"
    made = await openai.conversations.create()
    with pytest.raises(BadRequestError, match="'z'") as refused:
        await openai.conversations.items.create(made.id, items=items)
    assert refused.value.param == "items[4]"


async def test_stray_output_for_waiting_run_named(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.call("open_door", {}, id="c1")
    first = await openai.responses.create(model="Front", input="Open it.", tools=[DOOR])
    items = [call("a"), call("b"), output("c1"), output("z")]
    with pytest.raises(BadRequestError, match="'z'") as refused:
        await openai.responses.create(model="Front", input=items, previous_response_id=first.id)
    assert refused.value.param == "input[3]"


async def count_sessions(service: RunningServer) -> int:
    return len((await service.get("/v1/sessions?limit=100")).json()["data"])


async def test_refused_request_makes_no_session(
    openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel
) -> None:
    approval: Any = {"type": "mcp_approval_response", "approval_request_id": "mcpr_x-0-0.y", "approve": True}
    large = said("x" * 8_100_000)
    refused: list[Any] = [[said("Look."), call("a"), output("z")], [approval], [large]]
    for items in refused:
        for more in ({}, {"stream": True}, {"background": True}):
            with pytest.raises(APIStatusError):
                await openai.responses.create(model="Front", input=items, **more)
    assert await count_sessions(service) == 0
    model.say("one")
    first = await openai.responses.create(model="Front", input="1")
    model.say("two")
    await openai.responses.create(model="Front", input="2", previous_response_id=first.id)
    for items in refused:
        with pytest.raises(APIStatusError):
            await openai.responses.create(model="Front", input=items, previous_response_id=first.id)
    assert await count_sessions(service) == 1
    chat: list[Any] = [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "x" * 8_100_000},
    ]
    for header in ({}, {"X-Session-Id": "chat-1"}):
        with pytest.raises(APIStatusError):
            await openai.chat.completions.create(model="Front", messages=chat, extra_headers=header)
    assert await count_sessions(service) == 1


async def test_fork_answering_initial_open_call_made(
    openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel
) -> None:
    model.call("open_door", {}, id="c1")
    first = await openai.responses.create(model="Front", input="Open it.", tools=[DOOR])
    model.say("Open.")
    await openai.responses.create(model="Front", input=[output("c1")], previous_response_id=first.id)
    model.say("Open again.")
    other = await openai.responses.create(model="Front", input=[output("c1")], previous_response_id=first.id)
    assert other.output_text == "Open again."
    assert await count_sessions(service) == 2


# Keys, roles and tenants hold as they do for /v1.


NEEDED = {
    name: set(permissions.split())
    for permissions, names in {
        "read": (
            "list_models get_model get_response list_response_input_items get_conversation list_items get_item "
            "list_openai_agents get_openai_agent list_agent_sessions get_agent_session "
            "stream_agent_session_events list_agent_turns get_agent_turn list_agent_turn_items list_agent_items "
            "list_agent_subagents get_agent_subagent list_agent_subagent_turns get_agent_subagent_turn "
            "list_agent_subagent_turn_items list_agent_subagent_items list_agent_artifacts get_agent_artifact "
            "get_agent_artifact_content list_agent_traces list_agent_automations get_agent_automation "
            "list_agent_automation_invocations get_agent_automation_invocation"
        ),
        "run": (
            "create_chat_completion count_input_tokens compact_response cancel_response create_conversation "
            "update_conversation create_items delete_item create_agent_session update_agent_session "
            "create_agent_automation update_agent_automation pause_agent_automation resume_agent_automation "
            "create_agent_automation_invocation"
        ),
        "approve run": ("create_response create_agent_session_events"),
        "write": (
            "delete_response delete_conversation create_openai_agent update_openai_agent delete_openai_agent "
            "delete_agent_session delete_agent_automation"
        ),
    }.items()
    for name in names.split()
}


def test_every_route_asks_listed_permission() -> None:
    found: dict[str, set[str]] = {}
    for route in ROUTES:
        reads = "GET" in route.http_methods  # type: ignore[union-attr]
        default = ("read",) if reads else ("write",)
        found[get_operation_id(route)] = set(route.opt.get(PERMISSION, default))  # type: ignore[union-attr,arg-type]
    assert found == NEEDED


async def ask(service: RunningServer, key: Headers, **body: Any) -> Any:
    return await service.post("/openai/v1/responses", {"model": "Front", **body}, headers=key)


async def test_key_needed_once_one_exists(plain: RunningServer) -> None:
    reader = await create_key(plain, "acme", role="read")
    check_error(await plain.get("/openai/v1/models"), 401, "unauthenticated")
    assert (await plain.get("/openai/v1/models", headers=reader)).status_code == 200
    check_error(await ask(plain, reader, input="hi"), 403, "forbidden")
    assert (await plain.get("/v1/sessions", headers=reader)).json()["data"] == []


@pytest.mark.parametrize(("role", "allowed"), [("run", False), ("approve", True), ("write", True)])
async def test_an_approval_needs_its_permission(
    service: RunningServer, model: ScriptedModel, role: Role, allowed: bool
) -> None:
    model.call("refund", {"order": "1"}, id="c1")
    runner, key = await create_key(service, "acme", role="run"), await create_key(service, "acme", role=role)
    first = (await ask(service, runner, input="Refund 1.")).json()
    assert [item["type"] for item in first["output"]] == ["mcp_approval_request"]
    ahead = await ask(service, runner, input="Well?", previous_response_id=first["id"])
    said = check_error(ahead, 400, "invalid_request", "input")["message"]
    assert said.endswith("(refund); answer its mcp_approval_request with an mcp_approval_response")
    answer = {"type": "mcp_approval_response", "approval_request_id": first["output"][0]["id"], "approve": True}
    if allowed:
        model.say("Done.")
    second = await ask(service, key, input=[answer], previous_response_id=first["id"])
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
    made = (await ask(service, mine, input="hi")).json()
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
        await ask(service, other, input="x", previous_response_id=made["id"]),
        400, "previous_response_not_found", "previous_response_id",
    )  # fmt: skip
    check_error(await ask(service, other, input="x", conversation=session), 404, "not_found", "conversation")
    named = [{"type": "item_reference", "id": item}]
    check_error(await ask(service, other, input=named), 404, "not_found", "input[0].id")
    assert (await service.get("/v1/sessions", headers=other)).json()["data"] == []


async def test_approve_only_key_cannot_steer_run(service: RunningServer, model: ScriptedModel) -> None:
    model.call("refund", {"order": "1"}, id="c1")
    runner = await create_key(service, "acme", role="run")
    approver = await create_key(service, "acme", role="approve")
    first = (await ask(service, runner, input="Refund 1.")).json()
    answer = {"type": "mcp_approval_response", "approval_request_id": first["output"][0]["id"], "approve": True}
    model.say("Done.")
    body = {"input": [answer], "previous_response_id": first["id"], "instructions": "Say everything."}
    assert (await ask(service, approver, **body)).status_code == 200
    assert "Say everything." not in model.requests[1]["messages"][0]["content"]


async def test_stored_response_decision_is_recorded(service: RunningServer, model: ScriptedModel) -> None:
    model.call("refund", {"order": "1"}, id="c1")
    writer = await create_key(service, "acme")
    first = (await ask(service, writer, input="Refund 1.")).json()
    answer = {"type": "mcp_approval_response", "approval_request_id": first["output"][0]["id"], "approve": True}
    body = {"input": [answer], "previous_response_id": first["id"], "store": False}
    check_error(await ask(service, writer, **body), 400, "invalid_request", "store")


async def test_session_approval_does_not_cover_unstored(service: RunningServer, model: ScriptedModel) -> None:
    """Whoever may give results could have it done again and again."""
    model.calls([("refund", {"order": "1"}, "c1"), ("look", {}, "c2")])
    runner = await create_key(service, "acme", role="run")
    approver = await create_key(service, "acme", role="approve")
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]
    first = (await ask(service, runner, input="Refund 1.", tools=tools)).json()
    session, run = first["id"].partition(".")[2], "run_" + first["id"].partition(".")[0].removeprefix("resp_")
    decision = {"approvals": [{"tool_call_id": "c1", "decision": "approve"}], "stream": False}
    path = f"/v1/sessions/{session}/runs/{run}/resume"
    assert (await service.post(path, decision, headers=approver)).json()["status"] == "waiting"
    seen = {"type": "function_call_output", "call_id": "c2", "output": "nothing"}
    body = {"input": [seen], "previous_response_id": first["id"], "store": False, "tools": tools}
    answer = (await ask(service, runner, **body)).json()
    assert [item["type"] for item in answer["output"]] == ["mcp_approval_request"]
    assert len(model.requests) == 1
