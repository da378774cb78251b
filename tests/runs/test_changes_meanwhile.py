"""A session is changed by others while its run is in a model call or a tool: each change stays, and is its author's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from swarmkeep import Agent, Result, tool
from swarmkeep.decide.commands import Approval, ToolAnswer
from swarmkeep.events.codec import Json
from swarmkeep.events.facts import ContextUpdated, MessageAdded, ToolStarted
from swarmkeep.events.records import RunOptions
from tests.runs.cluster import KEY, EngineCluster, Server, ToolGate, kill_engine, list_contents
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

BEFORE: Json = {"name": "Ann", "cart": {"tea": 1, "milk": 2}, "note": "old", "gone": True, "none": None}


async def list_context_changes(engine: Server) -> list[tuple[str | None, Json]]:
    facts = [event.fact for event in await engine.read_log()]
    return [(fact.tool_call_id, fact.patch) for fact in facts if isinstance(fact, ContextUpdated)]


# The context.


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_tool_keeps_concurrent_changes_of_others(
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
    await engine.open_session(context_variables=BEFORE)
    model.call("shop", id="c1")
    model.say("Done.")
    await engine.start_run(gate=gate)
    patch = {"gone": None, "note": "new", "cart": {"tea": None, "jam": 4}}
    await writer.sessions.update(KEY, context_variables=patch)
    await gate.open()
    view = await engine.wait()
    after = {"name": "Ann", "cart": {"jam": 4, "bread": 3}, "note": "new", "none": None, "paid": None}
    assert view.context_variables == after
    assert await list_context_changes(engine) == [(None, patch), ("c1", {"cart": {"bread": 3, "milk": None}})]


@pytest.mark.parametrize(
    ("result", "patch"),
    [
        # It changes nothing, and so reverts nothing; or changes the same.
        (Result("ok"), {"name": "Bob", "gone": None}),
        (Result("ok", context_variables={"name": "Bob"}), {"name": "Bob"}),
    ],
)
async def test_what_others_changed_is_recorded_once(
    cluster: EngineCluster, model: ScriptedModel, result: Result, patch: Json
) -> None:
    gate = ToolGate()

    def look(context_variables: Json) -> Result:
        gate.enter()
        return result

    engine = await cluster.open_engine(Agent(name="A", functions=[look]))
    await engine.open_session(context_variables=BEFORE)
    model.call("look", id="c1")
    model.say("Done.")
    await engine.start_run(gate=gate)
    await engine.sessions.update(KEY, context_variables=patch)
    await gate.open()
    assert (await engine.wait()).context_variables["name"] == "Bob"
    assert await list_context_changes(engine) == [(None, patch)]


async def test_reply_calls_see_all_earlier_changes(cluster: EngineCluster, model: ScriptedModel) -> None:
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
    await engine.open_session(context_variables={"gone": True})
    model.calls([("first", {}, "c1"), ("second", {}, "c2")])
    model.say("Done.")
    await engine.start_run(gate=gate)
    await engine.sessions.update(KEY, context_variables={"gone": None, "new": True})
    await gate.open()
    view = await engine.wait()
    assert seen == [{"n": 1, "new": True}]
    assert view.context_variables == {"n": 2, "new": True}
    assert await list_context_changes(engine) == [
        (None, {"gone": None, "new": True}),
        ("c1", {"n": 1}),
        ("c2", {"n": 2}),
    ]


async def test_rerun_tool_sees_second_start_context(cluster: EngineCluster, model: ScriptedModel) -> None:
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
    await one.open_session(context_variables={"gone": True})
    model.call("pay", id="c1")
    await one.start_run(gate=gate)
    two = await cluster.open_engine(agent, start=False)
    await two.sessions.update(KEY, context_variables={"gone": None})
    await kill_engine(one)
    model.say("Paid.")
    await two.start()
    view = await two.wait()
    await gate.open()
    assert seen == [{"gone": True}, {}]
    assert view.context_variables == {"paid": True}
    assert await list_context_changes(two) == [(None, {"gone": None}), ("c1", {"paid": True})]


# The agent.


class Team:
    """Two agents with a function of the same name each, and one function that only the first has."""

    def __init__(self, **options: Any) -> None:
        self.done: list[str] = []
        functions = [tool(**options)(self.make_send(name)) for name in ("A", "B")]
        self.agents = [Agent(name="A", functions=[functions[0], self.look]), Agent(name="B", functions=[functions[1]])]

    def make_send(self, who: str) -> Callable[[], str]:
        def send() -> str:
            self.done.append(who)
            return f"sent by {who}"

        return send

    def look(self) -> str:
        return "seen"


async def list_turn_events(engine: Server) -> list[tuple[str, str, str | None]]:
    """The events of replies and calls, each with the agent beside it, and the sender of its message."""
    found = []
    for event in await engine.read_log():
        fact = event.fact
        if isinstance(fact, MessageAdded) and fact.message["role"] != "user":
            found.append((event.type, event.agent, fact.message["sender"]))
        elif isinstance(fact, ToolStarted):
            found.append((event.type, event.agent, None))
    return found


A_CALLS, A_STARTS, A_ANSWERS = ("message.added", "A", "A"), ("tool.started", "A", None), ("message.added", "A", "A")
B_SAYS = ("message.added", "B", "B")


async def test_reply_calls_use_asked_agents_functions(cluster: EngineCluster, model: ScriptedModel) -> None:
    team, gate = Team(), threading.Event()
    engine = await cluster.begin(*team.agents)
    model.calls([("send", {}, "c1"), ("look", {}, "c2")], gate=gate)
    model.say("Hello from B.")
    await engine.start_run()
    await model.wait_for_requests_async(1)
    await engine.sessions.update(KEY, agent="B")
    gate.set()
    view = await engine.wait()
    assert (view.agent, list_contents(view.messages)[2:]) == ("B", ["sent by A", "seen", "Hello from B."])
    assert team.done == ["A"]
    assert await list_turn_events(engine) == [A_CALLS, A_STARTS, A_ANSWERS, A_STARTS, A_ANSWERS, B_SAYS]


async def test_call_after_agent_change_stays_former_agents(cluster: EngineCluster, model: ScriptedModel) -> None:
    team, gate = Team(), ToolGate()

    def wait() -> str:
        gate.enter()
        return "waited"

    team.agents[0].functions.append(wait)
    engine = await cluster.begin(*team.agents)
    model.calls([("wait", {}, "c1"), ("send", {}, "c2")])
    model.say("Hello from B.")
    await engine.start_run(gate=gate)
    await engine.sessions.update(KEY, agent="B")
    await gate.open()
    assert (await engine.wait()).agent == "B"
    assert team.done == ["A"]


@pytest.mark.parametrize("idempotent", [False, True])
async def test_restarted_calls_belong_to_asked_agent(
    cluster: EngineCluster, model: ScriptedModel, idempotent: bool
) -> None:
    team, gate = Team(), ToolGate()

    @tool(idempotent=idempotent)
    def wait() -> str:
        if not gate.count:
            gate.enter()
        return "waited"

    team.agents[0].functions.append(wait)
    one = await cluster.begin(*team.agents)
    model.calls([("wait", {}, "c1"), ("send", {}, "c2")])
    await one.start_run(gate=gate)
    await one.sessions.update(KEY, agent="B")
    await kill_engine(one)
    model.say("Hello from B.")
    two = await cluster.open_engine(*team.agents)
    view = await two.wait()
    await gate.open()
    contents = list_contents(view.messages)[2:]
    assert contents[1:] == ["sent by A", "Hello from B."]
    assert (contents[0] == "waited") is idempotent
    assert team.done == ["A"]
    assert {agent for kind, agent, _ in await list_turn_events(two) if kind == "tool.started"} == {"A"}


@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_call_decided_after_change_stays_former_agents(
    cluster: EngineCluster, model: ScriptedModel, decision: Any
) -> None:
    team = Team(requires_approval=True)
    engine = await cluster.begin(*team.agents)
    model.call("send", id="c1")
    await engine.run()
    await engine.sessions.update(KEY, agent="B")
    model.say("Hello from B.")
    other = await cluster.open_engine(*team.agents)
    await other.runs.resume(KEY, "r1", approvals=[Approval(tool_call_id="c1", decision=decision)])
    assert (await other.wait()).output_text == "Hello from B."
    assert team.done == (["A"] if decision == "approve" else [])
    assert {sender for _, _, sender in (await list_turn_events(other))[:-1]} == {"A", None} - (
        {None} if decision == "deny" else set()
    )


async def test_outside_result_belongs_to_asking_agent(cluster: EngineCluster, model: ScriptedModel) -> None:
    team = Team()
    engine = await cluster.begin(*team.agents)
    model.call("send", id="c1")
    await engine.run(options=RunOptions(execute_tools=False))
    await engine.sessions.update(KEY, agent="B")
    model.say("Hello from B.")
    await engine.runs.resume(KEY, "r1", tool_results=[ToolAnswer(tool_call_id="c1", content="sent")])
    assert (await engine.wait()).output_text == "Hello from B."
    assert await list_turn_events(engine) == [A_CALLS, A_ANSWERS, B_SAYS]
