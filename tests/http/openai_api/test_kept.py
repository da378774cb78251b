"""What OpenAI's API keeps: files beside the log, people's words encrypted, two commits a response, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI, RateLimitError

from swarmkeep.events.errors import PersonErased
from swarmkeep.http.metrics import ServerLimits
from tests.history.test_redact import dump_database
from tests.http.openai_api.test_automations import DAILY, NEW, Clock, open_scheduler
from tests.http.openai_api.test_automations import URL as AUTOMATIONS
from tests.http.openai_api.test_chat import user
from tests.http.server import RunningServer, scripted, start_server, with_settings
from tests.runs.test_turn_costs import CountingDatabase
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


# People whose sessions are begun by OpenAI's APIs: encrypted as those of `/v1` are, and erased.


CANARY = "canary-7f3a9c"
METADATA = {"customer": "anna"}


@pytest.fixture
async def sealed(ready_url: str, model: ScriptedModel, tmp_path: Path) -> AsyncIterator[RunningServer]:
    given = scripted(ready_url, model, person="customer", person_keys=str(tmp_path / "keys"))
    async with start_server(given) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("responses", {"input": CANARY}),
        ("chat/completions", {"messages": [{"role": "user", "content": CANARY}], "store": True}),
        ("agents/sessions", {"agent_id": "Front", "environment": {"type": "none"}, "input": CANARY}),
    ],
)
async def test_what_a_person_says_is_encrypted_and_erased(
    sealed: RunningServer, model: ScriptedModel, path: str, body: Any
) -> None:
    model.say(CANARY)
    named = {} if path.startswith("agents") else {"model": "Front"}
    answer = await sealed.post(f"/openai/v1/{path}", {**named, **body, "metadata": {**METADATA, "note": CANARY}})
    assert answer.status_code == 200, answer.text
    await model.wait_for_requests_async(1)
    [session] = (await sealed.get("/v1/sessions")).json()["data"]
    assert session["metadata"]["customer"] == "anna"
    assert CANARY not in await dump_database(sealed.engine.store)
    while (await sealed.get(f"/v1/sessions/{session['id']}")).json()["status"] != "idle":
        pass
    erased = await sealed.post("/v1/people/erase", {"person": "anna", "reason": "asked for"})
    assert erased.json() == {"sessions": [session["id"]], "erased": True}
    assert CANARY not in (await sealed.get("/v1/events?limit=200")).text


async def test_automations_are_erased_with_the_person(sealed: RunningServer, model: ScriptedModel) -> None:
    """What they would tell the person, and what they have told, also before they were changed."""
    path = await sealed.session(id="s", metadata=METADATA)
    await sealed.session(id="other", metadata={"customer": "bob"})

    async def make(target: Any) -> str:
        made = await sealed.post(AUTOMATIONS, {**DAILY, "target": target})
        assert made.status_code == 200, made.text
        return str(made.json()["id"])

    def tell(session_id: str, text: str) -> Any:
        return {"type": "existing_session", "session_id": session_id, "instructions": text}

    def begin(customer: str, text: str) -> Any:
        return {**NEW, "input": text, "metadata": {"customer": customer}}

    gone = [await make(tell("s", CANARY)), await make(begin("anna", CANARY))]
    await make(begin("cleo", CANARY))
    kept = [await make(tell("other", "Bob.")), await make(begin("bob", "Bob.")), await make(NEW)]
    changed = await make(tell("s", CANARY))
    await (scheduler := await open_scheduler(sealed, Clock())).stop()
    assert (await sealed.post(f"{AUTOMATIONS}/{changed}/invocations", {})).status_code == 200
    model.say("Well.")
    await scheduler.look()
    assert (await sealed.post(f"{AUTOMATIONS}/{changed}", {"target": tell("other", "Bob.")})).status_code == 200
    while (await sealed.get(path)).json()["status"] != "idle":
        pass
    assert CANARY not in await dump_database(sealed.engine.store)
    for person, sessions in {"anna": ["s"], "cleo": []}.items():
        erased = await sealed.post("/v1/people/erase", {"person": person, "reason": "asked for"})
        assert erased.json() == {"sessions": sessions, "erased": True}
    assert [(await sealed.get(f"{AUTOMATIONS}/{one}")).status_code for one in gone] == [404, 404]
    assert {one["id"] for one in (await sealed.get(AUTOMATIONS)).json()["data"]} == {*kept, changed}
    assert (await sealed.get(f"{AUTOMATIONS}/{changed}/invocations")).json()["data"] == []
    late = await sealed.post(AUTOMATIONS, {**DAILY, "target": tell("s", "Anna.")})
    assert late.status_code == 409, late.text
    assert "person_erased" in late.text


async def test_automation_whose_key_is_lost_keeps_no_others(
    sealed: RunningServer, ready_url: str, model: ScriptedModel, tmp_path: Path
) -> None:
    """Until the key is there again: it may be in a folder that is not there yet."""
    await open_scheduler(sealed, Clock())
    named = {**DAILY, "target": {**NEW, "metadata": {"customer": "anna"}}}
    [lost, other] = [(await sealed.post(AUTOMATIONS, body)).json()["id"] for body in (named, {**DAILY, "target": NEW})]
    assert (await sealed.post(f"{AUTOMATIONS}/{lost}/invocations", {})).status_code == 200
    [file] = (tmp_path / "keys").glob("*.key")
    file.rename(tmp_path / "elsewhere")
    settings = scripted(ready_url, model, person="customer", person_keys=str(tmp_path / "keys"))
    async with start_server(settings) as restarted:
        scheduler = await open_scheduler(restarted, clock := Clock())
        assert (await restarted.get(f"{AUTOMATIONS}/{lost}")).status_code == 404
        assert [one["id"] for one in (await restarted.get(AUTOMATIONS)).json()["data"]] == [other]

        async def list_people(runs: int) -> list[Any]:
            """Of the sessions that there are after two more days."""
            clock.now += timedelta(days=2)
            for _ in range(runs):
                model.say("Well.")
            await scheduler.look()
            sessions = (await restarted.get("/v1/sessions")).json()["data"]
            return sorted(str(one["metadata"].get("customer")) for one in sessions)

        assert await list_people(runs=1) == ["None"]
        (tmp_path / "elsewhere").rename(file)
        # What was asked for, while its time of the schedule is skipped.
        assert await list_people(runs=2) == ["None", "None", "anna"]
        await model.wait_for_requests_async(3)


async def test_invocation_read_before_an_erasure_begins_nothing(sealed: RunningServer) -> None:
    """Else what it is to say would be kept by the key that the person gets next."""
    scheduler = await open_scheduler(sealed, Clock())
    target = {**NEW, "input": CANARY, "metadata": {"customer": "anna"}}
    made = (await sealed.post(AUTOMATIONS, {**DAILY, "target": target})).json()["id"]
    assert (await sealed.post(f"{AUTOMATIONS}/{made}/invocations", {})).status_code == 200
    [invocation] = await sealed.engine.store.list_invocations("default", made)
    assert (await sealed.post("/v1/people/erase", {"person": "anna", "reason": "asked for"})).status_code == 200
    with pytest.raises(PersonErased):
        await scheduler.begin_run(invocation)
    assert (await sealed.get("/v1/sessions")).json()["data"] == []


# Responses that are kept nowhere live as long as somebody waits for them.


ASKED: list[tuple[str, Any]] = [
    ("responses", {"model": "Front", "input": "hi", "store": False}),
    ("chat/completions", {"model": "Front", "messages": [{"role": "user", "content": "hi"}], "store": False}),
]


@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_run_of_leaving_client_cut_off(
    service: RunningServer, model: ScriptedModel, path: str, body: Any
) -> None:
    model.hang()
    waiting = asyncio.create_task(service.post(f"/openai/v1/{path}", body))
    await model.wait_for_requests_async(1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await model.wait_for_disconnects_async(1)
    model.release()


@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_unstored_stream_sends_heartbeats(sqlite_ready: str, model: ScriptedModel, path: str, body: Any) -> None:
    model.hang()
    asked = {**body, "stream": True}
    async with (
        start_server(scripted(sqlite_ready, model), ServerLimits(ping_seconds=0.0)) as service,
        service.client.stream("POST", f"/openai/v1/{path}", json=asked) as answer,
        asyncio.timeout(20),
    ):
        lines = answer.aiter_lines()
        while await anext(lines) != ": ping":
            pass
        model.release()
        rest = [line async for line in lines]
    assert rest[-2:] == ["data: [DONE]", ""]


async def test_active_unstored_runs_count_immediately(sqlite_ready: str, model: ScriptedModel) -> None:
    model.hang()
    settings = scripted(sqlite_ready, model, max_runs_per_tenant=1)
    async with (
        start_server(settings) as service,
        AsyncOpenAI(base_url=f"{service.url}/openai/v1", api_key="none", max_retries=0) as openai,
    ):
        asked = [openai.responses.create(model="Front", input="hi", store=False) for _ in range(3)]
        refused = 0
        for task in asyncio.as_completed(asked):
            try:
                assert (await task).output_text == "released"
            except RateLimitError:
                refused += 1
                if refused == 2:
                    model.release()
        assert refused == 2
        model.say("again")
        assert (await openai.responses.create(model="Front", input="hi", store=False)).output_text == "again"


async def test_stopping_server_grants_time_then_ends(sqlite_ready: str, model: ScriptedModel) -> None:
    model.hang()
    model.hang()
    settings = scripted(sqlite_ready, model, grace_seconds=0.2)
    path, body = ASKED[0]
    async with start_server(settings) as service:
        whole = asyncio.create_task(service.post(f"/openai/v1/{path}", body))
        await model.wait_for_requests_async(1)
        async with service.client.stream("POST", f"/openai/v1/{path}", json={**body, "stream": True}) as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == "event: response.created"
            await model.wait_for_requests_async(2)
            await asyncio.wait_for(service.service.drain(), 20)
            async with asyncio.timeout(20):
                rest = [line async for line in lines]
        assert rest[-2:] == [": the server is shutting down", ""]
        refused = await asyncio.wait_for(whole, 20)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        model.release()


async def test_run_ending_in_grace_time_answered(sqlite_ready: str, model: ScriptedModel) -> None:
    model.hang()
    path, body = ASKED[0]
    async with start_server(scripted(sqlite_ready, model, grace_seconds=20)) as service:
        whole = asyncio.create_task(service.post(f"/openai/v1/{path}", body))
        await model.wait_for_requests_async(1)
        stopping = asyncio.create_task(service.service.drain())
        await service.service.stopping.wait()
        model.release()
        answer = await asyncio.wait_for(whole, 20)
        assert answer.json()["status"] == "completed"
        await asyncio.wait_for(stopping, 20)


# How often something is committed for a response.


# It writes for nothing but what it is asked.
@with_settings(search="off")
async def test_own_session_response_is_two_commits(
    openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel
) -> None:
    store: Any = service.engine.store
    store.database = counting = CountingDatabase(store.database)

    async def ask_and_count(ask: Any, **given: Any) -> Any:
        model.say("Hello.")
        before = len(counting.calls)
        answer = await ask(model="Front", **given)
        # Where it begins, and where it ends.
        assert counting.calls[before:].count("write") == 2
        return answer

    first = await ask_and_count(openai.responses.create, input="Hi.")
    await ask_and_count(openai.responses.create, input="Hi.", extra_headers={"Idempotency-Key": "k"})
    await ask_and_count(openai.responses.create, input="And?", previous_response_id=first.id)
    # There it was gone on from already: this one is in a fork.
    await ask_and_count(openai.responses.create, input="Or?", previous_response_id=first.id)
    said: Any = [user("1"), {"role": "assistant", "content": "one"}, user("2")]
    await ask_and_count(openai.chat.completions.create, messages=said)
    await ask_and_count(openai.chat.completions.create, messages=said, extra_headers={"X-Session-Id": "mine"})
    assert len((await service.get("/v1/sessions")).json()["data"]) == 5
