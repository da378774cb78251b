"""POST responses/compact: a conversation made shorter, and gone on with."""

from __future__ import annotations

from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError

from swarmkeep.events.messages import SHORTENED_HEADING as HEADING
from tests.http.server import RunningServer
from tests.support.scripted import USAGE, ScriptedModel

pytestmark = pytest.mark.one_database


def said(role: str, text: str) -> Any:
    return {"type": "message", "role": role, "content": text}


async def test_conversation_becomes_user_messages_and_summary(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    model.say("Ann wants a refund for A-17.")
    items = [said("user", "I am Ann."), said("assistant", "Hello Ann."), said("user", "Refund A-17.")]
    made = (await service.post("/openai/v1/responses/compact", {"model": "Front", "input": items})).json()
    assert made["object"] == "response.compaction"
    assert [item["type"] for item in made["output"]] == ["message", "message", "compaction"]
    assert made["output"][0]["content"] == [{"type": "input_text", "text": "I am Ann."}]
    assert made["usage"]["total_tokens"] == USAGE["total_tokens"]
    assert (await service.get("/v1/sessions")).json()["data"] == []
    model.say("It is done.")
    await openai.responses.create(model="Front", input=[*made["output"], said("user", "Well?")])
    told = [message["content"] for message in model.requests[1]["messages"][1:]]
    assert told == ["I am Ann.", "Refund A-17.", f"{HEADING}\n\nAnn wants a refund for A-17.", "Well?"]


async def test_compacting_leaves_stored_conversation_unchanged(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    model.say("Hello Ann.")
    first = await openai.responses.create(model="Front", input="I am Ann.")
    session = f"/v1/sessions/{first.id.partition('.')[2]}"
    before = (await service.get(session)).json()
    model.say("Ann said hello.")
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
        model.say("Ann said hello.")
        await openai.responses.compact(model=name, previous_response_id=first.id)
        assert (model.requests[-1]["model"] == "sales-model") == (asked == "sales-model")


@pytest.mark.parametrize(
    ("field", "value"),
    [("service_tier", "priority"), ("prompt_cache_options", {"mode": "implicit"}), ("tools", [])],
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
