"""Files and pictures through OpenAI's API: kept beside the log, and whole again wherever input is shown."""

from __future__ import annotations

from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI

from tests.http.server import RunningServer
from tests.support.pictures import (
    encode_content,
    hash_content,
    make_data_url,
    make_inline_file,
    make_inline_picture,
    make_message,
    make_png,
)
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

PICTURE = make_png(3000)
URL = make_data_url(PICTURE)
PARTS: list[Any] = [
    {"type": "input_text", "text": "What is this?"},
    {"type": "input_image", "image_url": URL, "detail": "low"},
    {"type": "input_file", "file_data": make_data_url(b"%PDF-1.7", "application/pdf"), "filename": "a.pdf"},
]
SAID: Any = {"role": "user", "content": PARTS}
SENT = make_message(make_inline_picture(PICTURE, detail="low"), make_inline_file(b"%PDF-1.7"))


def check_shown(content: Any) -> None:
    found = [part.model_dump(exclude_none=True) for part in content]
    assert found == PARTS


async def test_input_items_and_conversations_match_sent(
    openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel
) -> None:
    conversation = await openai.conversations.create()
    model.say("A cat.")
    response = await openai.responses.create(model="Front", input=[SAID], conversation=conversation.id)
    assert model.requests[0]["messages"][-1] == SENT
    events = await service.events(f"/v1/sessions/{conversation.id}")
    assert encode_content(PICTURE)[:100] not in str(events)
    assert hash_content(PICTURE) in str(events)
    [shown] = (await openai.responses.input_items.list(response.id)).data
    check_shown(shown.content)  # type: ignore[union-attr]
    items = (await openai.conversations.items.list(conversation.id, order="asc")).data
    check_shown(items[0].content)  # type: ignore[union-attr]
    one: Any = await openai.conversations.items.retrieve(items[0].id or "", conversation_id=conversation.id)
    check_shown(one.content)
    added: Any = await openai.conversations.items.create(conversation.id, items=[SAID])
    check_shown(added.data[0].content)


async def test_item_reference_brings_its_picture(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    conversation: Any = await openai.conversations.create(items=[SAID])
    [item] = (await openai.conversations.items.list(conversation.id)).data
    model.say("A cat.")
    await openai.responses.create(model="Front", input=[{"type": "item_reference", "id": item.id or ""}])
    assert model.requests[0]["messages"][-1] == SENT


@pytest.mark.parametrize("store", [True, False])
async def test_each_reference_to_a_file_counts(openai: AsyncOpenAI, model: ScriptedModel, store: bool) -> None:
    part: Any = {"type": "input_file", "file_data": make_data_url(b"%PDF-1.7" + bytes(4_000_000), "application/pdf")}
    conversation: Any = await openai.conversations.create(items=[{"role": "user", "content": [part]}])
    [item] = (await openai.conversations.items.list(conversation.id)).data
    named: Any = {"type": "item_reference", "id": item.id or ""}
    model.say("A file.")
    await openai.responses.create(model="Front", input=[named] * 2, store=store)
    assert len(model.raw_requests[0]) > 2 * 5_000_000
    model.say("Too many.")
    await openai.responses.create(model="Front", input=[named] * 40, store=store)
    assert len(model.raw_requests[1]) < 100_000


async def test_each_reference_to_a_text_counts(openai: AsyncOpenAI) -> None:
    conversation: Any = await openai.conversations.create(items=[{"role": "user", "content": "x" * 3_000_000}])
    [item] = (await openai.conversations.items.list(conversation.id)).data
    named: Any = {"type": "item_reference", "id": item.id or ""}
    with pytest.raises(APIStatusError) as refused:
        await openai.responses.create(model="Front", input=[named] * 40)
    assert (refused.value.status_code, refused.value.code) == (413, "too_large")


async def test_unstored_response_continues_from_stored_pictures(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.say("A cat.")
    first = await openai.responses.create(model="Front", input=[SAID])
    model.say("Sure.")
    await openai.responses.create(model="Front", input="Sure?", previous_response_id=first.id, store=False)
    assert model.requests[1]["messages"][1] == SENT
    model.say("A cat.")
    await openai.responses.create(model="Front", input=[SAID], store=False)
    assert model.requests[2]["messages"][-1] == SENT


async def test_resent_chat_picture_kept_once(openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel) -> None:
    said: Any = make_message(make_inline_picture(PICTURE))
    headers = {"X-Session-Id": "chat"}
    model.say("A cat.")
    await openai.chat.completions.create(model="Front", messages=[said], extra_headers=headers)
    model.say("Sure.")
    again: Any = [said, {"role": "assistant", "content": "A cat."}, {"role": "user", "content": "Sure?"}]
    await openai.chat.completions.create(model="Front", messages=again, extra_headers=headers)
    assert [message for message in model.requests[1]["messages"] if message["role"] != "system"] == again
    blob = await service.get(f"/v1/sessions/chat/blobs/{hash_content(PICTURE)}")
    assert blob.content == PICTURE


async def test_bad_content_refused_by_place(service: RunningServer) -> None:
    bad = {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,@"}]}
    for store in (True, False):
        answer = await service.post("/openai/v1/responses", {"model": "Front", "input": [bad], "store": store})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "invalid_request")
        assert error["param"].startswith("input[0].content[0]")
