"""Responses when servers are killed, and when many ask for the same thing at once: nothing is lost, nothing doubled."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest
from openai import APIConnectionError, AsyncOpenAI, OpenAI, UnprocessableEntityError

from tests.chaos.cluster import ServerCluster
from tests.chaos.plans import call_step, make_plan, say_step
from tests.http.server import RunningServer
from tests.support.processes import ServerProcess
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

Json = dict[str, Any]
MANY = 16


def connect(server: ServerProcess) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/openai/v1", api_key="none", max_retries=0, timeout=60)


def read_log(client: OpenAI, response_id: str, after: int | None = None) -> list[Any]:
    """The events of a response's stream, up to its end."""
    place = {} if after is None else {"starting_after": after}
    with client.responses.retrieve(response_id, stream=True, **place) as stream:
        return list(stream)


def join_deltas(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


# Servers that are killed


@pytest.mark.long
def test_stream_continues_from_other_server(cluster: ServerCluster) -> None:
    plan = make_plan(call_step(("put", {"what": "it"})), say_step("One word, and another, and the last.", pause="gate"))
    first, second = cluster.server(), cluster.server()
    with connect(first) as client, connect(second) as other:
        seen: list[Any] = []
        for event in client.responses.create(model="Clerk", input=plan, stream=True, background=True):
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
        response_id = seen[0].response.id
        first.kill()
        rest = read_log(other, response_id, seen[-1].sequence_number)
        assert rest[-1].type == "response.completed"
        assert join_deltas(seen + rest) == "One word, and another, and the last."
        numbers = [event.sequence_number for event in seen + rest]
        assert numbers == sorted(set(numbers))
        made = other.responses.retrieve(response_id)
        assert made == rest[-1].response
        assert [item.type for item in made.output] == ["mcp_call", "message"]
        first.start()
        # Every server tells it alike, from the beginning and from any number on.
        whole = read_log(other, response_id)
        assert read_log(client, response_id) == whole
        for event in whole:
            later = [found for found in whole if found.sequence_number > event.sequence_number]
            assert read_log(client, response_id, event.sequence_number) == later
    assert cluster.effects.count("end").total() == 1
    cluster.read_checked_log(response_id.partition(".")[2])


LONG = "Onceuponatimetherewasawordthathadnoend and so on."
AGAIN = ("No.", "", "Twice upon a time, there were two words without an end, and no more of it.")


@pytest.mark.long
def test_reader_sees_no_mixed_server_output(cluster: ServerCluster) -> None:
    first, second = cluster.server(), cluster.server()
    with connect(first) as client, connect(second) as other, ExitStack() as readers:
        # Of all of them one death is enough.
        cut = [read_until_cut(client, number, again) for number, again in enumerate(AGAIN)]
        streams = [readers.enter_context(other.responses.retrieve(made, stream=True)) for made, _ in cut]
        first.kill()
        lives = [list(stream) for stream in streams]
        for again, (response_id, known), live in zip(AGAIN, cut, lives, strict=True):
            check_told(other, again, response_id, known, live)


def read_until_cut(client: OpenAI, number: int, again: str) -> tuple[str, int]:
    """A response that stands still after its first word, and what was seen of it last."""
    plan = make_plan(
        call_step(("put", {"what": f"it {number}"}), say=LONG, pause=f"gate {number}", again=again),
        call_step(("put", {"what": f"more {number}"})),
        say_step("The end."),
    )
    seen: list[Any] = []
    for event in client.responses.create(model="Clerk", input=plan, stream=True, background=True):
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    assert seen[-1].sequence_number > len(LONG.split()[0])
    return seen[0].response.id, seen[-1].sequence_number


def check_told(other: OpenAI, again: str, response_id: str, known: int, live: list[Any]) -> None:
    ended, *rest = read_log(other, response_id, known)
    whole = read_log(other, response_id)
    # Who was there all along, and who comes later, are told the same.
    assert [(e.type, e.sequence_number) for e in live if e.type != "response.output_text.delta"] == [
        (e.type, e.sequence_number) for e in whole if e.type != "response.output_text.delta"
    ]
    # Who was shown what came to nothing is told that it did, and then all that came after it.
    assert (ended.type, ended.item.status, ended.item.type) == ("response.output_item.done", "incomplete", "message")
    assert [leave_out_place(event) for event in rest] == [leave_out_place(event) for event in whole[2:]]
    done = [event.item for event in rest if event.type == "response.output_item.done"]
    assert done == rest[-1].response.output
    assert done == other.responses.retrieve(response_id).output
    said = [item.content[0].text for item in done if item.type == "message"]
    assert said == [text for text in (again, "The end.") if text]
    assert join_deltas(rest) == again + "The end."
    for told in (whole, [ended, *rest]):
        for event in told:
            later = [found for found in told if found.sequence_number > event.sequence_number]
            assert read_log(other, response_id, event.sequence_number) == later


def leave_out_place(event: Any) -> Json:
    """An event without where it stands, among the events and among the items."""
    found: Json = event.model_dump(exclude={"sequence_number", "output_index"})
    return found


@pytest.mark.long
def test_idempotency_key_survives_restart(cluster: ServerCluster) -> None:
    server = cluster.server()

    def make_body(stream: bool) -> Json:
        plan = make_plan(call_step(("put", {"what": f"it {stream}"})), say_step("Done."))
        key = {"Idempotency-Key": f"once {stream}"}
        return {"model": "Clerk", "input": plan, "stream": stream, "extra_headers": key}

    def ask(client: OpenAI, stream: bool) -> Any:
        answer = client.responses.create(**make_body(stream))
        return list(answer)[-1].response if stream else answer

    with connect(server) as client:
        made = {stream: ask(client, stream) for stream in (False, True)}
        server.kill()
        server.start()
        for stream, first in made.items():
            assert ask(client, stream) == first
            after = client.responses.create(model="Clerk", input="And?", previous_response_id=first.id)
            assert after.status == "completed"
            # The session went on since.
            assert ask(client, stream) == first
            with pytest.raises(UnprocessableEntityError):
                client.responses.create(**{**make_body(stream), "input": "Something else."})
    assert cluster.effects.count("end").total() == 2


@pytest.mark.long
@pytest.mark.parametrize("beginning", ["session.created", "session.forked"])
def test_no_session_without_its_run(cluster: ServerCluster, beginning: str) -> None:
    armed = cluster.server(kill_at=beginning)
    given: Json = {"model": "Clerk", "input": make_plan(say_step("Done."))}
    with connect(cluster.server()) as client:
        before: set[Any] = set()
        if beginning == "session.forked":
            first = client.responses.create(model="Clerk", input="Hi.")
            client.responses.create(model="Clerk", input="And?", previous_response_id=first.id)
            given["previous_response_id"] = first.id
            before = {name for (name,) in cluster.sql("SELECT id FROM sessions")}
        with connect(armed) as doomed, pytest.raises(APIConnectionError):
            doomed.responses.create(**given, extra_headers={"Idempotency-Key": "once"})
        ((made,),) = [row for row in cluster.sql("SELECT id FROM sessions") if row[0] not in before]
        assert cluster.read_checked_log(made, at_rest=False).types[-3:] == [beginning, "run.started", "message.added"]
        answer = client.responses.create(**given, extra_headers={"Idempotency-Key": "once"})
        assert (answer.status, answer.output_text) == ("completed", "Done.")
        assert answer.id.endswith(made)
        cluster.read_checked_log(made)


# Many at once


@pytest.mark.long
async def test_many_requests_on_conversation_all_answered(
    openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel
) -> None:
    session = await service.session(id="conv_busy")
    for number in range(MANY):
        model.say(f"answer {number}")

    async def ask(number: int) -> Any:
        return await openai.responses.create(model="Front", input=f"question {number}", conversation="conv_busy")

    made = await asyncio.gather(*map(ask, range(MANY)))
    assert {found.status for found in made} == {"completed"}
    assert len({found.id for found in made}) == MANY
    assert sorted(found.output_text for found in made) == sorted(f"answer {number}" for number in range(MANY))
    messages = (await service.get(f"{session}/messages", params={"limit": 200})).json()["data"]
    said = [entry["content"] for entry in messages]
    assert Counter(said) == Counter(f"{what} {n}" for n in range(MANY) for what in ("question", "answer"))
    for question, answer in zip(said[::2], said[1::2], strict=True):
        assert question.startswith("question")
        assert answer.startswith("answer")


async def test_fork_replanned_after_source_redaction(
    openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("one", "two", "three"):
        model.say(text)
    first = await openai.responses.create(model="Front", input="secret")
    await openai.responses.create(model="Front", input="2", previous_response_id=first.id)
    sessions, plan_fork = service.engine.sessions, service.engine.sessions.plan_fork
    session = first.id.partition(".")[2]

    async def plan_and_redact(*given: Any, **options: Any) -> Any:
        plan = await plan_fork(*given, **options)
        monkeypatch.undo()
        await service.post(f"/v1/sessions/{session}/redact", {"seqs": [3], "reason": "asked for"})
        return plan

    monkeypatch.setattr(sessions, "plan_fork", plan_and_redact)
    made = await openai.responses.create(model="Front", input="3", previous_response_id=first.id)
    assert made.output_text == "three"
    fork = made.id.partition(".")[2]
    assert fork != session
    assert [said["content"] for said in model.requests[-1]["messages"][1:]] == ["[redacted]", "one", "3"]
    assert (await service.get(f"/v1/sessions/{fork}/verify")).json()["valid"] is True


async def test_session_creation_key_begins_a_response(
    openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel
) -> None:
    key = {"Idempotency-Key": "k"}
    assert (await service.post("/v1/sessions", {}, headers=key)).status_code == 201
    model.say("Hello.")
    made = [await openai.responses.create(model="Front", input="Hi.", extra_headers=key) for _ in range(2)]
    assert made[0] == made[1]


@pytest.mark.long
async def test_concurrent_continuations_fork_except_one(
    openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel
) -> None:
    model.say("first")
    first = await openai.responses.create(model="Front", input="0")
    for _ in range(MANY):
        model.say("next")

    async def ask(number: int) -> Any:
        return await openai.responses.create(model="Front", input=f"{number}", previous_response_id=first.id)

    made = await asyncio.gather(*map(ask, range(1, MANY + 1)))
    assert {found.status for found in made} == {"completed"}
    sessions = Counter(found.id.partition(".")[2] for found in made)
    assert len(sessions) == MANY
    assert sessions[first.id.partition(".")[2]] == 1
    asked = [[said["content"] for said in request["messages"][1:]] for request in model.requests[1:]]
    assert sorted(asked) == sorted(["0", "first", f"{number}"] for number in range(1, MANY + 1))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("where", ["nowhere", "conversation", "previous"])
async def test_concurrent_same_key_makes_one_response(
    openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel, stream: bool, where: str
) -> None:
    body: Json = {"model": "Front", "input": "Once.", "stream": stream, "extra_headers": {"Idempotency-Key": "k"}}
    if where == "conversation":
        await service.session(id="conv_one")
        body["conversation"] = "conv_one"
    if where == "previous":
        model.say("before")
        body["previous_response_id"] = (await openai.responses.create(model="Front", input="Before.")).id
    model.say("once")

    async def ask() -> Any:
        answer = await openai.responses.create(**body)
        return [event async for event in answer][-1].response if stream else answer

    made = await asyncio.gather(*(ask() for _ in range(8)))
    assert all(found == made[0] for found in made)
    assert made[0].output_text == "once"
    assert len((await service.get("/v1/sessions")).json()["data"]) == 1


# In the background


async def test_background_response_is_cancelled(
    openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel
) -> None:
    model.hang("It is ", then="never heard")
    stream = aiter(await openai.responses.create(model="Front", input="Tell me.", background=True, stream=True))
    events = [await anext(stream)]
    while events[-1].type != "response.output_text.delta":
        events.append(await anext(stream))
    assert events[0].type == "response.created"
    made = events[0].response
    assert made.background is True
    cancelled = await openai.responses.cancel(made.id)
    assert cancelled.status == "cancelled"
    assert cancelled.output_text == "It is "
    last = [event async for event in stream][-1]
    assert last.type == "response.incomplete"
    assert last.response.status == "cancelled"
    assert await openai.responses.retrieve(made.id) == last.response
    assert await openai.responses.cancel(made.id) == last.response


async def test_waiting_response_is_queued(openai: AsyncOpenAI, service: RunningServer, model: ScriptedModel) -> None:
    await service.session(id="conv_one")
    model.hang(then="first")
    model.say("second")
    first = await openai.responses.create(model="Front", input="1", conversation="conv_one", background=True)
    await model.wait_for_requests_async(1)
    second = await openai.responses.create(model="Front", input="2", conversation="conv_one", background=True)
    assert second.status == "queued"
    stream = await openai.responses.retrieve(second.id, stream=True)
    model.release()
    events = [event async for event in stream]
    types = [event.type for event in events]
    assert types[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == "second"
    assert (await openai.responses.retrieve(first.id)).output_text == "first"
