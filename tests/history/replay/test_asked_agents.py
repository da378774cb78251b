"""Conversations in which agents asked others, replayed: what was recorded stands in, and nobody is asked again."""

from __future__ import annotations

from swarmkeep import Agent
from swarmkeep.decide.commands import Approval
from swarmkeep.history.replay import replay_session
from swarmkeep.runs.identifiers import derive_child_run
from tests.runs.cluster import KEY, EngineCluster
from tests.runs.teams.team import ask_clerk, ask_for_payment, find_child, make_team, open_team
from tests.support.scripted import ScriptedModel


async def test_session_and_its_child_match(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_team(cluster)
    await engine.open_session(context_variables={"user": "Ada"})
    model.call("ask_clerk", {"input": "Note it."}, id="c1")
    model.call("note", {"text": "late"}, id="n1")
    model.say("Done.")
    model.say("It is noted.")
    await engine.run()
    for key, turns in ((KEY, 2), (await find_child(engine), 2)):
        replayed = await replay_session(engine.store, engine.registry, key)
        assert (replayed.divergences, replayed.turns) == ([], turns)


async def test_run_awaiting_child_decision_replays_alike(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine, child = await ask_for_payment(cluster, model)
    model.say("Paid.")
    model.say("It is paid.")
    run_id = derive_child_run(child)
    await engine.runs.resume(child, run_id, approvals=[Approval(tool_call_id="p1", decision="approve")])
    await engine.wait()
    replayed = await replay_session(engine.store, engine.registry, KEY)
    assert (replayed.divergences, replayed.turns) == ([], 2)


async def test_missing_function_is_told(cluster: EngineCluster, model: ScriptedModel) -> None:
    await ask_clerk(cluster, model)
    other = await cluster.open_engine(Agent(name="Desk"))
    kinds = [each.kind for each in (await replay_session(other.store, other.registry, KEY)).divergences]
    assert "missing_tool" in kinds
    assert make_team().tools().keys() == {"ask_clerk"}
