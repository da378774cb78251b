"""Calls of the caller's functions that the end of a reply cut: shown as incomplete, and never to be answered."""

from __future__ import annotations

from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError

from tests.runs.calls.test_cut_calls import PIECES, script_calls
from tests.support.scripted import ScriptedModel

PARAMETERS = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOL: Any = {"type": "function", "name": "shop", "parameters": PARAMETERS}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "shop", "parameters": PARAMETERS}}
ASKED: dict[str, Any] = {"model": "Front", "input": "Buy tea.", "tools": [TOOL]}
CHAT: dict[str, Any] = {"model": "Front", "messages": [{"role": "user", "content": "Buy tea."}], "tools": [CHAT_TOOL]}
pytestmark = pytest.mark.one_database

STORE = pytest.mark.parametrize("store", [True, False])


async def respond(openai: AsyncOpenAI, how: str, **asked: Any) -> Any:
    """The response, whole or as the end of its stream."""
    if how == "length":
        return await openai.responses.create(**asked)
    async with await openai.responses.create(**asked, stream=True) as events:
        return [event async for event in events][-1].response  # type: ignore[union-attr]


@PIECES
@STORE
async def test_cut_call_is_incomplete_item(
    openai: AsyncOpenAI, model: ScriptedModel, how: str, arguments: str, store: bool
) -> None:
    script_calls(model, how, ("shop", arguments))
    response = await respond(openai, how, **ASKED, store=store)
    assert (response.status, response.incomplete_details.reason, response.error) == (
        "incomplete",
        "max_output_tokens",
        None,
    )
    [item] = response.output
    assert (item.type, item.status, item.name) == ("function_call", "incomplete", "shop")
    if not store:
        return
    assert await openai.responses.retrieve(response.id) == response
    assert [item.type for item in (await openai.responses.input_items.list(response.id)).data] == ["message"]
    output: Any = [{"type": "function_call_output", "call_id": item.call_id, "output": "tea"}]
    with pytest.raises(BadRequestError, match="no open call"):
        await openai.responses.create(**{**ASKED, "input": output}, previous_response_id=response.id)
    # The conversation goes on, and the model sees what became of the call.
    model.say("Sorry.")
    answer = await openai.responses.create(**{**ASKED, "input": "Well?"}, previous_response_id=response.id)
    assert answer.output_text == "Sorry."
    assert "shop was not run" in model.requests[-1]["messages"][-2]["content"]


@STORE
async def test_whole_calls_beside_cut_are_answerable(openai: AsyncOpenAI, model: ScriptedModel, store: bool) -> None:
    script_calls(model, "length", ("shop", '{"q": "tea"}'), ("shop", '{"q": "co'))
    response = await openai.responses.create(**ASKED, store=store)
    assert response.status == "incomplete"
    assert [item.status for item in response.output] == ["completed", "incomplete"]  # type: ignore[union-attr]
    if not store:
        return
    model.say("Here you are.")
    output: Any = [{"type": "function_call_output", "call_id": "c0", "output": "tea"}]
    answer = await openai.responses.create(**{**ASKED, "input": output}, previous_response_id=response.id)
    assert (answer.status, answer.output_text) == ("completed", "Here you are.")
    results = [message["content"] for message in model.requests[-1]["messages"][-2:]]
    assert results[0] == "tea"
    assert "shop was not run" in results[1]


@PIECES
@STORE
async def test_a_chat_has_no_half_call(
    openai: AsyncOpenAI, model: ScriptedModel, how: str, arguments: str, store: bool
) -> None:
    script_calls(model, how, ("shop", '{"q": "tea"}'), ("shop", arguments))
    if how == "length":
        [choice] = (await openai.chat.completions.create(**CHAT, store=store)).choices
        assert choice.message.tool_calls is not None
        calls = [call.function.arguments for call in choice.message.tool_calls]  # type: ignore[union-attr]
        reason: str | None = choice.finish_reason
    else:
        calls, reason = [], None
        async with await openai.chat.completions.create(**CHAT, store=store, stream=True) as chunks:
            async for chunk in chunks:
                for piece in chunk.choices[0].delta.tool_calls or ():
                    assert piece.function is not None
                    calls += [""] if piece.id else []
                    calls[piece.index] += piece.function.arguments or ""
                reason = chunk.choices[0].finish_reason or reason
    assert (calls, reason) == (['{"q": "tea"}'], "length")


async def test_own_cut_call_is_failed_item(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    script_calls(model, "length", ("add", '{"a": 1'))
    model.say("Sorry.")
    response = await openai.responses.create(model="Front", input="Add.")
    assert response.status == "completed"
    assert [(item.type, item.status) for item in response.output] == [  # type: ignore[union-attr]
        ("mcp_call", "failed"),
        ("message", "completed"),
    ]
