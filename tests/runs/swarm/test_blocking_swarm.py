"""Swarm alone: it runs in the caller's thread, takes no asynchronous client, and leaves nothing running."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI

from swarmkeep import Agent, Swarm, tool
from tests.runs.swarm.runners import list_tool_texts, user_message
from tests.runs.swarm.shop import join_texts
from tests.support.scripted import ScriptedModel


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
