"""Model settings and instructions of runs: what the model is sent, what is recorded, and that it is rebuilt."""

from __future__ import annotations

import json

import pytest
from openai import AsyncOpenAI, OpenAI

from swarmkeep import Agent, AsyncSwarm, Swarm
from swarmkeep.events.facts import MessageAdded, RunQueued, RunStarted
from swarmkeep.events.records import RunOptions
from swarmkeep.history.replay import rebuild_request, replay_session
from swarmkeep.runs.agents import Registry
from tests.runs.cluster import KEY, EngineCluster
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


def hand_over() -> Agent:
    """Hand over."""
    return SECOND


FIRST = Agent(
    name="First",
    instructions="Be brief.",
    functions=[hand_over],
    model_settings={"temperature": 0.2, "seed": 1, "extra_body": {"top_k": 40}},
)
SECOND = Agent(name="Second", instructions="", model_settings={"max_tokens": 9})
MINE = RunOptions(model_settings={"seed": None, "stop": ["\n"]}, instructions="Answer in French.")


async def test_run_settings_override_agent_settings(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(FIRST, SECOND)
    model.call("hand_over", id="c1")
    model.say("Bien.")
    model.say("Fine.")
    await engine.run(options=MINE)
    await engine.run(run_id="r2")
    first, second, plain = model.requests
    assert (first["temperature"], first["stop"], first["top_k"], "seed" in first) == (0.2, ["\n"], 40, False)
    assert (second["max_tokens"], second["stop"], "temperature" in second) == (9, ["\n"], False)
    assert ("stop" in plain, plain["max_tokens"]) == (False, 9)
    assert [request["messages"][0]["content"] for request in model.requests] == [
        "Be brief.\n\nAnswer in French.",
        "Answer in French.",
        "",
    ]
    answers = [
        event.seq
        for event in await engine.read_log()
        if isinstance(event.fact, MessageAdded) and event.fact.completion is not None
    ]
    assert [await rebuild_request(engine.store, KEY, seq) for seq in answers] == model.raw_requests
    replayed = await replay_session(engine.store, Registry([FIRST, SECOND]), KEY)
    assert (replayed.matches, replayed.turns) == (True, 3)
    hotter = FIRST.model_copy(update={"model_settings": {"temperature": 1}})
    changed = await replay_session(engine.store, Registry([hotter, SECOND]), KEY, ignore=["tool_schemas"])
    assert [(found.kind, found.actual["temperature"]) for found in changed.divergences] == [("parameters", 1)]


async def test_a_queued_run_keeps_its_settings(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(FIRST, SECOND)
    await engine.start_hanging_run(model, then="first")
    await engine.start_run(run_id="r2", options=MINE, on_busy="queue")
    model.say("second")
    model.release()
    await engine.wait("r2")
    facts = [event.fact for event in await engine.read_log()]
    [queued] = [fact for fact in facts if isinstance(fact, RunQueued)]
    started = [fact for fact in facts if isinstance(fact, RunStarted)]
    assert queued.options.model_settings == started[1].options.model_settings == {"seed": None, "stop": ["\n"]}
    assert model.requests[1]["stop"] == ["\n"]


async def test_run_without_settings_is_recorded_as_before(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(Agent(name="A"))
    model.say("Hello.")
    await engine.run()
    events = await engine.read_log()
    started = next(event for event in events if event.type == "run.started")
    assert json.loads(started.payload)["options"].keys() == {
        "max_turns", "model", "execute_tools", "stream", "loop_turns", "history_turns",
    }  # fmt: skip
    answer = next(event.fact for event in events if isinstance(event.fact, MessageAdded) and event.fact.completion)
    assert answer.completion.request.params == {"model": "gpt-4o"}


def test_swarm_sends_the_agents_settings(client: OpenAI, model: ScriptedModel) -> None:
    model.say("Hello.")
    Swarm(client).run(FIRST, [{"role": "user", "content": "Hi"}])
    assert (model.requests[0]["temperature"], model.requests[0]["top_k"]) == (0.2, 40)


async def test_client_subclass_accepts_other_body_names(async_client: AsyncOpenAI, model: ScriptedModel) -> None:
    class Own(AsyncOpenAI):
        """A client that may build its requests in its own way."""

    model.say("Hello.")
    async with Own(base_url=async_client.base_url, api_key="k", max_retries=0) as own:
        await AsyncSwarm(own).run(FIRST, [{"role": "user", "content": "Hi"}])
    assert (model.requests[0]["temperature"], model.requests[0]["top_k"]) == (0.2, 40)
