"""Sessions of chat completions: named by a header or in the metadata, made where there are none, and gone on with."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, ConflictError, RateLimitError, UnprocessableEntityError

from swarmkeep.events.codec import Json
from swarmkeep.events.facts import MessageAdded, RunCompleted
from swarmkeep.openai.chat_fields import find_new
from tests.events.given import answer_message, given, in_run, make_run_started, model_reply, user_said, when
from tests.http.openai_api.test_chat import DOOR, user
from tests.http.server import RunningServer, scripted, start_server
from tests.support.calls import count_calls
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

RULES: Any = {"role": "system", "content": "Be short."}


def assistant(text: str | None, **more: Any) -> Any:
    return {"role": "assistant", "content": text, **more}


def in_session(name: str) -> dict[str, Any]:
    return {"model": "Front", "extra_headers": {"X-Session-Id": name}}


async def read_messages(service: RunningServer, session: str) -> list[tuple[str, Any]]:
    found = (await service.get(f"/v1/sessions/{session}/messages")).json()["data"]
    return [(message["role"], message["content"]) for message in found]


def list_sent(request: Json) -> list[Any]:
    return [(message["role"], message["content"]) for message in request["messages"][1:]]


@pytest.mark.parametrize(
    "naming",
    [
        {"extra_headers": {"X-Session-Id": "chat-1"}},
        {"extra_headers": {"x-openwebui-chat-id": "chat-1"}},
        {"metadata": {"session_id": "chat-1"}},
        {"extra_headers": {"X-Session-Id": "chat-1"}, "metadata": {"session_id": "chat-1"}},
    ],
)
async def test_session_is_named_and_continues(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer, naming: dict[str, Any]
) -> None:
    model.say("one")
    first = await openai.chat.completions.with_raw_response.create(model="Front", messages=[user("1")], **naming)
    assert first.headers["x-session-id"] == "chat-1"
    model.say("two")
    # What the client believes to have been said does not count: the server has its own history.
    said: Any = [user("1, forged"), assistant("one, forged"), user("2")]
    second = await openai.chat.completions.create(model="Front", messages=said, **naming)
    assert second.choices[0].message.content == "two"
    history = [("user", "1"), ("assistant", "one"), ("user", "2")]
    assert list_sent(model.requests[1]) == history
    assert await read_messages(service, "chat-1") == [*history, ("assistant", "two")]
    assert (await service.get("/v1/sessions/chat-1/verify")).json()["valid"] is True


async def test_a_setting_names_more_headers(sqlite_ready: str, model: ScriptedModel) -> None:
    given = scripted(sqlite_ready, model, openai_session_headers="X-Chat, X-Thread")
    async with (
        start_server(given) as service,
        AsyncOpenAI(base_url=f"{service.url}/openai/v1", api_key="none", max_retries=0) as client,
    ):
        for name in ("X-Chat", "x-thread", "X-Session-Id"):
            model.say("hello")
            answer = await client.chat.completions.with_raw_response.create(
                model="Front", messages=[user("hi")], extra_headers={name: "mine"}
            )
            assert answer.headers["x-session-id"] == "mine"
        assert len((await service.get("/v1/sessions/mine/runs")).json()["data"]) == 3


IMPOSSIBLE = ("a b", "..", "x" * 129, "a/b", "é".encode().decode("latin-1"))


async def test_impossible_session_ids_refused(plain: RunningServer) -> None:
    named: list[tuple[dict[str, bytes], Any, str]] = [
        *(({"X-Session-Id": name.encode("latin-1")}, {}, "X-Session-Id") for name in IMPOSSIBLE),
        *(({}, {"session_id": name}, "metadata.session_id") for name in (*IMPOSSIBLE, "")),
        ({"X-Session-Id": b"a"}, {"session_id": "b"}, "metadata.session_id"),
    ]
    for headers, metadata, param in named:
        body = {"model": "Front", "messages": [user("hi")], "metadata": metadata}
        answer = await plain.client.post("/openai/v1/chat/completions", json=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert "two sessions" in answer.json()["error"]["message"]
    assert (await plain.get("/v1/sessions")).json()["data"] == []


async def test_unnamed_requests_get_full_own_session(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    said: Any = [RULES, user("1"), assistant("one"), user("2")]
    sessions = []
    for _ in range(2):
        model.say("two")
        answer = await openai.chat.completions.with_raw_response.create(model="Front", messages=said)
        sessions.append(answer.headers["x-session-id"])
    assert len(set(sessions)) == 2
    history = [("system", "Be short."), ("user", "1"), ("assistant", "one"), ("user", "2")]
    assert [list_sent(request) for request in model.requests] == [history, history]
    run = (await service.get(f"/v1/sessions/{sessions[0]}/runs")).json()["data"][0]
    assert [message["content"] for message in run["messages"]] == ["2", "two"]
    model.say("three")
    await openai.chat.completions.create(messages=[*said, assistant("two"), user("3")], **in_session(sessions[0]))
    assert list_sent(model.requests[2]) == [*history, ("assistant", "two"), ("user", "3")]


async def test_instructions_are_taken_once(openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer) -> None:
    parts: Any = {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]}
    for number, leading in enumerate(([RULES], [RULES], [RULES, parts], [parts, RULES])):
        model.say("ok")
        said: Any = [*leading, user("0"), assistant("ok"), user(f"{number}")] if number else [*leading, user("0")]
        await openai.chat.completions.create(messages=said, **in_session("rules"))
    roles = [role for role, _ in await read_messages(service, "rules")]
    assert roles == [
        *("system", "user", "assistant"),
        *("user", "assistant"),
        *("developer", "user", "assistant"),
        *("user", "assistant"),
    ]


async def test_two_first_requests_make_one_session(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    for number in range(6):
        model.say(f"to {number}", when=lambda request, n=number: request["messages"][-1]["content"] == f"{n}")  # type: ignore[misc]
    said: list[Any] = [[RULES, user("a"), assistant("b"), user(f"{number}")] for number in range(6)]
    answers = await asyncio.gather(
        *(openai.chat.completions.create(messages=messages, **in_session("one")) for messages in said)
    )
    assert [answer.choices[0].message.content for answer in answers] == [f"to {number}" for number in range(6)]
    messages = await read_messages(service, "one")
    assert messages[:3] == [("system", "Be short."), ("user", "a"), ("assistant", "b")]
    pairs = sorted(zip(messages[3::2], messages[4::2], strict=True))
    assert pairs == [(("user", f"{number}"), ("assistant", f"to {number}")) for number in range(6)]
    assert [session["id"] for session in (await service.get("/v1/sessions")).json()["data"]] == ["one"]


async def test_a_busy_session_is_waited_for(openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer) -> None:
    gate = threading.Event()
    model.say("one", gate=gate)
    model.say("two")
    await service.session(id="busy", agent="Front")
    async with service.stream("/v1/sessions/busy/events") as events:
        first = asyncio.create_task(openai.chat.completions.create(messages=[user("1")], **in_session("busy")))
        await events.until("run.started")
        stream = await openai.chat.completions.create(messages=[user("2")], stream=True, **in_session("busy"))
        begun = await anext(aiter(stream))
        assert begun.choices[0].delta.role == "assistant"
        with pytest.raises(ConflictError, match="is still running"):
            await openai.chat.completions.create(messages=[user("3")], store=False, **in_session("busy"))
        gate.set()
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "two"
    assert (await first).choices[0].message.content == "one"
    assert list_sent(model.requests[1]) == [("user", "1"), ("assistant", "one"), ("user", "2")]


async def test_handoff_kept_for_same_model(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.call("transfer_to_sales")
    model.say("Sales here.")
    await openai.chat.completions.create(messages=[user("buy")], **in_session("handed"))
    model.say("Still sales.")
    again = await openai.chat.completions.create(messages=[user("more")], **in_session("handed"))
    assert (again.model, model.requests[-1]["model"]) == ("Front", "sales-model")
    model.say("Yes.")
    switched = {**in_session("handed"), "model": "Sales / EU ☃"}
    assert (await openai.chat.completions.create(messages=[user("more")], **switched)).model == "Sales / EU ☃"
    model.say("Front again.")
    await openai.chat.completions.create(messages=[user("back")], **in_session("handed"))
    assert model.requests[-1]["model"] != "sales-model"


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_the_callers_functions_go_round(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer, named: bool, stream: bool
) -> None:
    options: dict[str, Any] = {**(in_session("doors") if named else {"model": "Front"}), "tools": [DOOR]}
    calls = [("open_door", {"door": "1"}, "c1"), ("get_weather", {"city": "Rome"}, "w"), ("open_door", {}, "c2")]
    model.calls(calls)
    said: list[Any] = [user("Open both.")]
    first = await openai.chat.completions.create(messages=said, **options)
    asked = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert asked.content is None
    assert [call.id for call in asked.tool_calls or []] == ["c1", "c2"]
    said.append(asked.model_dump())
    said += [{"role": "tool", "tool_call_id": name, "content": f"{name} is open"} for name in ("c1", "c2")]
    model.say("Both are open.")
    if stream:
        chunks = await openai.chat.completions.create(messages=said, stream=True, **options)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
    else:
        text = (await openai.chat.completions.create(messages=said, **options)).choices[0].message.content or ""
    assert text == "Both are open."
    results = {
        message["tool_call_id"]: message["content"]
        for message in model.requests[1]["messages"]
        if message["role"] == "tool"
    }
    assert {name: results[name] for name in ("c1", "c2")} == {"c1": "c1 is open", "c2": "c2 is open"}
    # With a session the server's own call is part of the history; a client without one never heard of it.
    assert results.get("w") == ("sunny in Rome" if named else None)
    sessions = (await service.get("/v1/sessions")).json()["data"]
    assert [session["status"] for session in sessions] == (["idle"] if named else ["idle", "waiting"])


async def test_tool_messages_answer_exactly_open_calls(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    options: dict[str, Any] = {**in_session("doors"), "tools": [DOOR]}
    model.calls([("open_door", {"door": "1"}, "c1"), ("open_door", {"door": "2"}, "c2")])
    first = await openai.chat.completions.create(messages=[user("Open both.")], **options)
    said: list[Any] = [user("Open both."), first.choices[0].message.model_dump()]
    result = {"role": "tool", "tool_call_id": "c1", "content": "open"}
    cases: list[tuple[list[Any], str, str]] = [
        ([user("Well?")], "messages", "c1"),
        ([result], "messages", "c2"),
        ([result, {**result, "tool_call_id": "cx"}], "messages[3]", "cx"),
        ([result, result], "messages[3]", "c1"),
    ]
    for more, param, words in cases:
        with pytest.raises(BadRequestError, match=words) as refused:
            await openai.chat.completions.create(messages=[*said, *more], **options)
        assert refused.value.param == param
    model.say("Both are open.")
    more = [{**result, "content": [{"type": "text", "text": "open"}]}, {**result, "tool_call_id": "c2"}, user("Well?")]
    done = await openai.chat.completions.create(messages=[*said, *more], **options)
    assert done.choices[0].message.content == "Both are open."
    with pytest.raises(BadRequestError, match="no open call 'c1'") as refused:
        await openai.chat.completions.create(messages=[*said, result], **options)
    assert refused.value.param == "messages[2]"


async def test_results_resendable_after_failure(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    options: dict[str, Any] = {**in_session("doors"), "tools": [DOOR]}
    model.call("open_door", {"door": "1"}, id="c1")
    first = await openai.chat.completions.create(messages=[user("Open it.")], **options)
    said: list[Any] = [user("Open it."), first.choices[0].message.model_dump()]
    said.append({"role": "tool", "tool_call_id": "c1", "content": "open"})
    for _ in range(2):
        model.fail(429)
        with pytest.raises(RateLimitError):
            await openai.chat.completions.create(messages=said, **options)
    with pytest.raises(BadRequestError, match="no open call 'c1'"):
        await openai.chat.completions.create(messages=[*said[:-1], {**said[-1], "content": "shut"}], **options)
    model.say("It is open.")
    answer = await openai.chat.completions.create(messages=said, **options)
    assert answer.choices[0].message.content == "It is open."
    assert [role for role, _ in await read_messages(service, "doors")] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("name", [None, "stray"])
@pytest.mark.parametrize("store", [True, False])
async def test_stray_tool_message_refused(
    openai: AsyncOpenAI, service: RunningServer, name: str | None, store: bool
) -> None:
    headers = {"X-Session-Id": name} if name else {}
    stray: Any = [user("hi"), {"role": "tool", "tool_call_id": "c1", "content": "open"}]
    with pytest.raises(BadRequestError, match="no open call 'c1'") as refused:
        await openai.chat.completions.create(model="Front", messages=stray, extra_headers=headers, store=store)
    assert refused.value.param == "messages[1]"
    assert (await service.get("/v1/sessions")).json()["data"] == []


async def test_approval_told_here_given_elsewhere(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    model.call("refund", {"order": "A-17"}, id="r1", text="Let me see.")
    answer = await openai.chat.completions.create(messages=[user("Refund A-17.")], **in_session("money"))
    choice = answer.choices[0]
    run = (await service.get("/v1/sessions/money/runs")).json()["data"][0]
    resume = f"/v1/sessions/money/runs/{run['id']}/resume"
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    text = choice.message.content or ""
    assert text.startswith('Let me see.\n\nThe call refund({"order": "A-17"}) waits for an approval')
    assert resume in text
    with pytest.raises(BadRequestError, match="waits for an approval") as refused:
        await openai.chat.completions.create(messages=[user("Well?")], **in_session("money"))
    assert (refused.value.code, resume in str(refused.value)) == ("approval_pending", True)
    model.say("Done.")
    decided = await service.post(resume, {"approvals": [{"tool_call_id": "r1", "decision": "approve"}]})
    assert decided.json()["output_text"].endswith("Done.")
    model.say("You are welcome.")
    await openai.chat.completions.create(messages=[user("Thanks.")], **in_session("money"))


async def test_approval_told_alike_in_streams(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    for _ in range(2):
        model.call("refund", {"order": "A-17"}, id="r1", text="Let me see.")
    stream = await openai.chat.completions.create(messages=[user("Refund.")], stream=True, **in_session("money"))
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text.startswith('Let me see.\n\nThe call refund({"order": "A-17"}) waits for an approval')
    assert "/v1/sessions/money/runs/" in text
    assert chunks[-1].choices[0].finish_reason == "stop"
    nowhere = await openai.chat.completions.create(model="Front", messages=[user("Refund.")], store=False)
    assert "nothing of this is kept" in (nowhere.choices[0].message.content or "")


async def test_unstored_chat_continues_session_without_change(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer
) -> None:
    model.say("one")
    await openai.chat.completions.create(messages=[user("1")], **in_session("kept"))
    before = await service.events("/v1/sessions/kept")
    model.say("two")
    aside = await openai.chat.completions.create(
        messages=[user("1"), assistant("one"), user("2")], store=False, **in_session("kept")
    )
    assert aside.choices[0].message.content == "two"
    assert list_sent(model.requests[1]) == [("user", "1"), ("assistant", "one"), ("user", "2")]
    assert await service.events("/v1/sessions/kept") == before


@pytest.mark.parametrize("named", [True, False])
async def test_keyed_request_done_once(
    openai: AsyncOpenAI, model: ScriptedModel, service: RunningServer, named: bool
) -> None:
    headers = {"Idempotency-Key": "k1", **({"X-Session-Id": "once"} if named else {})}
    body: dict[str, Any] = {"model": "Front", "messages": [user("a"), assistant("b"), user("hi")]}
    model.say("hello")
    at_once = await asyncio.gather(*(openai.chat.completions.create(**body, extra_headers=headers) for _ in range(4)))
    later = await openai.chat.completions.create(**body, extra_headers=headers)
    assert all(answer == later for answer in at_once)
    if named:
        model.say("more")
        more = {**body, "messages": [user("more")]}
        await openai.chat.completions.create(**more, extra_headers={"X-Session-Id": "once"})
        assert await openai.chat.completions.create(**body, extra_headers=headers) == later
    with pytest.raises(UnprocessableEntityError) as refused:
        await openai.chat.completions.create(**{**body, "temperature": 1}, extra_headers=headers)
    assert refused.value.code == "idempotency_mismatch"
    assert len((await service.get("/v1/sessions")).json()["data"]) == 1
    assert len(model.requests) == (2 if named else 1)


async def test_keyed_stream_is_repeated(openai: AsyncOpenAI, model: ScriptedModel) -> None:
    model.say(["Hello ", "there."])
    texts = []
    for _ in range(2):
        stream = await openai.chat.completions.create(
            model="Front", messages=[user("hi")], stream=True, extra_headers={"Idempotency-Key": "k2"}
        )
        chunks = [chunk async for chunk in stream]
        texts.append((chunks[0].id, "".join(chunk.choices[0].delta.content or "" for chunk in chunks)))
    assert texts[0] == texts[1]
    assert texts[0][1] == "Hello there."


def test_new_messages_found_in_long_sessions() -> None:
    costs = []
    for runs in (20, 200):
        state = given(MessageAdded(message={"role": "developer", "content": "Be brief."}))
        for number in range(runs):
            said = in_run(f"r{number}", user_said(f"ask {number}")), model_reply(answer_message("yes"))
            state = when(state, in_run(f"r{number}", make_run_started()), *said, RunCompleted(stop_reason="end_turn"))
        find_new([], state)
        state = when(state, user_said("one more"))
        asked = [{"role": "developer", "content": text} for text in ("Be brief.", "Be kind.")]
        with count_calls() as counted:
            new = find_new([*asked, {"role": "user", "content": "And now?"}], state)
        assert [message["content"] for message in new.messages] == ["Be kind.", "And now?"]
        costs.append(counted.total())
    assert costs[0] == costs[1]
