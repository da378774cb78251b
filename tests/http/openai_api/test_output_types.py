"""Agents whose answers are of a certain form: an answer that was wrong is in the log, and in no response."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.http.server import RunningServer, scripted, start_server
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

WRONG, RIGHT = '{"sku": 7}', '{"sku": "A-17"}'


@pytest.fixture
async def service(ready_url: str, model: ScriptedModel) -> AsyncIterator[RunningServer]:
    async with start_server(scripted(ready_url, model, agents=["tests.http.output_team"])) as running:
        yield running


def answer_twice(model: ScriptedModel, agent: str) -> None:
    for text in (WRONG, RIGHT):
        if agent == "Clerk":
            model.call("final_output", text)
        else:
            model.say(text)


@pytest.mark.parametrize("agent", ["Clerk", "Typist"])
async def test_only_the_last_answer_counts(
    openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel, agent: str
) -> None:
    answer_twice(model, agent)
    made = await openai.responses.create(model=agent, input="Which?")
    assert (json.loads(made.output_text), len(made.output)) == (json.loads(RIGHT), 1)
    assert await openai.responses.retrieve(made.id) == made
    events = await service.events(f"/v1/sessions/{made.id.partition('.')[2]}")
    assert "7" in json.dumps([event["data"] for event in events if event["type"] == "message.added"])
    answer_twice(model, agent)
    async with openai.responses.stream(model=agent, input="Which?") as stream:
        told = [event async for event in stream]
        last = await stream.get_final_response()
    numbers = [event.sequence_number for event in told]
    ended = [event.item for event in told if event.type == "response.output_item.done"]
    said = [(item.type, item.status) for item in ended]
    assert said == [("mcp_call", "failed") if agent == "Clerk" else ("message", "incomplete"), ("message", "completed")]
    assert numbers == sorted(set(numbers))
    assert (json.loads(last.output_text), len(last.output)) == (json.loads(RIGHT), 1)
    again = await openai.responses.retrieve(last.id, stream=True, starting_after=numbers[-3])
    assert [event.sequence_number async for event in again] == numbers[-2:]


@pytest.mark.parametrize("agent", ["Clerk", "Typist"])
async def test_chat_completion_shows_only_last_answer(openai: AsyncOpenAI, model: ScriptedModel, agent: str) -> None:
    asked: Any = {"model": agent, "messages": [{"role": "user", "content": "Which?"}]}
    for more in ({}, {"store": False}):
        answer_twice(model, agent)
        made = await openai.chat.completions.create(**asked, **more)
        assert json.loads(made.choices[0].message.content or "") == json.loads(RIGHT)
        answer_twice(model, agent)
        stream = await openai.chat.completions.create(**asked, **more, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert json.loads(text) == json.loads(RIGHT)
