"""Responses by OpenAI's client: begun, streamed, gone on with, forked; their settings, sizes and summaries."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError
from pydantic import BaseModel

from swarmkeep.events.messages import SHORTENED_HEADING as HEADING
from swarmkeep.http.openapi import get_operation_id
from swarmkeep.openai.document import ROUTES
from swarmkeep.store.reading import decode_event
from tests.http.openai_api.test_conformance import PICTURE, WEATHER, message
from tests.http.server import RunningServer
from tests.http.team import front
from tests.support.calls import count_calls
from tests.support.scripted import USAGE, ScriptedModel

pytestmark = pytest.mark.one_database

DOOR: Any = {
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
    first = await openai.responses.create(model="Front", input="Open it.", tools=[DOOR])
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
    second = await openai.responses.create(model="Front", input=[output], previous_response_id=first.id, tools=[DOOR])
    assert (second.output_text, second.previous_response_id) == ("It is open.", first.id)
    assert second.id != first.id
    assert await openai.responses.retrieve(first.id) == first
    assert await openai.responses.retrieve(second.id) == second
    items = await openai.responses.input_items.list(second.id)
    assert [item.type for item in items.data] == ["function_call_output"]


async def test_continuing_reads_only_last_turn(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    async def go_on(number: int, **more: Any) -> Any:
        model.calls([("open_door", {"door": "1"}, f"c{number}"), ("get_weather", {"city": "Rome"}, f"own{number}")])
        return await openai.responses.create(model="Front", tools=[DOOR], **more)

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
    first = await openai.responses.create(model="Front", input="Open it.", tools=[DOOR], extra_headers=key)
    again = await openai.responses.create(model="Front", input="Open it.", tools=[DOOR], extra_headers=key)
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


# Settings: what is asked of the model, its size, and what the client makes of the answer.


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


# A conversation made shorter, and gone on with.


def say(role: str, text: str) -> Any:
    return {"type": "message", "role": role, "content": text}


async def test_conversation_becomes_user_messages_and_summary(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    model.say("Ann wants a refund for A-17.")
    items = [say("user", "I am Ann."), say("assistant", "Hello Ann."), say("user", "Refund A-17.")]
    made = (await service.post("/openai/v1/responses/compact", {"model": "Front", "input": items})).json()
    assert made["object"] == "response.compaction"
    assert [item["type"] for item in made["output"]] == ["message", "message", "compaction"]
    assert made["output"][0]["content"] == [{"type": "input_text", "text": "I am Ann."}]
    assert made["usage"]["total_tokens"] == USAGE["total_tokens"]
    assert (await service.get("/v1/sessions")).json()["data"] == []
    model.say("It is done.")
    await openai.responses.create(model="Front", input=[*made["output"], say("user", "Well?")])
    told = [message["content"] for message in model.requests[1]["messages"][1:]]
    assert told == ["I am Ann.", "Refund A-17.", f"{HEADING}\n\nAnn wants a refund for A-17.", "Well?"]


async def test_compacting_leaves_stored_conversation_unchanged(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    model.say("Hello Ann.")
    first = await openai.responses.create(model="Front", input="I am Ann.")
    session = f"/v1/sessions/{first.id.partition('.')[2]}"
    before = (await service.get(session)).json()
    model.say("Ann say hello.")
    made = await openai.responses.compact(model="Front", previous_response_id=first.id, input="And now?")
    assert "Hello Ann." in model.requests[1]["messages"][-1]["content"]
    assert [item.type for item in made.output] == ["message", "message", "compaction"]
    assert (await service.get(session)).json() == before


async def test_uncompactable_input_refused(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    with pytest.raises(BadRequestError, match="nothing to make shorter"):
        await openai.responses.compact(model="Front", input=[])
    with pytest.raises(NotFoundError, match="no model"):
        await openai.responses.compact(model="gpt-4o", input="x")
    odd: Any = {"type": "compaction", "encrypted_content": "gAAAAA"}
    with pytest.raises(BadRequestError, match="was not made here"):
        await openai.responses.compact(model="Front", input=[odd])
    model.fail(400, message="no", headers={"x-should-retry": "false"})
    with pytest.raises(APIStatusError) as failed:
        await openai.responses.compact(model="Front", input="x")
    assert failed.value.status_code == 502
    model.say("")
    with pytest.raises(APIStatusError, match="has no text") as failed:
        await openai.responses.compact(model="Front", input="x")
    assert failed.value.status_code == 502


async def test_named_model_writes_summary(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.say("Hello Ann.")
    first = await openai.responses.create(model="Front", input="I am Ann.")
    for name, asked in (("Front", "scripted"), ("Sales / EU ☃", "sales-model")):
        model.say("Ann say hello.")
        await openai.responses.compact(model=name, previous_response_id=first.id)
        assert (model.requests[-1]["model"] == "sales-model") == (asked == "sales-model")


@pytest.mark.parametrize(
    ("field", "value"), [("service_tier", "priority"), ("prompt_cache_options", {"mode": "implicit"}), ("tools", [])]
)
async def test_what_would_change_nothing_is_refused(openai: AsyncOpenAI, field: str, value: object) -> None:
    with pytest.raises(BadRequestError) as refused:
        await openai.responses.compact(model="Front", input="x", extra_body={field: value})
    assert refused.value.param == field


async def test_default_tier_and_cache_hints_accepted(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.say("A summary.")
    usual: Any = {"service_tier": "auto", "prompt_cache_key": "mine", "prompt_cache_retention": "24h"}
    assert (await openai.responses.compact(model="Front", input="x", **usual)).output


async def test_a_model_is_named_or_null(service: RunningServer, model: ScriptedModel) -> None:
    refused = await service.post("/openai/v1/responses/compact", {"input": "x"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
    model.say("A summary.")
    assert (await service.post("/openai/v1/responses/compact", {"model": None, "input": "x"})).status_code == 200


async def test_openai_api_has_own_document(plain: RunningServer) -> None:
    document = (await plain.get("/openai/v1/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    paths = document["paths"]
    assert all(path.startswith("/openai/v1/") for path in paths)
    operations = {operation["operationId"] for path in paths.values() for operation in path.values()}
    assert operations == {get_operation_id(handler) for handler in ROUTES}
    main = (await plain.get("/openapi.json")).json()
    assert not [path for path in main["paths"] if path.startswith("/openai")]
    refs = document["components"]["schemas"]
    assert {"Response", "Conversation", "Error", "CreateResponse"} <= set(refs)
