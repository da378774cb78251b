"""Responses by OpenAI's client: begun, streamed, fetched and streamed again, gone on with, forked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from swarmkeep.store.reading import decode_event
from tests.http.server import RunningServer
from tests.support.calls import count_calls
from tests.support.scripted import USAGE, ScriptedModel

pytestmark = pytest.mark.one_database

WEATHER: Any = {
    "type": "function",
    "name": "open_door",
    "description": "Open a door.",
    "parameters": {"type": "object", "properties": {"door": {"type": "string"}}, "required": ["door"]},
}


async def test_response_answered_and_fetchable_again(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.say("It is sunny.")
    made = await openai.responses.create(model="Front", input="Weather?", metadata={"a": "b"}, temperature=0.5)
    assert (made.status, made.output_text, made.model) == ("completed", "It is sunny.", "Front")
    assert (made.metadata, made.temperature, made.error, made.incomplete_details) == ({"a": "b"}, 0.5, None, None)
    assert made.usage is not None
    assert made.usage.total_tokens == USAGE["total_tokens"]
    again = await openai.responses.retrieve(made.id)
    assert again == made
    listed = await openai.responses.input_items.list(made.id)
    assert [item.type for item in listed.data] == ["message"]


async def test_stream_events_ordered_and_repeatable(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.say("It is sunny in Rome.")
    stream = await openai.responses.create(model="Front", input="Weather?", stream=True)
    live = [event async for event in stream]
    types = [event.type for event in live]
    assert types[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert types[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert set(types[4:-4]) == {"response.output_text.delta"}
    assert len(types) > 9
    numbers = [event.sequence_number for event in live]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 0
    text = "".join(event.delta for event in live if event.type == "response.output_text.delta")
    assert text == "It is sunny in Rome."
    last = live[-1]
    assert last.type == "response.completed"
    assert await openai.responses.retrieve(last.response.id) == last.response
    for at, event in enumerate(live):
        rest = await openai.responses.retrieve(last.response.id, stream=True, starting_after=event.sequence_number)
        later = [found async for found in rest]
        if event.type == "response.output_text.delta" and live[at + 1].type == "response.output_text.delta":
            missed = "".join(found.delta for found in live[at + 1 :] if found.type == "response.output_text.delta")
            assert later[0].type == "response.output_text.delta"
            assert later[0].delta == missed
        else:
            following = [found for found in live[at + 1 :] if found.type != "response.output_text.delta"]
            assert [f for f in later if f.type != "response.output_text.delta"] == following


async def test_response_continues_last_and_forks_others(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    model.say("one")
    first = await openai.responses.create(model="Front", input="1")
    model.say("two")
    second = await openai.responses.create(model="Front", input="2", previous_response_id=first.id)
    model.say("other")
    other = await openai.responses.create(model="Front", input="3", previous_response_id=first.id)
    sessions = {response.id.partition(".")[2] for response in (first, second, other)}
    assert len(sessions) == 2
    said = [message["content"] for message in model.requests[2]["messages"][1:]]
    assert said == ["1", "one", "3"]
    assert other.previous_response_id == first.id


async def test_next_response_answers_caller_function(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.calls([("open_door", {"door": "1"}, "c1"), ("get_weather", {"city": "Rome"}, "c2")])
    first = await openai.responses.create(model="Front", input="Open it.", tools=[WEATHER])
    assert [item.type for item in first.output] == ["function_call", "mcp_call"]
    call, own = first.output
    assert call.type == "function_call"
    assert (call.call_id, call.name) == ("c1", "open_door")
    assert own.type == "mcp_call"
    assert (own.server_label, own.output) == ("Front", "sunny in Rome")
    with pytest.raises(
        BadRequestError, match=r"no tool output found for function call c1 \(open_door\); send it in the input"
    ):
        await openai.responses.create(model="Front", input="Well?", previous_response_id=first.id)
    model.say("It is open.")
    output: Any = {"type": "function_call_output", "call_id": "c1", "output": "open"}
    second = await openai.responses.create(
        model="Front", input=[output], previous_response_id=first.id, tools=[WEATHER]
    )
    assert (second.output_text, second.previous_response_id) == ("It is open.", first.id)
    assert second.id != first.id
    assert await openai.responses.retrieve(first.id) == first
    assert await openai.responses.retrieve(second.id) == second
    items = await openai.responses.input_items.list(second.id)
    assert [item.type for item in items.data] == ["function_call_output"]


async def test_continuing_reads_only_last_turn(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    async def go_on(number: int, **more: Any) -> Any:
        model.calls([("open_door", {"door": "1"}, f"c{number}"), ("get_weather", {"city": "Rome"}, f"own{number}")])
        return await openai.responses.create(model="Front", tools=[WEATHER], **more)

    made = await go_on(0, input="Open it.")
    for number in range(1, 10):
        output: Any = {"type": "function_call_output", "call_id": f"c{number - 1}", "output": "open"}
        with count_calls() as counted:
            made = await go_on(number, input=[output], previous_response_id=made.id)
        assert [item.type for item in made.output] == ["function_call", "mcp_call"]
        # That is put together from the run's first event on.
        assert await openai.responses.retrieve(made.id) == made
    # Six of each turn, of which some may be read twice.
    assert counted[decode_event.__code__] < 20


async def test_what_is_not_stored_is_nowhere(openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer) -> None:
    model.say("hello")
    made = await openai.responses.create(model="Front", input="hi", store=False)
    assert (made.output_text, made.store) == ("hello", False)
    with pytest.raises(NotFoundError):
        await openai.responses.retrieve(made.id)
    assert (await service.get("/v1/sessions")).json()["data"] == []


async def test_models_are_agents(openai: AsyncOpenAI) -> None:
    names = [model.id async for model in openai.models.list()]
    assert names[0] == "Front"
    assert (await openai.models.retrieve(names[1])).id == names[1]
    with pytest.raises(NotFoundError, match="there is no model"):
        await openai.responses.create(model="gpt-4o", input="hi")


async def test_retry_finds_response_without_cancelling(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.call("open_door", {"door": "1"}, id="c1")
    key = {"Idempotency-Key": "k1"}
    first = await openai.responses.create(model="Front", input="Open it.", tools=[WEATHER], extra_headers=key)
    again = await openai.responses.create(model="Front", input="Open it.", tools=[WEATHER], extra_headers=key)
    assert again == first
    model.hang(then="It is open.")
    output: Any = {"type": "function_call_output", "call_id": "c1", "output": "open"}
    second = await openai.responses.create(
        model="Front", input=[output], previous_response_id=first.id, background=True
    )
    await model.wait_for_requests_async(2)
    assert (await openai.responses.cancel(first.id)).status == "completed"
    assert (await openai.responses.retrieve(second.id)).status == "in_progress"
    model.release()
    stream = await openai.responses.retrieve(second.id, stream=True)
    assert [event.type async for event in stream][-1] == "response.completed"


async def test_deleted_session_ends_waiting_responses(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    made = await openai.conversations.create()
    model.hang()
    waiting = asyncio.create_task(openai.responses.create(model="Front", input="hi", conversation=made.id))
    await model.wait_for_requests_async(1)
    gone = await service.delete(f"/v1/sessions/{made.id}?force=true")
    assert gone.status_code == 204
    with pytest.raises(NotFoundError):
        await asyncio.wait_for(waiting, 30)
    model.release()
