"""Every refusal below /openai/v1 has OpenAI's shape, whichever layer makes it; nothing is ignored silently."""

from __future__ import annotations

from typing import Any

import pytest

from swarmkeep.events.codec import Json
from swarmkeep.openai.problems import make_error
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
