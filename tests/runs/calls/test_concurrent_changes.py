"""What calls that run at once change in the context: the same as one after the other, and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from msgspec.structs import replace

from swarmkeep import Agent, Result, tool
from swarmkeep.decide.commands import create_session, start_run
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import Json, encode_text
from swarmkeep.events.facts import MessageAdded, RecordedEvent
from swarmkeep.events.state import State
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.approvals import make_approvals
from swarmkeep.runs.loop import make_loop
from swarmkeep.runs.swarm import MemorySessionLog
from swarmkeep.runs.tool_runners import ThreadRunner
from tests.runs.calls.doors import SECONDS, Doors, ask_for, list_results, wait_for_results
from tests.runs.cluster import (
    KEY,
    LIMITS,
    EngineCluster,
    make_start_run,
    open_session,
    read_log,
    read_state,
    wait_for_end,
)
from tests.runs.loop.memory import FixedPolicy, ScriptedReplies, make_calls
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


async def test_joint_changes_respect_context_limit(cluster: EngineCluster, model: ScriptedModel) -> None:
    doors = Doors()

    @tool(concurrent=True)
    async def fill(name: str) -> Result:
        await doors.pass_through(name)
        return Result("filled", context_variables={name: "." * 600})

    engine = await cluster.open_engine(
        Agent(name="A", functions=[fill], concurrent_tools=True), limits=replace(LIMITS, max_context_bytes=1000)
    )
    await open_session(engine)
    ask_for(model, "x", "y", function="fill")
    await engine.runs.start(KEY, make_start_run())
    await doors.wait_until_begun("x", "y")
    doors.open("y")
    await wait_for_results(engine, "y")
    model.say("Done.")
    doors.open("x")
    await wait_for_end(engine)
    assert list_results(await read_log(engine)) == [("y", "ok"), ("x", "error")]
    assert list((await read_state(engine)).context_variables) == ["y"]


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
        async for item in make_loop(log, registry, model, ThreadRunner(), FixedPolicy(), begun).advance():
            if isinstance(item, RecordedEvent) and isinstance(item.fact, MessageAdded):
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
