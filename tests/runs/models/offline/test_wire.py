"""The offline model on the wire: whole answers and streams through the official clients, and what they cost."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI, OpenAI

from swarmkeep.events.codec import Json
from swarmkeep.models.offline.server import OFFLINE_MODEL, OfflineTransport, make_sync_offline_client
from tests.runs.models.offline.tools import WEATHER, T, find_call, make_tool


def test_responses_name_model_and_usage(client: OpenAI) -> None:
    completion = client.chat.completions.create(
        model="gpt-4o",
        messages=[{"role": "system", "content": "one two"}, {"role": "user", "content": "three four five"}],
    )
    assert completion.model == OFFLINE_MODEL
    assert "offline" in str(completion.system_fingerprint)
    assert completion.usage is not None
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
    assert fragments[0].function is not None
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
