"""A server ends while calls run at once: another goes on with those whose results are missing."""

from __future__ import annotations

import pytest

from tests.runs.calls.doors import (
    Doors,
    ask_for,
    find_sent_results,
    list_results,
    list_starts,
    make_agent,
    wait_for_results,
)
from tests.runs.cluster import (
    KEY,
    EngineCluster,
    kill_engine,
    make_start_run,
    open_session,
    read_log,
    read_state,
    read_types,
    wait_for_end,
)
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


@pytest.mark.parametrize("ended", [(), ("x",), ("y",), ("z",), ("z", "x"), ("y", "z"), ("x", "y")])
@pytest.mark.parametrize("function", ["look", "again"])
async def test_kill_between_results_runs_remaining_calls(
    cluster: EngineCluster, model: ScriptedModel, ended: tuple[str, ...], function: str
) -> None:
    doors = Doors()
    agent = make_agent(doors)
    one = await cluster.open_engine(agent)
    await open_session(one)
    ask_for(model, "x", "y", "z", function=function)
    await one.runs.start(KEY, make_start_run())
    await doors.wait_until_begun("x", "y", "z")
    for name in ended:
        doors.open(name)
        await wait_for_results(one, name)
    await kill_engine(one)
    doors.open("x", "y", "z")
    model.say("Done.")
    two = await cluster.open_engine(agent)
    assert (await wait_for_end(two)).status == "completed"
    lost = [name for name in ("x", "y", "z") if name not in ended]
    may_repeat = function == "again"
    events = await read_log(two)
    assert list_starts(events)[3:] == ([(name, 2) for name in lost] if may_repeat else [])
    outcome = "ok" if may_repeat else "unknown_outcome"
    assert dict(list_results(events)) == {name: "ok" if name in ended else outcome for name in ("x", "y", "z")}
    assert len(list_results(events)) == 3
    begun = {name: doors.begun.count(name) for name in ("x", "y", "z")}
    assert begun == {name: 2 if may_repeat and name in lost else 1 for name in ("x", "y", "z")}
    made = [name for name in ("x", "y", "z") if name in ended or may_repeat]
    expected = {**dict.fromkeys(made, True), **({"last": made[-1]} if made else {})}
    assert (await read_state(two)).context_variables == expected
    assert find_sent_results(model) == ["x", "y", "z"]


async def test_stopped_server_interrupts_all_and_resume_continues(cluster: EngineCluster, model: ScriptedModel) -> None:
    doors = Doors()
    agent = make_agent(doors)
    one = await cluster.open_engine(agent)
    await open_session(one)
    ask_for(model, "x", "y", function="again")
    await one.runs.start(KEY, make_start_run())
    await doors.wait_until_begun("x", "y")
    doors.open("y")
    await wait_for_results(one, "y")
    await one.stop()
    assert doors.cancelled == ["x"]
    doors.open("x")
    model.say("Done.")
    two = await cluster.open_engine(agent)
    assert (await read_types(two))[-2:] == ["context.updated", "run.interrupted"]
    await two.runs.resume(KEY, "r1")
    assert (await wait_for_end(two)).status == "completed"
    assert (await read_state(two)).context_variables == {"x": True, "y": True, "last": "x"}
