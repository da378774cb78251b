"""What a server does on its way out: its runs end or are interrupted, and its queue is left to others."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from openai import AsyncOpenAI

from swarmkeep import Agent
from swarmkeep.events.errors import Draining
from swarmkeep.events.state import State
from swarmkeep.models.model import ChatModel, Pauses, Retries
from swarmkeep.runs.limits import Limits
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, LIMITS, EngineCluster, ToolGate, list_contents
from tests.runs.worker.servers import AGENT, SECONDS, make_gated_tool, open_engine, read_resume_reasons
from tests.support.scripted import ScriptedModel
from tests.support.waiting import wait_until

pytestmark = pytest.mark.one_database


async def test_stopping_server_lets_runs_end(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(cluster, limits=Limits(lease_seconds=30, grace_seconds=SECONDS))
    await engine.start_hanging_run(model, then="Hello.")
    stopping = asyncio.create_task(engine.drain())
    await wait_until(lambda: engine.runs.is_draining)
    with pytest.raises(Draining):
        await engine.start_run(run_id="r2")
    model.release()
    await stopping
    assert (await engine.reader.get_run(KEY, "r1")).output_text == "Hello."


async def test_run_past_grace_continues_elsewhere(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    await one.start_hanging_run(model)
    waiting = asyncio.create_task(one.wait())
    await one.drain()
    view = await waiting
    assert (view.status, view.stop_reason) == ("interrupted", "interrupted")
    assert (view.error.code, view.error.retryable) == ("draining", True)
    await model.wait_for_disconnects_async(1)
    two = await cluster.open_engine(AGENT)
    model.say("Hello.")
    await two.runs.resume(KEY, "r1")
    view = await two.wait()
    assert (view.status, view.error) == ("completed", None)


async def test_stop_during_read_answers_wait(
    cluster: EngineCluster, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await open_engine(cluster)
    await one.start_hanging_run(model)
    read = one.store.state

    async def stop_after_read(key: SessionKey, *, fresh: bool = True) -> State:
        state = await read(key, fresh=fresh)
        monkeypatch.undo()
        await one.drain()
        return state

    monkeypatch.setattr(one.store, "state", stop_after_read)
    assert (await one.wait()).status == "interrupted"
    await model.wait_for_disconnects_async(1)


async def test_retry_wait_is_interrupted_by_stop(
    cluster: EngineCluster, model: ScriptedModel, async_client: AsyncOpenAI
) -> None:
    pauses = Pauses()
    patient = ChatModel(async_client, Retries(count=1), pauses.wait)
    # Longer than the test may take: if it were waited for, this would fail.
    limits = replace(LIMITS, grace_seconds=3600)
    one = await cluster.begin(AGENT, model=patient, limits=limits, pauses=pauses)
    model.fail(429, headers={"retry-after": "50"})
    await one.start_run()
    await model.wait_for_requests_async(1)
    async with asyncio.timeout(SECONDS):
        await one.drain()
    view = await one.reader.get_run(KEY, "r1")
    assert (view.status, view.error and view.error.code) == ("interrupted", "draining")
    two = await cluster.open_engine(AGENT)
    model.say("Hello.")
    await two.runs.resume(KEY, "r1")
    assert (await two.wait()).output_text == "Hello."


async def test_blocking_tool_does_not_delay_stop(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()
    agent = Agent(name="A", functions=[make_gated_tool(gate)])
    one = await open_engine(cluster, agent)
    model.call("slow", id="c1")
    await one.start_run(gate=gate)
    async with asyncio.timeout(SECONDS):
        await one.drain()
    assert not gate.passed.is_set()
    two = await cluster.open_engine(agent)
    model.say("I see.")
    await two.runs.resume(KEY, "r1")
    view = await two.wait()
    assert "had been started when the process stopped" in list_contents(view.messages)[2]
    await gate.open()
    assert gate.count == 1


async def test_stopping_server_starts_no_queued_run(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster, limits=Limits(lease_seconds=30, grace_seconds=SECONDS, poll_seconds=0.02))
    await one.start_hanging_run(model, then="One.")
    for run_id in ("r2", "r3"):
        await one.start_run(run_id, run_id, on_busy="queue")
    stopping = asyncio.create_task(one.drain())
    await wait_until(lambda: one.runs.is_draining)
    model.release()
    await stopping
    assert [(await one.reader.get_run(KEY, run_id)).status for run_id in ("r1", "r2", "r3")] == [
        "completed", "queued", "queued",
    ]  # fmt: skip
    # Nobody has to wait for a lease: there is none.
    model.say("Two.")
    model.say("Three.")
    two = await cluster.open_engine(AGENT)
    assert [(await two.wait(run_id)).output_text for run_id in ("r2", "r3")] == ["Two.", "Three."]


async def test_cancel_on_stopping_server_leaves_queue(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster, limits=Limits(lease_seconds=30, grace_seconds=SECONDS, poll_seconds=0.02))
    await one.start_hanging_run(model)
    await one.start_run("next", "r2", on_busy="queue")
    stopping = asyncio.create_task(one.drain())
    await wait_until(lambda: one.runs.is_draining)
    await one.runs.cancel(KEY, "r1")
    await stopping
    assert (await one.reader.get_run(KEY, "r2")).status == "queued"
    model.say("Two.")
    two = await cluster.open_engine(AGENT)
    assert (await two.wait("r2")).output_text == "Two."


async def leave_queue_behind(cluster: EngineCluster, model: ScriptedModel, *run_ids: str) -> None:
    """A session with nothing but a queue: its server has stopped before it began with that."""
    one = await open_engine(cluster, limits=Limits(lease_seconds=30, grace_seconds=SECONDS, poll_seconds=0.02))
    await one.start_hanging_run(model, then="One.")
    for run_id in run_ids:
        await one.start_run(run_id, run_id, on_busy="queue")
    stopping = asyncio.create_task(one.drain())
    await wait_until(lambda: one.runs.is_draining)
    model.release()
    await stopping


async def test_run_begun_by_change_advances_immediately(cluster: EngineCluster, model: ScriptedModel) -> None:
    await leave_queue_behind(cluster, model, "r2", "r3")
    # It looks after nothing that was left by others.
    two = await cluster.open_engine(AGENT, start=False)
    model.say("Two.")
    model.say("Three.")
    await two.sessions.update(KEY, metadata={"seen": True})
    assert two._worker.is_advancing(KEY)
    assert [(await two.wait(run_id)).output_text for run_id in ("r2", "r3")] == ["Two.", "Three."]
    assert await read_resume_reasons(two) == []


async def test_cancelled_queue_head_advances_next_run(cluster: EngineCluster, model: ScriptedModel) -> None:
    await leave_queue_behind(cluster, model, "r2", "r3")
    two = await cluster.open_engine(AGENT, start=False)
    model.say("Three.")
    assert (await two.runs.cancel(KEY, "r2")).status == "cancelled"
    assert (await two.wait("r3")).output_text == "Three."


async def test_second_stop_changes_nothing(cluster: EngineCluster) -> None:
    engine = await open_engine(cluster)
    await engine.drain()
    await engine.drain()
    with pytest.raises(Draining):
        await engine.start_run()
    await engine.stop()
    await engine.stop()
