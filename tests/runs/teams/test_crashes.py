"""Servers end while one agent asks another: others go on with both, and nobody is asked twice."""

from __future__ import annotations

import pytest

from swarmkeep.decide.commands import Approval
from swarmkeep.decide.drafts import draft_events
from swarmkeep.decide.turns import end_run
from swarmkeep.events.errors import RunNotWaiting
from swarmkeep.events.facts import RunCancelled, RunInterrupted, StopReason, ToolStarted
from swarmkeep.history.redact import redact
from swarmkeep.history.replay import replay_session
from swarmkeep.runs.engine import Engine
from swarmkeep.runs.identifiers import derive_child_run
from tests.runs.cluster import (
    KEY,
    EngineCluster,
    ToolGate,
    expire_leases,
    kill_engine,
    make_start_run,
    open_session,
    read_log,
    read_state,
    read_types,
    run_to_end,
    wait_for_end,
    wait_for_state,
)
from tests.runs.teams.team import ask_for_payment, ask_hanging_clerk, find_child, open_team
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database


async def test_taken_over_asker_reuses_the_answer(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()

    def look() -> str:
        gate.enter()
        return "rain"

    one = await open_team(cluster, look)
    await open_session(one)
    model.call("ask_clerk", {"input": "Weather?"}, id="c1")
    model.call("look", {}, id="l1")
    await one.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    child = await find_child(one)
    await kill_engine(one)
    # The call that was cut off is told to be of unknown outcome; the asked agent makes something of that.
    model.say("I do not know.")
    model.say("Nobody knows.")
    two = await open_team(cluster, look)
    view = await wait_for_end(two)
    assert view.output_text == "Nobody knows."
    assert await find_child(two) == child
    assert [event.fact.attempt for event in await read_log(two) if isinstance(event.fact, ToolStarted)] == [1]
    assert "unknown_outcome" not in [entry.tool.status for entry in (await read_state(two)).messages if entry.tool]
    await gate.open()


async def test_asked_run_continues_on_another_server(cluster: EngineCluster, model: ScriptedModel) -> None:
    one, child = await ask_hanging_clerk(cluster, model)
    # Its server loses the one that is asked, and keeps the one that asks.
    two = await open_team(cluster)
    one._worker.tasks.abandon(child)
    await expire_leases(one)
    model.say("Yes.")
    model.say("Yes, it is.")
    await two._worker.recovery.recover()
    view = await wait_for_end(two)
    assert view.output_text == "Yes, it is."
    assert (await read_types(two, child)).count("message.added") == 2


async def test_cancelled_askers_child_is_not_continued(cluster: EngineCluster, model: ScriptedModel) -> None:
    one, child = await ask_hanging_clerk(cluster, model)
    # As if its server had died between the two cancels.
    one.runs.children = None
    await one.runs.cancel(KEY, "r1")
    await kill_engine(one)
    two = await open_team(cluster)
    state = await wait_for_state(two, lambda state: state.run is None, child)
    assert [run.status for run in state.finished] == ["cancelled"]


async def test_stopping_server_leaves_both_resumable(cluster: EngineCluster, model: ScriptedModel) -> None:
    one, child = await ask_hanging_clerk(cluster, model)
    await one.drain()
    assert [run.status for run in (await read_state(one)).finished] == ["interrupted"]
    assert [run.status for run in (await read_state(one, child)).finished] == ["interrupted"]
    two = await open_team(cluster)
    model.say("Yes.")
    model.say("Yes, it is.")
    await two.runs.resume(KEY, "r1")
    assert (await wait_for_end(two)).output_text == "Yes, it is."
    assert [run.status for run in (await read_state(two, child)).finished] == ["completed"]


async def stop_above(engine: Engine, ending: type[RunInterrupted | RunCancelled], reason: StopReason) -> None:
    """Record that the run above ended, as a server does that dies before it has ended the one below."""
    state = await read_state(engine)
    assert state.run is not None
    await engine.store.append(KEY, state, draft_events("Desk", end_run(state, state.run, ending, reason), "r1"))


async def test_superseded_interrupted_run_frees_child_waiters(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_for_payment(cluster, model)
    await stop_above(engine, RunInterrupted, "interrupted")
    assert (await read_state(engine, child)).status == "waiting"
    model.say("Hello.")
    await run_to_end(engine, run_id="r2")
    assert (await engine.reader.get_run(child, derive_child_run(child))).status == "cancelled"


async def test_ended_caller_grants_no_approval(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_for_payment(cluster, model)
    await stop_above(engine, RunCancelled, "cancelled")
    approval = Approval(tool_call_id="p1", decision="approve")
    with pytest.raises(RunNotWaiting):
        await engine.runs.resume(child, derive_child_run(child), approvals=[approval])
    assert (await read_types(engine, child))[-1] == "run.cancelled"


@pytest.mark.parametrize("is_asked", [True, False])
async def test_redacted_call_gets_its_original_answer(
    cluster: EngineCluster, model: ScriptedModel, is_asked: bool
) -> None:
    one, child = await ask_hanging_clerk(cluster, model)
    await one.drain()
    await redact(one.store, KEY, [event.seq for event in await read_log(one)], "private")
    two = await open_team(cluster)
    if is_asked:
        model.say("Yes.")
    else:
        await one.sessions.delete(child, force=True)
    model.say("Yes, it is.")
    await two.runs.resume(KEY, "r1")
    assert (await wait_for_end(two)).output_text == "Yes, it is."
    given = model.requests[-1]["messages"][-1]["content"]
    lost = "Error: agent 'Clerk', asked by ask_clerk, could not be asked: what it was to be asked was redacted"
    assert given == ("Yes." if is_asked else lost)
    assert (await replay_session(two.store, two.registry, KEY)).divergences == []
