"""Answers of a certain form: checked when they come, sent back as events, and given up in the end."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from openai import OpenAI
from pydantic import BaseModel

from swarmkeep import Agent, Swarm, tool
from swarmkeep.events.facts import MessageAdded
from swarmkeep.events.records import RunOptions
from swarmkeep.events.views import RunView
from swarmkeep.history.redact import redact
from swarmkeep.history.replay import replay_session
from swarmkeep.runs.agents import Registry
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, LIMITS, EngineCluster, Server
from tests.support.scripted import ScriptedModel
from tests.support.scripted.replies import Call, Completion

pytestmark = pytest.mark.one_database


class Order(BaseModel):
    sku: str
    count: int


def look(sku: str) -> str:
    """Look whether there is one."""
    return "there are 3"


RIGHT = '{"sku": "A-17", "count": 2}'
WRONG = '{"sku": "A-17", "count": "two"}'
PLAIN = Agent(name="Plain", output_type=Order, functions=[look])
BY_CALL = Agent(name="ByCall", output_type=Order, output_mode="tool", functions=[look])
JSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "any", "schema": {"type": "object"}, "strict": False}}


async def ask(engine: Server, **options: Any) -> RunView:
    await engine.open_session()
    return await engine.run("Order two.", **options)


async def list_corrections(engine: Server) -> list[tuple[str, int]]:
    facts = [event.fact for event in await engine.read_log()]
    return [
        (str(fact.message["role"]), fact.correction)
        for fact in facts
        if isinstance(fact, MessageAdded) and isinstance(fact.correction, int)
    ]


async def test_valid_answer_is_the_output(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(PLAIN)
    model.call("look", {"sku": "A-17"}, id="c1")
    model.say(RIGHT)
    view = await ask(engine)
    assert (view.status, view.stop_reason, view.output, view.output_text) == (
        "completed",
        "end_turn",
        {"sku": "A-17", "count": 2},
        RIGHT,
    )
    assert {json.dumps(request["response_format"]) for request in model.requests} == {
        json.dumps(PLAIN.output().response_format)  # type: ignore[union-attr]
    }
    assert model.requests[0]["response_format"]["json_schema"]["strict"] is True
    assert await list_corrections(engine) == []
    await engine.check_log(model)


async def test_wrong_answer_is_kept_and_sent_back(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(PLAIN)
    for text in (WRONG, "Two of A-17!", RIGHT):
        model.say(text)
    view = await ask(engine)
    assert (view.status, view.output, view.usage.model_calls) == ("completed", {"sku": "A-17", "count": 2}, 3)
    assert await list_corrections(engine) == [("user", 1), ("user", 2)]
    told = model.requests[1]["messages"][-1]
    assert told["role"] == "user"
    assert told.keys() == {"role", "content"}
    assert "/count: Input should be a valid integer" in told["content"]
    assert "not JSON" in model.requests[2]["messages"][-1]["content"]
    assert [message["sender"] for message in view.messages] == [
        "user", "Plain", "swarmkeep", "Plain", "swarmkeep", "Plain",
    ]  # fmt: skip
    await engine.check_log(model)


async def test_too_many_wrong_answers_end_run(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(PLAIN)
    for _ in range(3):
        model.say(WRONG)
    view = await ask(engine)
    assert (view.status, view.stop_reason, view.error.code) == ("failed", "error", "output_invalid")
    assert "/count" in view.error.message
    assert (view.output, view.output_text, view.usage.model_calls) == (None, WRONG, 3)
    assert await engine.read_types() == [
        "session.created", "run.started", *["message.added"] * 6, "run.failed",
    ]  # fmt: skip
    await engine.check_log(model)
    # What was wrong in one run does not count in the next.
    model.say(WRONG)
    model.say(RIGHT)
    assert (await engine.run("Again.", "r2")).output == {"sku": "A-17", "count": 2}


async def test_agent_may_forbid_second_answers(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(Agent(name="Once", output_type=Order, output_retries=0))
    model.say(WRONG, finish_reason="length")
    view = await ask(engine)
    assert view.error.code == "output_invalid"
    assert "cut off at the limit of tokens" in view.error.message
    state = await engine.read_state()
    assert state.messages[-1].completion.finish_reason == "length"


async def test_corrections_count_toward_turn_limit(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(PLAIN)
    model.say(WRONG)
    view = await ask(engine, options=RunOptions(max_turns=1))
    assert (view.status, view.stop_reason, view.output) == ("completed", "max_turns", None)


async def test_refusal_is_not_sent_back(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(PLAIN)
    model.raw(json.dumps({"choices": [{"message": {"role": "assistant", "content": None, "refusal": "I will not."}}]}))
    view = await ask(engine)
    assert (view.status, view.output, await list_corrections(engine)) == ("completed", None, [])


async def test_correction_is_no_separate_turn(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(PLAIN, limits=structs.replace(LIMITS, history_turns=1))
    model.say(WRONG)
    model.say(RIGHT)
    await ask(engine)
    assert [message["content"] for message in model.requests[1]["messages"]][1:3] == ["Order two.", WRONG]


# By a call.


async def test_output_call_ends_the_run(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(BY_CALL)
    model.call("look", {"sku": "A-17"}, id="c1")
    model.call("final_output", RIGHT, id="c2")
    view = await ask(engine)
    assert (view.status, view.stop_reason, view.output, view.output_text) == (
        "completed",
        "end_turn",
        {"sku": "A-17", "count": 2},
        RIGHT,
    )
    assert "response_format" not in model.requests[0]
    assert [found["function"]["name"] for found in model.requests[0]["tools"]] == ["look", "final_output"]
    assert (await engine.read_types())[-3:] == ["message.added", "message.added", "run.completed"]
    model.call("final_output", RIGHT, id="c3")
    assert (await engine.run("And again.", "r2")).output == {"sku": "A-17", "count": 2}
    await engine.check_log(model)


async def test_wrong_arguments_and_prose_are_sent_back(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(BY_CALL)
    model.call("final_output", WRONG, id="c1")
    model.say("Two of A-17.")
    model.call("final_output", RIGHT, id="c2")
    view = await ask(engine)
    assert (view.status, view.output) == ("completed", {"sku": "A-17", "count": 2})
    assert await list_corrections(engine) == [("tool", 1), ("user", 2)]
    assert "/count" in model.requests[1]["messages"][-1]["content"]
    assert "calling the function final_output" in model.requests[2]["messages"][-1]["content"]
    await engine.check_log(model)


async def test_neighbouring_calls_run_before_output(cluster: EngineCluster, model: ScriptedModel) -> None:
    called: list[str] = []

    @tool(requires_approval=False)
    def note(text: str) -> str:
        """Note it."""
        called.append(text)
        return "noted"

    engine = await cluster.open_engine(BY_CALL.model_copy(update={"functions": [note]}))
    give = Call("final_output", RIGHT, "c1")
    model.add(Completion(calls=[give, Call("note", {"text": "x"}, "c2"), replace(give, id="c3")]))
    view = await ask(engine)
    assert (view.status, view.output, called) == ("completed", {"sku": "A-17", "count": 2}, ["x"])
    assert [message["tool_call_id"] for message in view.messages if message["role"] == "tool"] == ["c1", "c3", "c2"]
    await engine.check_log(model)


async def test_output_call_completes_without_execute_tools(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(BY_CALL)
    model.call("final_output", RIGHT, id="c1")
    view = await ask(engine, options=RunOptions(execute_tools=False))
    assert (view.status, view.output) == ("completed", {"sku": "A-17", "count": 2})


async def test_fork_amid_output_call_continues(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(BY_CALL)
    model.call("final_output", RIGHT, id="c1")
    await ask(engine)
    asked = next(event.seq for event in await engine.read_log() if getattr(event.fact, "completion", None))
    fork = await engine.sessions.fork(KEY, at=asked, session_id="fork")
    key = SessionKey(KEY.tenant, fork.id)
    await engine.runs.resume(key, "r1")
    view = await engine.wait("r1", key)
    assert (view.status, view.output, len(model.requests)) == ("completed", {"sku": "A-17", "count": 2}, 1)


# A run's own form.


@pytest.mark.parametrize("agent", [PLAIN, BY_CALL], ids=lambda agent: agent.name)
async def test_run_may_bring_output_type(cluster: EngineCluster, model: ScriptedModel, agent: Agent) -> None:
    engine = await cluster.open_engine(agent)
    model.say('{"other": [1]}')
    view = await ask(engine, options=RunOptions(response_format=JSON_FORMAT))
    assert (view.status, view.output) == ("completed", {"other": [1]})
    assert model.requests[0]["response_format"] == JSON_FORMAT
    assert [found["function"]["name"] for found in model.requests[0]["tools"]] == ["look"]
    model.say("no JSON at all")
    second = await engine.run("Again.", "r2", options=RunOptions(response_format={"type": "json_object"}))
    assert (second.status, second.output, second.output_text) == ("completed", None, "no JSON at all")
    model.say(RIGHT)
    third = await engine.run("Again.", "r3", options=RunOptions(response_format={"type": "text"}))
    assert (third.status, third.output) == ("completed", None)
    await engine.check_log(model)


# What becomes of it later.


async def test_replay_reports_answer_invalid_today(cluster: EngineCluster, model: ScriptedModel) -> None:
    class Stricter(BaseModel):
        sku: str
        count: int
        note: str

    engine = await cluster.open_engine(PLAIN)
    model.say(WRONG)
    model.say(RIGHT)
    await ask(engine)
    registry = Registry([PLAIN.model_copy(update={"output_type": Stricter})])
    replayed = await replay_session(engine.store, registry, KEY)
    assert [found.kind for found in replayed.divergences] == ["parameters", "order"]
    anything = Registry([PLAIN.model_copy(update={"output_type": None})])
    assert "order" in [found.kind for found in (await replay_session(engine.store, anything, KEY)).divergences]


async def test_redacted_answer_stays_sent_back(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.open_engine(PLAIN)
    model.say(WRONG)
    model.say(RIGHT)
    await ask(engine)
    before = await list_corrections(engine)
    await redact(engine.store, KEY, [4, 5, 6], reason="asked to")
    assert "A-17" not in "".join(event.payload for event in await engine.read_log())
    assert await list_corrections(engine) == before == [("user", 1)]
    assert (await engine.reader.get_run(KEY, "r1")).output is None
    state = await engine.read_state()
    assert state.finished[-1].corrections == 1


@pytest.mark.parametrize("redacted", [[4], [5], [6], [4, 5, 6]])
async def test_redacted_calls_keep_their_answers(
    cluster: EngineCluster, model: ScriptedModel, redacted: list[int]
) -> None:
    engine = await cluster.open_engine(BY_CALL)
    model.add(Completion(calls=[Call("final_output", WRONG, "c1"), Call("final_output", RIGHT, "c2")]))
    model.add(Completion(calls=[Call("final_output", RIGHT, "c3"), Call("final_output", RIGHT, "c4")]))
    await ask(engine)
    await redact(engine.store, KEY, redacted, reason="asked to")
    await engine.check_log()


def test_swarm_returns_typed_answer(client: OpenAI, model: ScriptedModel) -> None:
    model.say(WRONG)
    model.say(RIGHT)
    response = Swarm(client).run(PLAIN, [{"role": "user", "content": "Two."}])
    assert response.output == Order(sku="A-17", count=2)
    model.call("final_output", RIGHT)
    assert Swarm(client).run(BY_CALL, [{"role": "user", "content": "Two."}]).output == Order(sku="A-17", count=2)
    model.say("Hello.")
    assert Swarm(client).run(Agent(), [{"role": "user", "content": "Hi"}]).output is None
