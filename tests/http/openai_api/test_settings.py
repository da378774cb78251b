"""What a request asks of the model: settings, instructions, and the form of the answer."""

from __future__ import annotations

import json

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.http.server import scripted, start_server
from tests.http.team import front
from tests.support.scripted import ScriptedModel


async def test_settings_reach_model_and_are_shown(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.say("yes")
    made = await openai.responses.create(
        model="Front",
        input="hi",
        instructions="Be brief.",
        temperature=0.25,
        top_p=0.5,
        max_output_tokens=64,
        top_logprobs=0,
        reasoning={"effort": "low"},
        text={"verbosity": "low"},
        extra_body={"presence_penalty": 0.5, "frequency_penalty": -0.5},
    )
    sent = model.requests[0]
    expected = {
        "temperature": 0.25,
        "top_p": 0.5,
        "max_completion_tokens": 64,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "reasoning_effort": "low",
        "verbosity": "low",
    }
    assert expected.items() <= sent.items()
    assert sent["messages"][0]["content"] == "Help them.\n\nBe brief."
    assert (made.instructions, made.temperature, made.top_p) == ("Be brief.", 0.25, 0.5)
    assert (made.max_output_tokens, made.top_logprobs) == (64, 0)
    assert made.reasoning is not None
    assert made.reasoning.effort == "low"
    assert await openai.responses.retrieve(made.id) == made
    model.say("again")
    await openai.responses.create(model="Front", input="hi", previous_response_id=made.id)
    assert model.requests[1].keys().isdisjoint(expected.keys() - {"temperature"})
    assert model.requests[1]["temperature"] == front.model_settings["temperature"]
    assert model.requests[1]["messages"][0]["content"] == "Help them."


class Weather(BaseModel):
    city: str
    degrees: int


async def test_client_parses_the_answer(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.say('{"city": "Rome", "degrees": 31}')
    made = await openai.responses.parse(model="Front", input="Weather?", text_format=Weather)
    assert made.output_parsed == Weather(city="Rome", degrees=31)
    sent = model.requests[0]["response_format"]
    assert (sent["type"], sent["json_schema"]["name"], sent["json_schema"]["strict"]) == (
        "json_schema",
        "Weather",
        True,
    )
    assert made.text is not None
    assert made.text.format is not None
    assert made.text.format.type == "json_schema"


async def test_cut_off_answer_is_incomplete(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.say("It is su", finish_reason="length")
    made = await openai.responses.create(model="Front", input="Weather?", max_output_tokens=16)
    assert made.status == "incomplete"
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"
    assert (made.output_text, made.output[0].status) == ("It is su", "incomplete")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("status", "code", "shown"),
    [
        (429, None, "rate_limit_exceeded"),
        (400, "context_length_exceeded", "invalid_prompt"),
        (400, "content_filter", "invalid_prompt"),
        (400, None, "server_error"),
    ],
)
async def test_failed_run_is_failed_response(
    openai: AsyncOpenAI, model: ScriptedModel, status: int, code: str | None, shown: str
) -> None:
    model.fail(status, code=code, message="not now", headers={"x-should-retry": "false"})
    made = await openai.responses.create(model="Front", input="hi")
    assert (made.status, made.output) == ("failed", [])
    assert made.error is not None
    assert made.error.code == shown
    assert made.error.type == (code or ("provider_rate_limited" if status == 429 else "provider_bad_request"))
    assert "not now" in made.error.message


async def test_answer_by_call_is_a_message(sqlite_ready: str, model: ScriptedModel) -> None:
    model.call("final_output", {"sku": 2}, id="c1")
    model.call("final_output", {"sku": "A-17"}, id="c2")
    agents = ["tests.http.output_team"]
    async with (
        start_server(scripted(sqlite_ready, model, agents=agents)) as service,
        AsyncOpenAI(base_url=f"{service.url}/openai/v1", api_key="none", max_retries=0) as client,
    ):
        made = await client.responses.create(model="Clerk", input="How many?")
        assert json.loads(made.output_text) == {"sku": "A-17"}
        # The wrong answer is in the conversation, and does not count as one of the response.
        assert [item.type for item in made.output] == ["message"]
        assert await client.responses.retrieve(made.id) == made
        listed = await client.responses.input_items.list(made.id)
        assert [item.type for item in listed.data] == ["message"]
        items = [item async for item in client.conversations.items.list(made.id.partition(".")[2], order="asc")]
        assert [item.type for item in items] == ["message", "mcp_call", "message"]
        assert items[-1].id == made.output[0].id
