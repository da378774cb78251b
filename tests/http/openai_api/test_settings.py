"""Settings of responses: what is asked of the model, its size, and what the client makes of the answer."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError
from pydantic import BaseModel

from tests.http.openai_api.test_conformance import PICTURE, WEATHER, message
from tests.http.server import RunningServer, scripted, start_server
from tests.http.team import front
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


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


# What OpenAI's client makes of responses by itself: parsed answers, and streams that it puts together.


class Forecast(BaseModel):
    place: str
    degrees: int


ROME = Forecast(place="Rome", degrees=21)


async def test_an_answer_is_parsed(openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel) -> None:
    model.say(ROME.model_dump_json())
    made = await openai.responses.parse(model="Front", input="Weather?", text_format=Forecast)
    assert made.output_parsed == ROME
    session = made.id.partition(".")[2]
    started = next(e for e in await service.events(f"/v1/sessions/{session}") if e["type"] == "run.started")
    kept = started["data"]["options"]["response_format"]
    assert (kept["type"], kept["json_schema"]["name"], kept["json_schema"]["strict"]) == (
        "json_schema",
        "Forecast",
        True,
    )
    assert kept["json_schema"]["schema"]["required"] == ["place", "degrees"]
    assert model.requests[0]["response_format"] == kept


async def test_a_parsed_answer_is_streamed(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    text = ROME.model_dump_json()
    model.say([text[:8], text[8:]])
    async with openai.responses.stream(model="Front", input="Weather?", text_format=Forecast) as stream:
        snapshots = [event.snapshot async for event in stream if event.type == "response.output_text.delta"]
        last = await stream.get_final_response()
    assert snapshots[0] == text[: len(snapshots[0])]
    assert snapshots[-1] == text
    assert last.output_parsed == ROME


async def test_a_streamed_call_is_put_together(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.call("look_outside", {"place": "Rome"}, id="c1", text="Let me look.")
    tool: Any = WEATHER
    async with openai.responses.stream(model="Front", input="Weather?", tools=[tool]) as stream:
        kinds = [event.type async for event in stream]
        last = await stream.get_final_response()
    assert "response.function_call_arguments.done" in kinds
    message, call = last.output
    assert (message.type, call.type) == ("message", "function_call")
    model.say("Blue.")
    output: Any = [{"type": "function_call_output", "call_id": "c1", "output": "blue"}]
    asked: Any = {"model": "Front", "input": output, "previous_response_id": last.id, "tools": [tool]}
    async with openai.responses.stream(**asked) as stream:
        await stream.until_done()
        assert (await stream.get_final_response()).output_text == "Blue."


async def test_helper_resumes_a_stream(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.say(["One, ", "two, ", "three."])
    made = await openai.responses.create(model="Front", input="Count.", background=True, stream=True)
    events = [event async for event in made]
    first = events[0]
    assert first.type == "response.created"
    async with openai.responses.stream(response_id=first.response.id) as stream:
        assert (await stream.get_final_response()).output_text == "One, two, three."
    after = events[3].sequence_number
    async with openai.responses.stream(response_id=first.response.id, starting_after=after) as stream:
        numbers = [event.sequence_number async for event in stream]
    assert min(numbers) > after


# How large a request would be: an estimate that follows what would be sent, and records nothing.


async def count(openai: AsyncOpenAI, **asked: Any) -> int:
    found = await openai.responses.input_tokens.count(model="Front", **asked)
    assert found.object == "response.input_tokens"
    return found.input_tokens


async def test_what_would_be_sent_is_counted(openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer) -> None:
    short = await count(openai, input="Hello.")
    assert short > 5
    long = await count(openai, input="word " * 1000)
    assert 900 < long - short < 1500
    tool: Any = WEATHER
    assert await count(openai, input="Hello.", tools=[tool]) > short + 20
    said: Any = [message("user", "Hello."), message("assistant", "word " * 400), message("user", "Again.")]
    assert await count(openai, input=said) > short + 400
    assert (await service.get("/v1/sessions")).json()["data"] == []


async def test_what_was_said_before_counts(openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer) -> None:
    model.say("word " * 1000)
    made = await openai.responses.create(model="Front", input="Much, please.")
    alone = await count(openai, input="More?")
    before = (await service.get(f"/v1/sessions/{made.id.partition('.')[2]}")).json()["seq"]
    assert 900 < await count(openai, input="More?", previous_response_id=made.id) - alone < 1500
    conversation = made.id.partition(".")[2]
    assert await count(openai, input="More?", conversation=conversation) > alone + 900
    assert (await service.get(f"/v1/sessions/{conversation}")).json()["seq"] == before


async def test_waiting_response_input_counts(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.call("look_outside", {"place": "Rome"}, id="c1")
    tool: Any = WEATHER
    made = await openai.responses.create(model="Front", input="Weather?", tools=[tool])
    sizes = []
    for text in ("blue", "blue " * 1000):
        output: Any = [{"type": "function_call_output", "call_id": "c1", "output": text}]
        sizes.append(await count(openai, input=output, previous_response_id=made.id, tools=[tool]))
    assert 900 < sizes[1] - sizes[0] < 1500


async def test_picture_counts_once_at_any_size(openai: AsyncOpenAI) -> None:
    sizes = []
    for url in (PICTURE, PICTURE + "A" * 400_000):
        parts: Any = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": url}]
        sizes.append(await count(openai, input=[message("user", parts)]))
    assert sizes[0] == sizes[1] > 500


async def test_history_pictures_counted_by_number(openai: AsyncOpenAI, service: RunningServer) -> None:
    sizes = []
    for pictures in (0, 1, 2):
        urls = [PICTURE, "https://example.com/" + "a" * 4000][:pictures]
        parts: Any = [{"type": "input_text", "text": "What?"}, *({"type": "input_image", "image_url": u} for u in urls)]
        made = await openai.conversations.create(items=[message("user", parts), message("assistant", "A cat.")])
        sizes.append(await count(openai, input="Sure?", conversation=made.id))
    assert [later - earlier for earlier, later in itertools.pairwise(sizes)] == [pytest.approx(765, abs=10)] * 2


async def test_busy_conversation_counted_without_pending(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    await service.session(id="conv_busy")
    model.hang("It is ", then="done")
    made = await openai.responses.create(model="Front", input="Wait.", conversation="conv_busy", background=True)
    await model.wait_for_requests_async(1)
    assert await count(openai, input="word " * 1000, conversation="conv_busy") > 900
    model.release()
    stream = await openai.responses.retrieve(made.id, stream=True)
    assert [event async for event in stream][-1].type == "response.completed"


async def test_unaskable_input_cannot_be_counted(openai: AsyncOpenAI) -> None:
    with pytest.raises(NotFoundError, match="there is no model"):
        await openai.responses.input_tokens.count(model="nobody", input="Hello.")
    with pytest.raises(BadRequestError, match="there is no response"):
        await count(openai, input="Hello.", previous_response_id="resp_none")
    with pytest.raises(NotFoundError):
        await count(openai, input="Hello.", conversation="nowhere")
    with pytest.raises(BadRequestError):
        await count(openai, input="Hello.", tools=[{"type": "web_search"}])
    with pytest.raises(BadRequestError):
        await count(openai, input=[{"type": "function_call_output", "call_id": "c1", "output": "x"}])
