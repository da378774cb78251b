"""Guardrails in replays, of models, and in programs without a server."""

from __future__ import annotations

import pytest
from openai import AsyncOpenAI, OpenAI

from swarmkeep import Agent, AsyncSwarm, Swarm
from swarmkeep.guardrails import ask_model, limit_length
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, EngineCluster, open_session, read_log, read_state, run_to_end
from tests.runs.guardrails.guards import (
    SECRET,
    find_divergences,
    list_trips,
    make_payer,
    no_secrets,
    no_secrets_async,
)
from tests.support.scripted import ScriptedModel
from tests.support.scripted.replies import Call

pytestmark = pytest.mark.one_database


async def test_replay_reports_changed_verdicts(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(Agent(name="A", input_guardrails=[no_secrets]))
    await open_session(engine)
    await run_to_end(engine, f"It is {SECRET}.")
    model.say("Hello!")
    await run_to_end(engine, "Hello?", "r2")
    refused = {"stage": "input", "refused": True, "name": "no_secrets", "message": "Let us speak of something else."}
    passed = {"stage": "input", "refused": False}
    lenient = Agent(name="A", input_guardrails=[limit_length(1000)])
    assert await find_divergences(engine, lenient) == [("guardrail", refused, passed)]
    assert [(kind, recorded) for kind, recorded, _ in await find_divergences(engine, Agent(name="A"))] == [
        ("guardrail", refused)
    ]
    strict = Agent(name="A", input_guardrails=[limit_length(3, "Too long.")])
    today = {"stage": "input", "refused": True, "name": "length_limit", "message": "Too long."}
    assert await find_divergences(engine, strict) == [("guardrail", refused, today), ("guardrail", passed, today)]


async def test_fork_within_refusal_replays_alike(cluster: EngineCluster, model: ScriptedModel) -> None:
    guards = {"input_guardrails": [no_secrets], "output_guardrails": [no_secrets]}
    agent = Agent(name="A", functions=[make_payer([], no_secrets)], **guards)
    engine = await cluster.open_engine(agent)
    await open_session(engine)
    model.calls([Call("pay", {"to": SECRET}, id="c1"), Call("pay", {"to": "Lee"}, id="c2")])
    model.say(f"It is {SECRET}.")
    await run_to_end(engine)
    await run_to_end(engine, f"It is {SECRET}.", "r2")
    assert [trip.stage for trip in list_trips(await read_log(engine))] == ["tool", "output", "input"]
    for at in range(1, (await read_state(engine)).seq + 1):
        fork = SessionKey(KEY.tenant, f"fork{at}")
        await engine.sessions.fork(KEY, at=at, session_id=fork.id)
        assert await find_divergences(engine, agent, key=fork) == [], at


async def test_replay_asks_no_guardrail_model(
    cluster: EngineCluster, model: ScriptedModel, async_client: AsyncOpenAI
) -> None:
    with ScriptedModel() as judge:
        client = AsyncOpenAI(base_url=judge.url, api_key="k", max_retries=0)
        agent = Agent(name="A", input_guardrails=[ask_model("Is it rude?", client=client, model="gpt-4o")])
        engine = await cluster.open_engine(agent)
        await open_session(engine)
        for answer in ("Yes.", "no", "Maybe"):
            judge.say(answer)
        model.say("Hello!")
        views = [await run_to_end(engine, f"text {number}", f"r{number}") for number in range(3)]
        assert [view.stop_reason for view in views] == ["guardrail", "end_turn", "guardrail"]
        assert judge.requests[0]["messages"][-1] == {"role": "user", "content": "text 0"}
        assert await find_divergences(engine, agent) == []
        await client.close()


def test_swarm_in_process_has_guardrails(model: ScriptedModel, client: OpenAI) -> None:
    agent = Agent(name="A", input_guardrails=[no_secrets], output_guardrails=[limit_length(10)])
    swarm = Swarm(client)
    history = [{"role": "user", "content": SECRET}, {"role": "assistant", "content": "?"}]
    model.say("Hello!")
    assert swarm.run(agent, [*history, {"role": "user", "content": "Hi"}]).messages[-1]["content"] == "Hello!"
    response = swarm.run(agent, [{"role": "user", "content": SECRET}])
    assert [message["content"] for message in response.messages] == ["Let us speak of something else."]
    model.say("Hello, hello, hello!")
    frames = list(swarm.run(agent, [{"role": "user", "content": "Hi"}], stream=True))
    assert [frame.get("content") for frame in frames[:-1] if "content" in frame] == ["This is too long."]
    assert frames[0] == {"delim": "start"}


async def test_async_swarm_has_guardrails(async_client: AsyncOpenAI) -> None:
    agent = Agent(name="A", input_guardrails=[no_secrets_async])
    response = await AsyncSwarm(async_client).run(agent, [{"role": "user", "content": SECRET}])
    assert response.messages[-1]["content"] == "Let us speak of something else."
