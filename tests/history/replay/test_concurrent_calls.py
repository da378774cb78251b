"""Conversations with calls that ran at once, against today's agents; and what a redaction takes out of them."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import UNSET

from swarmkeep import Agent, Refusal, tool
from swarmkeep.decide.commands import Approval, ToolAnswer
from swarmkeep.events.facts import ContextUpdated, MessageAdded, RecordedEvent
from swarmkeep.events.records import RunOptions
from swarmkeep.history.import_export import import_export
from swarmkeep.history.redact import redact
from swarmkeep.history.replay import replay, replay_session
from swarmkeep.history.verify import verify
from swarmkeep.runs.agents import Registry
from swarmkeep.store.records import SessionKey
from tests.history.exports import export_sessions
from tests.runs.calls.doors import Doors, ask_for, make_agent, wait_for_results
from tests.runs.cluster import KEY, EngineCluster, Server, kill_engine
from tests.support.scripted import Call, ScriptedModel

pytestmark = pytest.mark.one_database

NAMES = ("x", "y", "z")


async def run_in_order(
    cluster: EngineCluster, model: ScriptedModel, order: Sequence[str], agent: Agent, doors: Doors
) -> Server:
    """A conversation in which the calls x, y and z end in this order."""
    engine = await cluster.begin(agent)
    ask_for(model, *NAMES)
    model.say("Done.")
    await engine.start_run()
    await doors.wait_until_begun(*NAMES)
    for name in order:
        doors.open(name)
        await wait_for_results(engine, name)
    assert (await engine.wait()).status == "completed"
    return engine


def find_held(events: Sequence[RecordedEvent]) -> list[RecordedEvent]:
    """The results whose change had to wait."""
    return [
        event
        for event in events
        if isinstance(event.fact, MessageAdded) and event.fact.tool is not None and event.fact.tool.context is not UNSET
    ]


@pytest.mark.parametrize("order", list(itertools.permutations(NAMES)))
async def test_same_agents_match_in_any_order(
    cluster: EngineCluster, model: ScriptedModel, order: tuple[str, ...]
) -> None:
    doors = Doors()
    agent = make_agent(doors)
    engine = await run_in_order(cluster, model, order, agent, doors)
    replayed = await replay_session(engine.store, Registry([agent]), KEY)
    assert (replayed.divergences, replayed.turns) == ([], 2)
    # Each prefix, too, as a fork or a crash leaves it.
    events = await engine.read_log()
    for seq in range(1, len(events)):
        part = await asyncio.to_thread(replay, events[:seq], Registry([agent]), {}, ignore=["instructions", "tools"])
        assert part.divergences == []
    assert (await verify(engine.store, KEY)).valid


@pytest.mark.parametrize("at_once", [True, False])
async def test_concurrency_setting_is_no_difference(
    cluster: EngineCluster, model: ScriptedModel, at_once: bool
) -> None:
    doors = Doors()
    doors.open(*NAMES)
    agent = make_agent(doors).model_copy(update={"concurrent_tools": at_once})
    engine = await cluster.begin(agent)
    ask_for(model, *NAMES)
    model.say("Done.")
    await engine.start_run()
    await engine.wait()
    today = agent.model_copy(update={"concurrent_tools": not at_once})
    assert (await replay_session(engine.store, Registry([today]), KEY)).divergences == []


async def test_todays_differences_told_per_call(cluster: EngineCluster, model: ScriptedModel) -> None:
    doors = Doors()
    engine = await run_in_order(cluster, model, ("z", "x", "y"), make_agent(doors), doors)

    def refuse_x(call: dict[str, Any], context_variables: dict[str, Any]) -> Refusal | None:
        return Refusal("no x") if call["arguments"]["name"] == "x" else None

    today = make_agent(doors, guardrails=[refuse_x])
    replayed = await replay_session(engine.store, Registry([today]), KEY)
    assert [divergence.kind for divergence in replayed.divergences] == ["guardrail"]


@pytest.mark.parametrize("function", ["look", "again"])
async def test_killed_concurrent_calls_match(cluster: EngineCluster, model: ScriptedModel, function: str) -> None:
    doors = Doors()
    agent = make_agent(doors)
    one = await cluster.begin(agent)
    ask_for(model, *NAMES, function=function)
    await one.start_run()
    await doors.wait_until_begun(*NAMES)
    doors.open("y")
    await wait_for_results(one, "y")
    await kill_engine(one)
    doors.open(*NAMES)
    model.say("Done.")
    two = await cluster.open_engine(agent)
    await two.wait()
    assert (await replay_session(two.store, Registry([agent]), KEY)).divergences == []


@pytest.mark.parametrize("named", ["result", "change"])
async def test_redacting_change_or_result_takes_both(cluster: EngineCluster, model: ScriptedModel, named: str) -> None:
    doors = Doors()
    agent = make_agent(doors)
    engine = await run_in_order(cluster, model, ("z", "y", "x"), agent, doors)
    events = await engine.read_log()
    result = find_held(events)[0]
    change = next(
        event for event in events if isinstance(event.fact, ContextUpdated) and event.fact.tool_call_id == "z"
    )
    seq = result.seq if named == "result" else change.seq
    done = await redact(engine.store, KEY, [seq], "private")
    assert done.seqs == [result.seq, change.seq]
    left = "".join(event.payload for event in await engine.read_log() if event.seq in done.seqs)
    assert '"z":true' not in left
    assert (await verify(engine.store, KEY)).valid
    assert (await engine.read_state()).context_variables == {"x": True, "y": True}
    replayed = await replay_session(engine.store, Registry([agent]), KEY)
    assert replayed.divergences == []


@tool(concurrent=True)
def hand_over() -> Agent:
    return Agent(name="A")


async def test_cancel_leftovers_of_ended_calls_match(cluster: EngineCluster, model: ScriptedModel) -> None:
    doors = Doors()
    agent = make_agent(doors)
    agent = agent.model_copy(update={"functions": [*agent.functions, hand_over]})
    engine = await cluster.begin(agent)
    model.calls([Call("look", {"name": "x"}, "x"), Call("look", {"name": "y"}, "y"), Call("hand_over", {}, "h")])
    await engine.start_run()
    doors.open("y")
    await wait_for_results(engine, "y", "h")
    await engine.runs.cancel(KEY, "r1")
    log = await engine.read_log()
    assert [event.type for event in log[-3:]] == ["context.updated", "handoff.made", "run.cancelled"]
    for seq in range(1, len(log) + 1):
        part = await asyncio.to_thread(replay, log[:seq], Registry([agent]), {}, ignore=["instructions", "tools"])
        assert part.divergences == []


@tool(concurrent=True, requires_approval=True)
def pay() -> str:
    return "paid"


async def test_call_beside_waiting_approval_matches(cluster: EngineCluster, model: ScriptedModel) -> None:
    doors = Doors()
    doors.open("x")
    agent = make_agent(doors)
    agent = agent.model_copy(update={"functions": [*agent.functions, pay]})
    engine = await cluster.begin(agent)
    model.calls([Call("pay", {}, "p"), Call("look", {"name": "x"}, "x")])
    assert (await engine.run()).status == "waiting"
    replayed = await replay_session(engine.store, Registry([agent]), KEY)
    assert (replayed.divergences, replayed.turns) == ([], 1)


@pytest.mark.parametrize("here", [True, False])
async def test_imported_waiting_run_matches(cluster: EngineCluster, model: ScriptedModel, here: bool) -> None:
    agent = Agent(name="A", functions=[pay])
    engine = await cluster.begin(agent)
    model.calls([Call("pay", {}, "p")])
    assert (await engine.run(options=RunOptions(execute_tools=here))).status == "waiting"
    exported = await export_sessions(engine.store, KEY, alone=True)
    copy = SessionKey(KEY.tenant, "copy")
    await import_export(engine.store, KEY.tenant, io.BytesIO(exported), as_id=copy.id)
    assert (await replay_session(engine.store, Registry([agent]), copy)).divergences == []
    model.say("Done.")
    if here:
        await engine.runs.resume(copy, "r1", approvals=[Approval(tool_call_id="p", decision="approve")])
    else:
        await engine.runs.resume(copy, "r1", tool_results=[ToolAnswer(tool_call_id="p", content="paid")])
    assert (await engine.wait(key=copy)).status == "completed"
    replayed = await replay_session(engine.store, Registry([agent]), copy)
    assert (replayed.divergences, replayed.turns) == ([], 2)
