"""A session is changed by others while its run is in a model call or a tool: each change stays, and is its author's."""

from __future__ import annotations

import pytest

from swarmkeep import Agent, Result, tool
from swarmkeep.domain.codec import Json
from swarmkeep.domain.events import ContextUpdated
from swarmkeep.engine.engine import Engine
from tests.engine.cluster import (
    KEY,
    EngineCluster,
    ToolGate,
    kill_engine,
    make_start_run,
    open_session,
    read_log,
    wait_for_end,
)
from tests.support.scripted import ScriptedModel

BEFORE: Json = {"name": "Ann", "cart": {"tea": 1, "milk": 2}, "note": "old", "gone": True, "none": None}


async def list_context_changes(engine: Engine) -> list[tuple[str | None, Json]]:
    facts = [event.fact for event in await read_log(engine)]
    return [(fact.tool_call_id, fact.patch) for fact in facts if isinstance(fact, ContextUpdated)]


# The context.


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_tool_takes_no_change_back_that_others_make_meanwhile(
    cluster: EngineCluster, model: ScriptedModel, elsewhere: bool
) -> None:
    gate = ToolGate()

    def shop(context_variables: Json) -> Result:
        gate.enter()
        context_variables["cart"]["bread"] = 3
        del context_variables["cart"]["milk"]
        return Result("ok", context_variables={"paid": None})

    agent = Agent(name="A", functions=[shop])
    engine = await cluster.open_engine(agent)
    writer = await cluster.open_engine(agent) if elsewhere else engine
    await open_session(engine, context_variables=BEFORE)
    model.call("shop", id="c1")
    model.say("Done.")
    await engine.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    patch = {"gone": None, "note": "new", "cart": {"tea": None, "jam": 4}}
    await writer.sessions.update(KEY, context_variables=patch)
    await gate.open()
    view = await wait_for_end(engine)
    after = {"name": "Ann", "cart": {"jam": 4, "bread": 3}, "note": "new", "none": None, "paid": None}
    assert view.context_variables == after
    assert await list_context_changes(engine) == [(None, patch), ("c1", {"cart": {"bread": 3, "milk": None}})]


async def test_a_tool_that_changes_nothing_takes_no_change_back(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()

    def look(context_variables: Json) -> str:
        gate.enter()
        return str(context_variables["name"])

    engine = await cluster.open_engine(Agent(name="A", functions=[look]))
    await open_session(engine, context_variables=BEFORE)
    model.call("look", id="c1")
    model.say("Done.")
    await engine.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    await engine.sessions.update(KEY, context_variables={"name": "Bob", "gone": None})
    await gate.open()
    view = await wait_for_end(engine)
    assert (view.context_variables["name"], "gone" in view.context_variables) == ("Bob", False)
    assert await list_context_changes(engine) == [(None, {"name": "Bob", "gone": None})]


async def test_what_the_tool_and_somebody_else_did_alike_is_recorded_once(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    gate = ToolGate()

    def rename() -> Result:
        gate.enter()
        return Result("ok", context_variables={"name": "Bob"})

    engine = await cluster.open_engine(Agent(name="A", functions=[rename]))
    await open_session(engine, context_variables=BEFORE)
    model.call("rename", id="c1")
    model.say("Done.")
    await engine.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    await engine.sessions.update(KEY, context_variables={"name": "Bob"})
    await gate.open()
    await wait_for_end(engine)
    assert await list_context_changes(engine) == [(None, {"name": "Bob"})]


async def test_each_call_of_a_reply_sees_what_the_former_and_others_left(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    gate, seen = ToolGate(), list[Json]()

    def first(context_variables: Json) -> str:
        gate.enter()
        context_variables["n"] = 1
        return "one"

    def second(context_variables: Json) -> str:
        seen.append(dict(context_variables))
        context_variables["n"] += 1
        return "two"

    engine = await cluster.open_engine(Agent(name="A", functions=[first, second]))
    await open_session(engine, context_variables={"gone": True})
    model.calls([("first", {}, "c1"), ("second", {}, "c2")])
    model.say("Done.")
    await engine.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    await engine.sessions.update(KEY, context_variables={"gone": None, "new": True})
    await gate.open()
    view = await wait_for_end(engine)
    assert seen == [{"n": 1, "new": True}]
    assert view.context_variables == {"n": 2, "new": True}
    assert await list_context_changes(engine) == [
        (None, {"gone": None, "new": True}),
        ("c1", {"n": 1}),
        ("c2", {"n": 2}),
    ]


async def test_a_tool_that_runs_again_works_on_the_context_of_its_second_start(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    gate, seen = ToolGate(), list[Json]()

    @tool(idempotent=True)
    def pay(context_variables: Json) -> str:
        seen.append(dict(context_variables))
        if len(seen) == 1:
            gate.enter()
        context_variables["paid"] = True
        return "paid"

    agent = Agent(name="A", functions=[pay])
    one = await cluster.open_engine(agent)
    await open_session(one, context_variables={"gone": True})
    model.call("pay", id="c1")
    await one.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    two = await cluster.open_engine(agent, start=False)
    await two.sessions.update(KEY, context_variables={"gone": None})
    await kill_engine(one)
    model.say("Paid.")
    await two.start()
    view = await wait_for_end(two)
    await gate.open()
    assert seen == [{"gone": True}, {}]
    assert view.context_variables == {"paid": True}
    assert await list_context_changes(two) == [(None, {"gone": None}), ("c1", {"paid": True})]
