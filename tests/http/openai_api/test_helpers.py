"""What OpenAI's client makes of responses by itself: parsed answers, and streams that it puts together."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.http.openai_api.test_conformance import WEATHER
from tests.http.server import RunningServer
from tests.support.scripted import ScriptedModel


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
