"""How large a request would be: an estimate that follows what would be sent, and records nothing."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from tests.http.openai_api.test_conformance import PICTURE, WEATHER, message
from tests.http.server import RunningServer
from tests.support.scripted import ScriptedModel


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
