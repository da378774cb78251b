"""What a server's own tasks log about a session says which one, and which run, in fields of its own."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from sqlalchemy import delete

from swarmkeep import Agent
from swarmkeep.store.records import SessionKey
from swarmkeep.store.tables import events
from tests.runs.cluster import KEY, LIMITS, EngineCluster, expire_leases, kill_engine
from tests.support.log_lines import read_log_lines
from tests.support.scripted import ScriptedModel

pytestmark = pytest.mark.one_database

AGENT = Agent(name="A")


async def test_taken_over_run_is_named_in_log(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await cluster.begin(AGENT)
    model.hang()
    position = await one.start_run()
    await model.wait_for_requests_async(1)
    with read_log_lines() as lines:
        await expire_leases(one)
        model.say("Alive.")
        two = await cluster.open_engine(AGENT)
        await two.wait()
        await one.wait_for_state(lambda state: not one._worker.is_advancing(KEY))
    about = {"tenant": KEY.tenant, "session_id": KEY.id}
    (taken,) = lines.read("swarmkeep.runs.recovery")
    assert {**about, "run_id": position.run_id}.items() <= taken.items()
    (lost,) = lines.read("swarmkeep.runs.worker")
    assert about.items() <= lost.items()
    assert "by another process" in lost["message"]


async def test_failing_run_logs_a_line(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await cluster.begin(AGENT)
    with read_log_lines() as lines:
        model.fail(401, message="no such key")
        view = await engine.run()
    (line,) = lines.read("swarmkeep.runs.policy")
    assert {"level": "warning", "session_id": KEY.id, "run_id": view.id}.items() <= line.items()
    assert line["message"] == f"session {KEY.id}: the run failed (provider_authentication): no such key"


async def test_failed_takeover_names_the_session(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await cluster.open_engine(AGENT)
    keys = [await one.open_session(SessionKey(KEY.tenant, name)) for name in ("damaged", "whole")]
    for key in keys:
        model.hang()
        await one.start_run(key=key)
    await model.wait_for_requests_async(2)
    await kill_engine(one)
    damage = delete(events).where(events.c.session_id == "damaged", events.c.seq == 3)
    await one.store.database.write(lambda connection: connection.execute(damage))  # type: ignore[attr-defined]
    model.say("Hello.")
    with read_log_lines() as lines:
        two = await cluster.open_engine(AGENT, limits=replace(LIMITS, recovery_sessions=2))
        await two.wait(key=keys[1])
    assert [line["session_id"] for line in lines.read("swarmkeep.runs.recovery")] == ["whole"]
    (found,) = lines.read("swarmkeep.store.log")
    assert (found["session_id"], found["tenant"]) == ("damaged", KEY.tenant)
    assert "it is set aside" in found["message"]
    assert "run_id" not in found
