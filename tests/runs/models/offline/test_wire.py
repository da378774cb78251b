"""The offline model on the wire: answers, streams, their cost, and the words with which it refuses."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI, OpenAI

from swarmkeep.events.codec import Json
from swarmkeep.models.offline.server import (
    OFFLINE_MODEL,
    OfflineTransport,
    find_message_problems,
    find_request_problems,
    make_sync_offline_client,
)
from tests.runs.models.offline.tools import WEATHER, T, allow, find_call, make_tool


def test_responses_name_model_and_usage(client: OpenAI) -> None:
    completion = client.chat.completions.create(
        model="gpt-4o",
        messages=[{"role": "system", "content": "one two"}, {"role": "user", "content": "three four five"}],
    )
    assert completion.model == OFFLINE_MODEL
    assert "offline" in str(completion.system_fingerprint)
    assert completion.usage.prompt_tokens == 5
    assert completion.usage.completion_tokens == len(str(completion.choices[0].message.content).split(" "))
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens


def test_stream_equals_whole_answer(client: OpenAI) -> None:
    ask: Json = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hello you"}], "tools": [WEATHER]}
    whole = client.chat.completions.create(**ask)
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert len(chunks) > 10
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


async def test_calls_stream_in_pieces(async_client: AsyncOpenAI) -> None:
    ask: Json = {"messages": [{"role": "user", "content": "weather in San Francisco tomorrow"}], "tools": [WEATHER]}
    fragments = []
    reasons = []
    async for chunk in await async_client.chat.completions.create(model="gpt-4o", **ask, stream=True):
        assert chunk.usage is None
        fragments += chunk.choices[0].delta.tool_calls or []
        reasons.append(chunk.choices[0].finish_reason)
    assert reasons[-1] == "tool_calls"
    assert len(fragments) > 2
    assert (fragments[0].index, fragments[0].function.name) == (0, "get_weather")
    arguments = "".join(str(piece.function.arguments) for piece in fragments if piece.function)
    assert json.loads(arguments) == {"location": "San Francisco", "time": "tomorrow"}


async def test_the_asynchronous_client_answers_alike(async_client: AsyncOpenAI, client: OpenAI) -> None:
    ask: Json = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}], "tools": [WEATHER]}
    answers = [await async_client.chat.completions.create(**ask), client.chat.completions.create(**ask)]
    assert answers[0].choices[0].message == answers[1].choices[0].message
    assert [model.id for model in (await async_client.models.list()).data] == [OFFLINE_MODEL]


def test_the_raw_stream_ends_with_done() -> None:
    with httpx2.Client(transport=OfflineTransport(), base_url="http://x") as http:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = [line for line in response.iter_lines() if line]
    assert response.headers["content-type"] == "text/event-stream"
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith("data: ") for line in lines)


def test_ids_are_unique_and_reproducible() -> None:
    def ids() -> list[tuple[str, str]]:
        with make_sync_offline_client() as client:
            ask: Json = {"messages": [{"role": "user", "content": "weather in Rome"}], "tools": [WEATHER]}
            completions = [client.chat.completions.create(model="gpt-4o", **ask) for _ in range(3)]
        return [(one.id, (one.choices[0].message.tool_calls or [])[0].id) for one in completions]

    first = ids()
    assert first == ids()
    assert len({completion for completion, _ in first}) == len({call for _, call in first}) == 3
    assert all(len(call) <= 40 for _, call in first)


def test_chunk_delay_is_read_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    assert OfflineTransport().delay == 0
    monkeypatch.setenv("SWARMKEEP_OFFLINE_DELAY", "0.001")
    assert OfflineTransport().delay == 0.001
    assert OfflineTransport(delay=0).delay == 0
    with make_sync_offline_client() as client:
        ask: Json = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        started = time.perf_counter()
        chunks = len(list(client.chat.completions.create(**ask, stream=True)))
        assert time.perf_counter() - started > 0.001 * chunks


@pytest.mark.parametrize("delay", ["soon", "-1", "nan", "inf"])
def test_a_senseless_delay_is_refused(monkeypatch: pytest.MonkeyPatch, delay: str) -> None:
    monkeypatch.setenv("SWARMKEEP_OFFLINE_DELAY", delay)
    with pytest.raises(ValueError, match="SWARMKEEP_OFFLINE_DELAY"):
        OfflineTransport()


def test_a_long_history_costs_little() -> None:
    def seconds(rounds: int) -> float:
        turn = [{"role": "user", "content": "and now?"}, {"role": "assistant", "content": "Nothing has changed."}]
        body = {"model": "m", "messages": [*turn * rounds, {"role": "user", "content": "weather in Rome"}]}
        request = httpx2.Request("POST", "http://x/v1/chat/completions", json={**body, "tools": [WEATHER]})
        request.read()
        transport = OfflineTransport()
        taken = []
        for _ in range(5):
            started = time.process_time()
            assert transport.handle_request(request).status_code == 200
            taken.append(time.process_time() - started)
        return min(taken)

    assert seconds(2500) < 0.1


def test_schema_reference_expansion_is_bounded(client: OpenAI) -> None:
    def make_object(name: str, inner: Json) -> Json:
        names = [f"{name}{number}" for number in range(20)]
        return {"type": "object", "properties": dict.fromkeys(names, inner), "required": names}

    within = {"$defs": {"y": make_object("y", {"type": "string"}), "x": make_object("x", {"$ref": "#/$defs/y"})}}
    parameters = {**make_object("a", {"$ref": "#/$defs/x"}), **within}
    found = find_call(
        client,
        [{"type": "function", "function": {"name": "refund", "parameters": parameters}}],
        "refund it",
        tool_choice="required",
    )
    assert found is not None
    assert json.dumps(found[1]).count(":") <= 100


class HeldThreads(ThreadPoolExecutor):
    """Of a loop: what is given to them waits until it may go on. `asked` is done once there is something."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.get_running_loop().create_future()
        self.go_on = threading.Event()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        def go_on() -> T:
            self.go_on.wait(60)
            return fn(*args, **kwargs)

        if not self.asked.done():
            self.asked.set_result(None)
        return super().submit(go_on)


async def test_large_request_does_not_block_others(async_client: AsyncOpenAI) -> None:
    wanted = {f"field_{number}": "string" for number in range(100)}
    tools = [make_tool("refund_order", "", " ".join(wanted), **wanted)]
    said = [{"role": "user", "content": "please refund the order " * 160}] * 9
    hello = [{"role": "user", "content": "hi"}]
    # The client itself asks another thread once, for the platform.
    await async_client.chat.completions.create(model="small", messages=hello)
    threads = HeldThreads()
    asyncio.get_running_loop().set_default_executor(threads)
    asking = asyncio.create_task(async_client.chat.completions.create(model="large", messages=said, tools=tools))
    try:
        await asyncio.wait({asking, threads.asked}, return_when=asyncio.FIRST_COMPLETED)
        await async_client.chat.completions.create(model="small", messages=hello)
        assert not asking.done()
    finally:
        threads.go_on.set()
    assert (await asking).choices


# Requests that no server would take, and the words with which the offline model refuses them.


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/chat/completions", 405), ("POST", "/v1/models", 405), ("POST", "/v1/embeddings", 404)],
)
def test_other_requests_are_refused(method: str, path: str, status: int) -> None:
    with httpx2.Client(transport=OfflineTransport(), base_url="http://x") as http:
        response = http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"[" * 20_000, b'{"model": "m"}', b'{"messages": "\\ud800"}'])
def test_senseless_body_is_a_bad_request(body: bytes) -> None:
    with httpx2.Client(transport=OfflineTransport(), base_url="http://x") as http:
        assert http.post("/v1/chat/completions", content=body).status_code == 400


def test_invalid_conversation_is_a_bad_request(client: OpenAI) -> None:
    wrong: Any = [{"role": "user", "content": "hi", "sender": "Bob"}]
    with pytest.raises(openai.BadRequestError, match="unknown key 'sender'") as refused:
        client.chat.completions.create(model="m", messages=wrong)
    assert refused.value.param == "messages"


def make_call(id: object = "call_1", name: object = "look", arguments: object = "{}") -> Json:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def make_asking(*calls: object, **more: object) -> Json:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def make_result(id: object = "call_1", content: object = "seen") -> Json:
    return {"role": "tool", "tool_call_id": id, "content": content}


KEYS = [*make_asking(), *make_result(), *make_call(), *make_call()["function"], "refusal", "text", "description"]
USER: Json = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [{"role": "system", "content": "Be kind."}, {"role": "developer", "content": "Be brief."}, USER],
        [{"role": "user", "name": "Ann", "content": [{"type": "text", "text": "hi"}]}],
        [USER, {"role": "assistant", "content": ""}],
        [USER, {"role": "assistant", "content": None, "refusal": "No."}],
        [USER, make_asking(make_call()), make_result(), USER],
        [
            USER,
            make_asking(make_call("a"), make_call("b")),
            make_result("b"),
            make_result("a"),
            make_asking(make_call("a")),
            make_result("a", ""),
        ],
        [USER, {"role": "assistant", "tool_calls": [make_call(arguments="{broken")]}, make_result()],
        [USER, make_asking(make_call()), make_result(content=[{"type": "text", "text": "seen"}])],
    ],
)
def test_valid_messages_have_no_problems(messages: list[Json]) -> None:
    assert find_message_problems(messages) == []


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "at least one"),
        ([USER, 5], r"messages\[1\]: must be an object"),
        ([{"role": "robot", "content": "hi"}], "'robot' is not one of"),
        ([{"role": ["user"], "content": "hi"}], "is not one of"),
        ([{"content": "hi"}], "None is not one of"),
        ([{"role": "user"}], "content: must be a string, not absent"),
        ([{"role": "user", "content": None}], "content: must be a string, not null"),
        ([{"role": "user", "content": 5}], "content: must be a string or a list of parts"),
        ([{"role": "user", "content": []}], "must not be empty"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].text: must be a string"),
        ([{"role": "system", "content": [{"type": "image_url", "image_url": {}}]}], "must be a part of type text"),
        ([{"role": "user", "content": "hi", "name": "Ann Lee"}], "name: must be"),
        ([{"role": "user", "content": "hi", "sender": "Ann"}], "unknown key 'sender'"),
        ([USER, {"role": "assistant", "content": None}], "needs content or tool_calls"),
        ([USER, {"role": "assistant", "content": "hi", "sender": "Bot"}], "unknown key 'sender'"),
        ([USER, {"role": "assistant", "content": "hi", "refusal": 1}], "refusal: must be a string or null"),
        ([USER, {"role": "assistant", "content": "hi", "tool_calls": []}], "at least one call"),
        ([USER, {"role": "assistant", "content": "hi", "tool_calls": None}], "at least one call"),
        ([USER, make_asking(make_call())], "'call_1' is not followed by a tool message"),
        ([USER, make_asking(make_call()), USER], "'call_1' is not followed by a tool message"),
        ([USER, make_asking(make_call()), USER, make_result()], "answers no call"),
        ([USER, make_asking(make_call("a"), make_call("b")), make_result("a"), USER], "'b' is not followed"),
        ([USER, make_asking(make_call()), make_result(), make_result()], "a second tool message"),
        ([USER, make_result()], "answers no call"),
        ([USER, make_asking(make_call()), make_result(), USER, make_result()], "answers no call"),
        ([USER, make_asking(make_call()), make_result(5)], "tool_call_id: must be a non-empty string"),
        ([USER, make_asking(make_call()), {**make_result(), "tool_name": "look"}], "unknown key 'tool_name'"),
        ([USER, make_asking(make_call()), make_result(content=None)], "content: must be a string, not null"),
        ([USER, make_asking(make_call("a"), make_call("a")), make_result("a")], "used twice"),
        ([USER, make_asking(make_call(id=""))], "id: must be a non-empty string"),
        ([USER, make_asking(make_call(name="look up")), make_result()], "name: must be 1 to 64"),
        ([USER, make_asking(make_call(name="")), make_result()], "name: must be 1 to 64"),
        ([USER, make_asking(make_call(arguments={})), make_result()], "arguments: must be a string"),
        ([USER, make_asking({**make_call(), "index": 0}), make_result()], "exactly the keys id, type and function"),
        ([USER, make_asking({**make_call(), "type": "code"}), make_result()], "type: must be 'function'"),
        ([USER, make_asking({**make_call(), "function": None}), make_result()], "function: must be an object"),
        ([USER, make_asking(3)], r"tool_calls\[0\]: must be an object"),
    ],
)
def test_invalid_messages_name_their_place(messages: list[Any], problem: str) -> None:
    found = find_message_problems(messages)
    assert any(re.search(problem, one) for one in found), found


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["", "user", "assistant", "tool", "function", "call_1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)


@given(JSON)
def test_the_checker_takes_anything(value: Any) -> None:
    assert isinstance(find_message_problems(value), list)
    assert isinstance(find_request_problems({"messages": value, "tools": value, "tool_choice": value}), list)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model": ""}, "model: must be"),
        ({"tools": []}, "tools: must be a list with at least one"),
        ({"tools": [{"type": "function"}]}, r"tools\[0\]: must be an object"),
        ({"tools": [make_tool("look up")]}, r"tools\[0\].function.name"),
        ({"tools": [make_tool("a"), make_tool("a")]}, "used twice"),
        ({"tool_choice": "auto"}, "tool_choice: only allowed when tools"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls: only allowed when tools"),
        ({"tools": [make_tool("a")], "tool_choice": "any"}, "tool_choice: must be"),
        (
            {"tools": [make_tool("a")], "tool_choice": {"type": "function", "function": {"name": "b"}}},
            "must name one of",
        ),
        ({"tools": [make_tool("a")], "tool_choice": allow("b")}, "must name some of"),
        ({"tools": [make_tool("a")], "tool_choice": allow()}, "must name one of"),
        ({"stream": "yes"}, "stream: must be a boolean"),
        ({"stream_options": {"include_usage": True}}, "only allowed when stream is true"),
    ],
)
def test_options_are_checked_too(options: Json, problem: str) -> None:
    (found,) = find_request_problems({"model": "m", "messages": [USER], **options})
    assert re.search(problem, found)
