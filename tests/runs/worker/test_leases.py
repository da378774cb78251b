"""Leases: one server advances a session, renews its lease meanwhile, and records nothing once another took over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import delete

from swarmkeep import Agent
from swarmkeep.logs import OutageLog
from swarmkeep.runs.limits import Limits
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey, StoreUnavailable
from swarmkeep.store.tables import events
from tests.runs.cluster import (
    KEY,
    LIMITS,
    EngineCluster,
    ToolGate,
    expire_leases,
    kill_engine,
    list_contents,
    make_start_run,
    open_session,
    read_log,
    start_hanging_run,
    wait_for_end,
    wait_for_state,
    wait_until,
)
from tests.runs.worker.servers import AGENT, SECONDS, count_answers, make_gated_tool, open_engine, read_resume_reasons
from tests.support.scripted import ScriptedModel


async def test_remotely_advanced_runs_are_left_alone(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    await start_hanging_run(one, model, then="Hello.")
    two = await cluster.open_engine(AGENT)
    await two._worker.recovery.recover()
    assert not two._worker.is_advancing(KEY)
    model.release()
    assert (await wait_for_end(two)).output_text == "Hello."
    assert await read_resume_reasons(two) == []


async def test_server_never_takes_over_from_itself(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(cluster)
    await start_hanging_run(engine, model, then="Hello.")
    await expire_leases(engine)
    await engine._worker.recovery.recover()
    model.release()
    assert (await wait_for_end(engine)).output_text == "Hello."
    assert model.request_count == 1


async def test_of_many_servers_one_takes_over(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    await start_hanging_run(one, model)
    await kill_engine(one)
    model.hang(then="Hello.")
    engines = [await cluster.open_engine(AGENT, start=False) for _ in range(4)]
    await asyncio.gather(*(engine._worker.recovery.recover() for engine in engines))
    [heir] = [engine for engine in engines if engine._worker.is_advancing(KEY)]
    await model.wait_for_requests_async(2)
    model.release()
    assert (await wait_for_end(heir)).output_text == "Hello."
    assert await read_resume_reasons(one) == ["recovery"]
    assert model.request_count == 2


async def test_superseded_server_records_nothing_more(
    cluster: EngineCluster, model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    one = await open_engine(cluster)
    await start_hanging_run(one, model, then="From the grave.")
    waiting = asyncio.create_task(wait_for_end(one))
    # It is only slow, not dead; its lease runs out all the same.
    await expire_leases(one)
    model.call("look", {"city": "Oslo"}, id="c1", when=lambda request: count_answers(request) == 0)
    model.say("Alive.", when=lambda request: count_answers(request) == 1)
    two = await cluster.open_engine(AGENT)
    assert (await wait_for_end(two)).output_text == "Alive."
    before = await read_log(two)
    model.release()
    await wait_for_state(one, lambda state: not one._worker.is_advancing(KEY))
    assert await read_log(two) == before
    # Those who wait at the old server are given the new one's answer.
    assert (await waiting).output_text == "Alive."


async def test_zombie_stops_at_its_next_commit(
    cluster: EngineCluster, model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    one = await open_engine(cluster)
    await start_hanging_run(one, model, then="From the grave.")
    await expire_leases(one)
    gate = ToolGate()
    model.call("slow", id="c1")
    two = await cluster.open_engine(Agent(name="A", functions=[make_gated_tool(gate)]))
    await gate.wait_until_reached()
    model.release()
    await wait_for_state(one, lambda state: not one._worker.is_advancing(KEY))
    assert "by another process" in caplog.text
    model.say("Alive.")
    await gate.open()
    assert list_contents((await wait_for_end(two)).messages)[-2:] == ["ok", "Alive."]


async def test_stopping_zombie_spares_the_new_run(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    await start_hanging_run(one, model)
    await expire_leases(one)
    model.hang(then="Alive.")
    two = await cluster.open_engine(AGENT)
    await model.wait_for_requests_async(2)
    await one.drain()
    model.release()
    view = await wait_for_end(two)
    assert (view.status, view.output_text) == ("completed", "Alive.")


async def test_leases_are_renewed_during_runs(
    cluster: EngineCluster, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = asyncio.Event()
    renew = SqlStore.renew

    async def noticed(self: SqlStore, leases: Any, *, lease_seconds: float) -> set[SessionKey]:
        lost = await renew(self, leases, lease_seconds=lease_seconds)
        renewed.set()
        return lost

    monkeypatch.setattr(SqlStore, "renew", noticed)
    engine = await open_engine(cluster, limits=Limits(lease_seconds=0.03, grace_seconds=0.05, poll_seconds=0.01))
    await start_hanging_run(engine, model, then="Hello.")
    async with asyncio.timeout(SECONDS):
        await renewed.wait()
    model.release()
    assert (await wait_for_end(engine)).status == "completed"
    assert await read_resume_reasons(engine) == []


async def test_server_finds_abandoned_runs_itself(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    await start_hanging_run(one, model)
    two = await cluster.open_engine(AGENT, limits=Limits(lease_seconds=0.15, grace_seconds=0.05, poll_seconds=0.01))
    model.say("Hello.")
    await kill_engine(one)
    view = await wait_for_end(two)
    assert (view.status, view.output_text) == ("completed", "Hello.")


async def test_database_failures_do_not_end_lease_care(
    cluster: EngineCluster, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried, mended = asyncio.Event(), asyncio.Event()
    abandoned = SqlStore.find_abandoned

    async def failing(self: SqlStore, *, limit: int = 100) -> list[SessionKey]:
        if not mended.is_set():
            tried.set()
            raise StoreUnavailable("the database went away")
        return await abandoned(self, limit=limit)

    outage_log = OutageLog(settled_seconds=0)
    monkeypatch.setattr("swarmkeep.runs.loop.outage_log", outage_log)
    monkeypatch.setattr("swarmkeep.runs.recovery.outage_log", outage_log)
    one = await open_engine(cluster)
    await start_hanging_run(one, model)
    two = await cluster.open_engine(AGENT, limits=Limits(lease_seconds=0.03, grace_seconds=0.05, poll_seconds=0.01))
    monkeypatch.setattr(SqlStore, "find_abandoned", failing)
    async with asyncio.timeout(SECONDS):
        await tried.wait()
    model.say("Hello.")
    await kill_engine(one)
    mended.set()
    assert (await wait_for_end(two)).status == "completed"
    assert caplog.text.count("the database cannot be used: the database went away") == 1
    await wait_until(lambda: caplog.text.count("the database answers again, after ") == 1)


async def test_unreadable_sessions_do_not_hide_others(
    cluster: EngineCluster, model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    one = await cluster.open_engine(AGENT)
    # They are found in the order of their ids, so the last one would never be.
    keys = [await open_session(one, SessionKey(KEY.tenant, f"s{number}")) for number in range(6)]
    for key in keys:
        model.hang()
        await one.runs.start(key, make_start_run())
    await model.wait_for_requests_async(len(keys))
    await kill_engine(one)
    damaged = [key.id for key in keys[:-1]]
    damage = delete(events).where(events.c.session_id.in_(damaged), events.c.seq == 3)
    await one.store.database.write(lambda connection: connection.execute(damage))  # type: ignore[attr-defined]
    model.say("Hello.")
    two = await cluster.open_engine(AGENT, limits=replace(LIMITS, recovery_sessions=2))
    assert (await wait_for_end(two, key=keys[-1])).output_text == "Hello."
    complaints = [name for name in damaged if f"session {name}: what is stored is not what was recorded" in caplog.text]
    assert complaints == damaged
