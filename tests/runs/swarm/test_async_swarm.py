"""AsyncSwarm and Swarm alone: whose thread and loop they run in, and that they leave nothing running."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from swarmkeep import Agent, AsyncSwarm, Swarm, tool
from swarmkeep.events.codec import Json
from tests.runs.swarm.runners import list_tool_texts, user_message
from tests.runs.swarm.shop import join_texts
from tests.support.scripted import ScriptedModel


@pytest.fixture
def swarm(async_client: AsyncOpenAI) -> AsyncSwarm:
    return AsyncSwarm(async_client)


async def test_a_stream_may_be_awaited_first(swarm: AsyncSwarm, model: ScriptedModel) -> None:
    model.say(["Hel", "lo"])
    frames = await swarm.run(Agent(), [user_message("Hi")], stream=True)
    assert [frame["content"] async for frame in frames if frame.get("content")] == ["Hel", "lo"]


async def test_blocking_tool_spares_the_loop(swarm: AsyncSwarm, model: ScriptedModel) -> None:
    reached, released = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def block() -> str:
        loop.call_soon_threadsafe(reached.set)
        assert released.wait(20)
        return "done"

    model.call("block")
    model.say("Done.")
    run = asyncio.create_task(swarm.run(Agent(functions=[block]), [user_message("Go")]))
    await reached.wait()
    # The tool blocks its thread, and here others run: this line is the proof.
    released.set()
    assert list_tool_texts(await run) == ["done"]


async def test_stream_gives_deltas_as_they_come(swarm: AsyncSwarm, model: ScriptedModel) -> None:
    model.hang("First, ", then="then.")
    frames = aiter(swarm.run(Agent(), [user_message("Hi")], stream=True))
    while (await anext(frames)).get("content") != "First, ":
        pass
    rest = asyncio.create_task(anext(frames))
    await asyncio.sleep(0)
    assert not rest.done()
    model.release()
    assert (await rest)["content"] == "then."
    assert "response" in [frame async for frame in frames][-1]


async def test_concurrent_runs_do_not_mix(swarm: AsyncSwarm, model: ScriptedModel) -> None:
    def remember(name: str, context_variables: Json) -> str:
        context_variables["name"] = name
        return name

    def last_is(text: str) -> Any:
        return lambda request: request["messages"][-1]["content"] == text

    for n in range(10):
        model.call("remember", {"name": f"n{n}"}, when=last_is(f"I am n{n}"))
        model.say(f"Hello n{n}", when=last_is(f"n{n}"))
    agent = Agent(functions=[remember])
    runs = [swarm.run(agent, [user_message(f"I am n{n}")]) for n in range(10)]
    for n, response in enumerate(await asyncio.gather(*runs)):
        assert response.messages[-1]["content"] == f"Hello n{n}"
        assert response.context_variables == {"name": f"n{n}"}


async def test_early_left_stream_leaves_nothing_running(swarm: AsyncSwarm, model: ScriptedModel) -> None:
    before = asyncio.all_tasks()
    model.hang("Once upon")
    async for frame in swarm.run(Agent(), [user_message("A story!")], stream=True):
        if frame.get("content"):
            break
    await model.wait_for_disconnects_async(1)
    assert asyncio.all_tasks() == before
    model.say("Yes?")
    assert (await swarm.run(Agent(), [user_message("Hello?")])).messages[-1]["content"] == "Yes?"


async def test_a_cancelled_run_stops_asking(swarm: AsyncSwarm, model: ScriptedModel) -> None:
    model.hang()
    run = asyncio.create_task(swarm.run(Agent(), [user_message("Hi")]))
    await model.wait_for_requests_async(1)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await model.wait_for_disconnects_async(1)


async def test_a_synchronous_client_is_refused(client: OpenAI) -> None:
    with pytest.raises(TypeError, match="use Swarm with it"):
        AsyncSwarm(client)


async def test_any_object_serves_as_client() -> None:
    class Completions:
        def __init__(self) -> None:
            self.asked: list[Json] = []

        async def create(self, **arguments: Any) -> Any:
            self.asked.append(arguments)
            if arguments.get("stream"):
                return self._stream()
            return {"choices": [{"message": {"role": "assistant", "content": "plain"}, "finish_reason": "stop"}]}

        async def _stream(self) -> AsyncIterator[Json]:
            for text in ("str", "eam"):
                yield {"choices": [{"delta": {"content": text}}]}
            yield {"choices": [{"delta": {}, "finish_reason": "stop"}]}

    def look() -> str:
        """Look."""
        return ""

    completions = Completions()
    swarm = AsyncSwarm(SimpleNamespace(chat=SimpleNamespace(completions=completions)))
    assert (await swarm.run(Agent(), [user_message("Hi")])).messages[-1]["content"] == "plain"
    frames = [frame async for frame in swarm.run(Agent(functions=[look]), [user_message("Hi")], stream=True)]
    assert frames[-1]["response"].messages[-1]["content"] == "stream"
    plain, streamed = completions.asked
    assert plain == {
        "model": "gpt-4o",
        "messages": [{"role": "system", "content": "You are a helpful agent."}, user_message("Hi")],
    }
    assert streamed["stream"] is True
    assert streamed["tools"][0]["function"]["description"] == "Look."


async def test_concurrent_functions_run_at_once(swarm: AsyncSwarm, model: ScriptedModel) -> None:
    both = threading.Barrier(2)

    @tool(concurrent=True)
    def meet(name: str, context_variables: Json) -> str:
        both.wait(20)
        context_variables["last"] = name
        return name

    model.calls([("meet", {"name": "x"}), ("meet", {"name": "y"})])
    model.say("Done.")
    agent = Agent(functions=[meet], concurrent_tools=True)
    response = await swarm.run(agent, [user_message("Go")])
    assert sorted(list_tool_texts(response)) == ["x", "y"]
    assert response.context_variables == {"last": "y"}
    sent = [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "tool"]
    assert sent == ["x", "y"]


async def test_abandoned_run_stops_all_concurrent_work(swarm: AsyncSwarm, model: ScriptedModel) -> None:
    begun, stopped = asyncio.Semaphore(0), asyncio.Semaphore(0)

    @tool(concurrent=True)
    async def hang() -> str:
        begun.release()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.release()
        return "never"

    model.calls([("hang", {}), ("hang", {})])
    run = asyncio.create_task(swarm.run(Agent(functions=[hang], concurrent_tools=True), [user_message("Go")]))
    async with asyncio.timeout(20):
        for _ in range(2):
            await begun.acquire()
        run.cancel()
        for _ in range(2):
            await stopped.acquire()
    with pytest.raises(asyncio.CancelledError):
        await run


# Swarm alone: it runs in the caller's thread, takes no asynchronous client, and leaves nothing running.


def test_run_and_stream_is_an_alias(client: OpenAI, model: ScriptedModel) -> None:
    model.say("Hello!")
    frames = list(Swarm(client).run_and_stream(Agent(), [user_message("Hi")]))
    assert join_texts(frames) == "Hello!"


def test_early_closed_stream_leaves_nothing_running(client: OpenAI, model: ScriptedModel) -> None:
    model.hang("Once upon")
    frames = Swarm(client).run(Agent(), [user_message("A story!")], stream=True)
    assert next(frames) == {"delim": "start"}
    while not next(frames).get("content"):
        pass
    frames.close()
    model.wait_for_disconnects(1)
    with pytest.raises(StopIteration):
        next(frames)
    model.say("I am still here.")
    assert Swarm(client).run(Agent(), [user_message("Hello?")]).messages[-1]["content"] == "I am still here."


def test_unread_stream_asks_no_model(client: OpenAI, model: ScriptedModel) -> None:
    Swarm(client).run(Agent(), [user_message("Hi")], stream=True)
    assert model.request_count == 0


def test_tools_run_in_the_callers_thread(client: OpenAI, model: ScriptedModel) -> None:
    import sqlite3

    connection = sqlite3.connect(":memory:")
    connection.execute("create table notes (text)")

    def note(text: str) -> str:
        connection.execute("insert into notes values (?)", [text])
        return str(connection.execute("select count(*) from notes").fetchone()[0])

    model.calls([("note", {"text": "a"}), ("note", {"text": "b"})])
    model.say("Noted.")
    response = Swarm(client).run(Agent(functions=[note]), [user_message("Note a and b.")])
    connection.close()
    assert list_tool_texts(response) == ["1", "2"]


def test_keyboard_interrupt_is_no_tool_error(client: OpenAI, model: ScriptedModel) -> None:
    def control_c() -> str:
        raise KeyboardInterrupt

    model.call("control_c")
    with pytest.raises(KeyboardInterrupt):
        Swarm(client).run(Agent(functions=[control_c]), [user_message("Go")])


async def test_swarm_inside_a_running_loop(client: OpenAI, model: ScriptedModel) -> None:
    # As in a notebook, where async functions cannot be awaited by a second loop in the same thread.
    async def wait() -> str:
        return "waited"

    def plain() -> str:
        return "plain"

    async def instructions() -> str:
        return "Be brief."

    model.calls([("wait", {}), ("plain", {})])
    model.say("Done.")
    response = Swarm(client).run(Agent(functions=[wait, plain], instructions=instructions), [user_message("Go")])
    assert list_tool_texts(response) == ["waited", "plain"]
    model.say(["Do", "ne."])
    frames = list(Swarm(client).run(Agent(), [user_message("Go")], stream=True))
    assert join_texts(frames) == "Done."


def test_the_default_client_is_openais(monkeypatch: pytest.MonkeyPatch, model: ScriptedModel) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment")
    monkeypatch.setenv("OPENAI_BASE_URL", model.url)
    model.say("Hello!")
    swarm = Swarm()
    assert swarm.run(Agent(), [user_message("Hi")]).messages[-1]["content"] == "Hello!"
    swarm.client.close()
    assert model.headers[0]["authorization"] == "Bearer from-the-environment"


def test_an_asynchronous_client_is_refused(async_client: openai.AsyncOpenAI) -> None:
    with pytest.raises(TypeError, match="use AsyncSwarm with it"):
        Swarm(async_client)


@pytest.mark.parametrize("stream", [False, True])
def test_async_double_is_refused_on_use(stream: bool) -> None:
    import asyncio

    class Completions:
        async def create(self, **arguments: Any) -> Any:
            await asyncio.sleep(0)

    class Double:
        chat = type("Chat", (), {"completions": Completions()})

    with pytest.raises(TypeError, match="use AsyncSwarm with it"):
        list(Swarm(Double()).run(Agent(), [user_message("Hi")], stream=stream))


def test_single_thread_runs_functions_sequentially(client: OpenAI, model: ScriptedModel) -> None:
    order: list[str] = []

    @tool(concurrent=True)
    def step(name: str) -> str:
        order.extend([f"{name} begins", f"{name} ends"])
        return name

    model.calls([("step", {"name": "x"}), ("step", {"name": "y"})])
    model.say("Done.")
    Swarm(client).run(Agent(functions=[step], concurrent_tools=True), [user_message("Go")])
    assert order == ["x begins", "x ends", "y begins", "y ends"]
