"""What is refused: by the name of what is wrong, and before anything is made for it."""

from __future__ import annotations

from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError

from tests.http.server import RunningServer
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

DOOR: Any = {"type": "function", "name": "open_door", "parameters": {"type": "object", "properties": {}}}
CHAT_DOOR: Any = {"type": "function", "function": {"name": "open_door", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "function", "name": "open_door", "strict": True}, "tool_choice.strict"),
        ({"type": "function"}, "tool_choice"),
        ({"type": "file_search"}, "tool_choice"),
        ({"name": "open_door"}, "tool_choice"),
        ("sometimes", "tool_choice"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [], "most": 3}, "tool_choice.most"),
        ({"type": "allowed_tools", "mode": "never", "tools": []}, "tool_choice"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "open_door", "x": 1}]},
            "tool_choice.tools[0].x",
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "name": "a"}]}, "tool_choice.tools[0]"),
        ({"type": "function", "name": "shut_door"}, "tool_choice"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "shut_door"}]},
            "tool_choice",
        ),
    ],
)
async def test_partly_dropped_tool_choice_refused(openai: AsyncOpenAI, choice: Any, param: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        await openai.responses.create(model="Front", input="Open it.", tools=[DOOR], tool_choice=choice)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "function", "function": {"name": "open_door"}, "strict": True}, "tool_choice.strict"),
        ({"type": "function", "function": {"name": "open_door", "x": 1}}, "tool_choice.function.x"),
        ({"type": "function", "name": "open_door"}, "tool_choice"),
        ({"type": "custom", "custom": {"name": "a"}}, "tool_choice"),
        ({"type": "function", "function": {"name": "shut_door"}}, "tool_choice"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [], "most": 3}},
            "tool_choice.allowed_tools.most",
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CHAT_DOOR]}},
            "tool_choice.allowed_tools.tools[0].function.parameters",
        ),
    ],
)
async def test_partly_dropped_chat_tool_choice_refused(openai: AsyncOpenAI, choice: Any, param: str) -> None:
    said: Any = [{"role": "user", "content": "Open it."}]
    with pytest.raises(BadRequestError) as refused:
        await openai.chat.completions.create(model="Front", messages=said, tools=[CHAT_DOOR], tool_choice=choice)
    assert refused.value.param == param


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


async def test_unknown_route_names_the_description(service: RunningServer) -> None:
    answer = await service.post("/openai/v1/assistants", {})
    assert "/openai/v1/openapi.json" in answer.json()["error"]["message"]


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
