"""Calls of one reply that run at once, on stored sessions: starts, results, changes, cancels, limits and crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmkeep import Agent, Refusal, Result, tool
from swarmkeep.decide.commands import Approval, ToolAnswer, create_session, start_run
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import Json, encode_text
from swarmkeep.events.facts import MessageAdded, RecordedEvent
from swarmkeep.events.records import CallerFunction, CallerTool, RunOptions
from swarmkeep.events.state import State
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.approvals import make_approvals
from swarmkeep.runs.calls import runs_alone
from swarmkeep.runs.loop import make_loop
from swarmkeep.runs.swarm import MemorySessionLog
from swarmkeep.runs.tool_runners import ThreadRunner
from swarmkeep.store.records import SessionKey
from tests.decide import test_concurrent_calls as decided
from tests.events.given import active_run
from tests.runs.calls.doors import (
    SECONDS,
    Doors,
    ask_for,
    find_sent_results,
    list_results,
    list_starts,
    make_agent,
    wait_for_results,
)
from tests.runs.cluster import KEY, LIMITS, EngineCluster, kill_engine, make_start_run
from tests.runs.loop.memory import FixedPolicy, ScriptedReplies, make_calls
from tests.support.scripted import Call, ScriptedModel

pytestmark = pytest.mark.one_database


async def test_concurrent_results_are_recorded_as_they_come(cluster: EngineCluster, model: ScriptedModel) -> None:
    doors = Doors()
    engine = await cluster.begin(make_agent(doors))
    ask_for(model, "x", "y", "z")
    model.say("Done.")
    await engine.start_run()
    await doors.wait_until_begun("x", "y", "z")
    for name in ("z", "x", "y"):
        doors.open(name)
        await wait_for_results(engine, name)
    assert (await engine.wait()).output_text == "Done."
    assert list_starts(await engine.read_log()) == [("x", 1), ("y", 1), ("z", 1)]
    assert [call_id for call_id, _ in list_results(await engine.read_log())] == ["z", "x", "y"]
    assert find_sent_results(model) == ["x", "y", "z"]
    assert (await engine.read_state()).context_variables == {"x": True, "y": True, "z": True, "last": "z"}
    # Each saw the context as it was when they began.
    results = [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "tool"]
    assert results == ["x saw []", "y saw []", "z saw []"]


@pytest.mark.parametrize("agent_says_so", [True, False])
async def test_undeclared_calls_run_sequentially(
    cluster: EngineCluster, model: ScriptedModel, agent_says_so: bool
) -> None:
    order: list[str] = []

    async def step(name: str) -> str:
        order.append(f"{name} begins")
        await asyncio.sleep(0)
        order.append(f"{name} ends")
        return name

    function = step if agent_says_so else tool(step, concurrent=True)
    engine = await cluster.begin(Agent(name="A", functions=[function], concurrent_tools=agent_says_so))
    model.calls([Call("step", {"name": "x"}), Call("step", {"name": "y"})])
    model.say("Done.")
    await engine.run()
    assert order == ["x begins", "x ends", "y begins", "y ends"]


async def test_cancel_stops_all_and_keeps_finished(cluster: EngineCluster, model: ScriptedModel) -> None:
    doors = Doors()
    engine = await cluster.begin(make_agent(doors))
    ask_for(model, "x", "y", "z")
    await engine.start_run()
    await doors.wait_until_begun("x", "y", "z")
    doors.open("y")
    await wait_for_results(engine, "y")
    await engine.runs.cancel(KEY, "r1")
    assert (await engine.wait()).status == "cancelled"
    await doors.wait_until_cancelled("x", "z")
    assert "y" not in doors.cancelled
    assert list_results(await engine.read_log()) == [("y", "ok")]
    assert (await engine.read_state()).context_variables == {"y": True, "last": "y"}
    # The next run's model gets a result for each.
    model.say("Again.")
    assert (await engine.run(run_id="r2")).status == "completed"
    assert find_sent_results(model) == ["x", "y", "z"]


async def test_each_has_its_own_time_limit(cluster: EngineCluster, model: ScriptedModel) -> None:
    doors = Doors()
    doors.open("quick")
    engine = await cluster.begin(make_agent(doors, timeout=0.05))
    # The quick one has as much time as it likes: on a busy machine it may take longer than the slow one may.
    model.calls([Call("look", {"name": "slow"}, id="slow"), Call("again", {"name": "quick"}, id="quick")])
    model.say("Done.")
    await engine.run()
    assert dict(list_results(await engine.read_log())) == {"quick": "ok", "slow": "timeout"}
    assert (await engine.read_state()).context_variables == {"quick": True, "last": "quick"}


async def test_run_deadline_ends_every_call(cluster: EngineCluster, model: ScriptedModel) -> None:
    doors = Doors()
    # On a busy machine the time may be up before they begin.
    for seconds in (0.3, 3, 30):
        key = SessionKey(KEY.tenant, f"s{seconds}")
        engine = await cluster.open_engine(make_agent(doors), limits=replace(LIMITS, run_seconds=seconds))
        await engine.open_session(key)
        ask_for(model, "x", "y")
        run = await engine.run(key=key)
        if doors.begun:
            break
    assert (run.status, run.error and run.error.code) == ("failed", "run_timeout")
    assert list_results(await engine.read_log(key)) == [("x", "timeout"), ("y", "timeout")]


async def test_one_call_error_spares_the_others(cluster: EngineCluster, model: ScriptedModel) -> None:
    @tool(concurrent=True)
    async def fail() -> str:
        raise ValueError("no")

    doors = Doors()
    doors.open("x")
    agent = make_agent(doors)
    agent.functions.append(fail)
    engine = await cluster.begin(agent)
    model.calls([Call("fail", id="f"), Call("look", {"name": "x"}, id="x"), Call("look", "{", id="odd")])
    model.say("Done.")
    assert (await engine.run()).status == "completed"
    assert dict(list_results(await engine.read_log())) == {"f": "error", "x": "ok", "odd": "error"}


async def test_guardrail_refuses_only_its_call(cluster: EngineCluster, model: ScriptedModel) -> None:
    doors = Doors()
    doors.open("x", "y")

    def refuse_y(call: Json, context_variables: Json) -> Refusal | None:
        return Refusal("not y") if call["arguments"]["name"] == "y" else None

    engine = await cluster.begin(make_agent(doors, guardrails=[refuse_y]))
    ask_for(model, "x", "y")
    model.say("Done.")
    await engine.run()
    assert dict(list_results(await engine.read_log())) == {"x": "ok", "y": "refused"}
    assert doors.begun == ["x"]


async def test_concurrency_works_with_approvals_and_caller_functions(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    doors = Doors()
    doors.open("x", "y", "late")
    agent = make_agent(doors)

    @tool(concurrent=True, requires_approval=True)
    async def buy(name: str) -> Result:
        await doors.pass_through(name)
        return Result("bought", context_variables={"last": "bought"})

    agent.functions.append(buy)
    engine = await cluster.begin(agent)
    model.calls(
        [
            Call("look", {"name": "x"}, id="x"),
            Call("theirs", {}, id="t"),
            Call("buy", {"name": "late"}, id="b"),
            Call("look", {"name": "y"}, id="y"),
        ]
    )
    options = RunOptions(tools=(CallerTool(function=CallerFunction(name="theirs")),))
    run = await engine.run(options=options)
    assert [call.tool_call_id for call in run.pending] == ["b", "t"]
    assert dict(list_results(await engine.read_log())) == {"x": "ok", "y": "ok"}
    assert (await engine.read_state()).context_variables == {"x": True, "last": "x"}
    model.say("Done.")
    await engine.runs.resume(
        KEY,
        "r1",
        tool_results=[ToolAnswer(tool_call_id="t", content="theirs")],
        approvals=[Approval(tool_call_id="b", decision="approve")],
    )
    assert (await engine.wait()).status == "completed"
    assert (await engine.read_state()).context_variables == {"x": True, "y": True, "last": "y"}
    assert find_sent_results(model) == ["x", "t", "b", "y"]


def test_call_behind_unfinished_one_runs_not_alone() -> None:
    state, _ = decided.ask_for("look", "ask", guarded=("look",))
    first, second = active_run(state).calls
    assert not runs_alone(active_run(state), second)
    assert not runs_alone(active_run(state), first)
    state, _ = decided.ask_for("look")
    assert runs_alone(active_run(state), active_run(state).calls[0])


# What calls that run at once change in the context: the same as one after the other, and bounded.


async def test_joint_changes_respect_context_limit(cluster: EngineCluster, model: ScriptedModel) -> None:
    doors = Doors()

    @tool(concurrent=True)
    async def fill(name: str) -> Result:
        await doors.pass_through(name)
        return Result("filled", context_variables={name: "." * 600})

    engine = await cluster.begin(
        Agent(name="A", functions=[fill], concurrent_tools=True), limits=replace(LIMITS, max_context_bytes=1000)
    )
    ask_for(model, "x", "y", function="fill")
    await engine.start_run()
    await doors.wait_until_begun("x", "y")
    doors.open("y")
    await wait_for_results(engine, "y")
    model.say("Done.")
    doors.open("x")
    await engine.wait()
    assert list_results(await engine.read_log()) == [("y", "ok"), ("x", "error")]
    assert list((await engine.read_state()).context_variables) == ["y"]


def set_value(context: Json) -> None:
    context["a"] = "new"


def set_inner(context: Json) -> None:
    context["cart"]["apples"] = 5


def put_object(context: Json) -> None:
    context["cart"] = {"pears": 1}


def remove(context: Json) -> None:
    context.pop("b", None)


def return_same(context: Json) -> Result:
    return Result("same", context_variables={"a": "old"})


def return_object(context: Json) -> Result:
    return Result("object", context_variables={"cart": {"plums": None}, "b": 3})


CHANGES: dict[str, Callable[[Json], Result | None]] = {
    function.__name__: function for function in (set_value, set_inner, put_object, remove, return_same, return_object)
}

SUBSETS = st.lists(st.sampled_from(sorted(CHANGES)), min_size=2, max_size=4)
START: Json = {"a": "old", "b": 1, "cart": {"apples": 1, "nuts": 2}}


async def run_changes(names: Sequence[str], order: Sequence[int], *, at_once: bool) -> State:
    """The state after calls to these functions that end in this order, or that run one after the other."""
    doors = {str(place): asyncio.Event() for place in range(len(names))}
    opening = iter(map(str, order))

    def open_next() -> None:
        for place in islice(opening, 1 if at_once else None):
            doors[place].set()

    @tool(concurrent=True)
    async def change(place: str, name: str, context_variables: dict[str, Any]) -> Any:
        await doors[place].wait()
        return CHANGES[name](context_variables) or "changed"

    agent = Agent(name="A", functions=[change], concurrent_tools=at_once)
    registry = Registry([agent])
    log = MemorySessionLog(approvals=make_approvals(registry))
    await log.commit(lambda state: draft_events("A", create_session("A", START, {}, []), None))
    begun = await log.commit(lambda state: start_run(state, make_start_run()))
    calls = ((str(place), "change", encode_text({"place": place, "name": name})) for place, name in enumerate(names))
    model = ScriptedReplies(make_calls(*calls), "Done.")
    async with asyncio.timeout(SECONDS):
        async for items in make_loop(log, registry, model, ThreadRunner(), FixedPolicy(), begun).advance():
            if any(isinstance(item, RecordedEvent) and isinstance(item.fact, MessageAdded) for item in items):
                open_next()
    return log.state


@for_all(names=SUBSETS, data=st.data())
def test_concurrent_changes_equal_sequential_ones(names: list[str], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(names))))
    one = asyncio.run(run_changes(names, order, at_once=True))
    other = asyncio.run(run_changes(names, range(len(names)), at_once=False))
    assert one.context_variables == other.context_variables
    assert one.finished[-1].status == other.finished[-1].status == "completed"
    ended = [int(entry.message["tool_call_id"]) for entry in one.messages if entry.role == "tool"]
    assert ended == list(order)


# A server ends while calls run at once: another goes on with those whose results are missing.


@pytest.mark.parametrize("ended", [(), ("x",), ("y",), ("z",), ("z", "x"), ("y", "z"), ("x", "y")])
@pytest.mark.parametrize("function", ["look", "again"])
async def test_kill_between_results_runs_remaining_calls(
    cluster: EngineCluster, model: ScriptedModel, ended: tuple[str, ...], function: str
) -> None:
    doors = Doors()
    agent = make_agent(doors)
    one = await cluster.begin(agent)
    ask_for(model, "x", "y", "z", function=function)
    await one.start_run()
    await doors.wait_until_begun("x", "y", "z")
    for name in ended:
        doors.open(name)
        await wait_for_results(one, name)
    await kill_engine(one)
    doors.open("x", "y", "z")
    model.say("Done.")
    two = await cluster.open_engine(agent)
    assert (await two.wait()).status == "completed"
    lost = [name for name in ("x", "y", "z") if name not in ended]
    may_repeat = function == "again"
    events = await two.read_log()
    assert list_starts(events)[3:] == ([(name, 2) for name in lost] if may_repeat else [])
    outcome = "ok" if may_repeat else "unknown_outcome"
    assert dict(list_results(events)) == {name: "ok" if name in ended else outcome for name in ("x", "y", "z")}
    assert len(list_results(events)) == 3
    begun = {name: doors.begun.count(name) for name in ("x", "y", "z")}
    assert begun == {name: 2 if may_repeat and name in lost else 1 for name in ("x", "y", "z")}
    made = [name for name in ("x", "y", "z") if name in ended or may_repeat]
    expected = {**dict.fromkeys(made, True), **({"last": made[-1]} if made else {})}
    assert (await two.read_state()).context_variables == expected
    assert find_sent_results(model) == ["x", "y", "z"]
