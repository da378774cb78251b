"""Runs outlive the server that began them: leases, take-overs, and what a server does on its way out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from msgspec.structs import replace
from openai import AsyncOpenAI
from sqlalchemy import delete

from swarmkeep import Agent, Result, ToolCallId, tool
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.resuming import Approval
from swarmkeep.domain.errors import Draining, InvalidRequest, RunNotWaiting, SessionNotFound
from swarmkeep.domain.request import ModelRequest
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.engine.engine import Engine
from swarmkeep.engine.limits import Limits
from swarmkeep.engine.models.model import ChatModel, Deltas, Reply
from swarmkeep.engine.models.pauses import Pauses
from swarmkeep.engine.models.retries import Retries
from swarmkeep.logs.outages import OutageLog
from swarmkeep.store.hashing import MAX_PAYLOAD_DEPTH
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.ports import SessionKey, StoreUnavailable
from swarmkeep.store.sql.tables import events
from tests.engine.cluster import (
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
    read_state,
    read_types,
    run_to_end,
    wait_for_end,
    wait_for_state,
    wait_until,
)
from tests.support.rules import find_body_faults
from tests.support.scripted import ScriptedModel

SECONDS = 20.0


def look(city: str) -> str:
    return f"rain in {city}"


AGENT = Agent(name="A", functions=[look])


async def open_engine(cluster: EngineCluster, *agents: Agent, limits: Limits = LIMITS) -> Engine:
    engine = await cluster.open_engine(*(agents or [AGENT]), limits=limits)
    await open_session(engine)
    return engine


async def read_resume_reasons(engine: Engine) -> list[str]:
    return [event.fact.reason for event in await read_log(engine) if event.type == "run.resumed"]  # type: ignore[union-attr]


# Cut at each step, and taken over.


async def test_a_run_cut_in_a_model_call_asks_again(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    model.hang()
    await one.runs.start(KEY, make_start_run(options=RunOptions(stream=True)))
    await model.wait_for_requests_async(1)
    await kill_engine(one)
    model.say("Hello.")
    two = await cluster.open_engine(AGENT)
    view = await wait_for_end(two)
    assert (view.status, view.output_text) == ("completed", "Hello.")
    assert model.raw_requests[0] == model.raw_requests[1]
    assert await read_types(two) == [
        "session.created", "run.started", "message.added", "run.resumed", "message.added", "run.completed",
    ]  # fmt: skip
    assert await read_resume_reasons(two) == ["recovery"]


async def test_a_run_cut_in_a_tool_does_not_run_it_again(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate, calls = ToolGate(), []

    def send() -> str:
        calls.append("send")
        gate.enter()
        return "sent"

    agent = Agent(name="A", functions=[send])
    one = await open_engine(cluster, agent)
    model.call("send", id="c1")
    await one.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    await kill_engine(one)
    model.say("I do not know.")
    two = await cluster.open_engine(agent)
    view = await wait_for_end(two)
    await gate.open()
    assert view.status == "completed"
    assert calls == ["send"]
    [message] = [message for message in model.requests[1]["messages"] if message["role"] == "tool"]
    assert "send had been started when the process stopped" in message["content"]
    [entry] = [entry for entry in (await read_state(two)).messages if entry.role == "tool"]
    assert entry.tool is not None
    assert entry.tool.status == "unknown_outcome"


async def test_an_idempotent_tool_runs_again_with_the_same_id(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()
    ids: list[str] = []

    @tool(idempotent=True)
    def pay(tool_call_id: ToolCallId) -> str:
        ids.append(tool_call_id)
        if len(ids) == 1:
            gate.enter()
        return f"paid {len(ids)}"

    agent = Agent(name="A", functions=[pay])
    one = await open_engine(cluster, agent)
    model.call("pay", id="c1")
    await one.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    await kill_engine(one)
    model.say("Paid.")
    two = await cluster.open_engine(agent)
    view = await wait_for_end(two)
    assert list_contents(view.messages)[-2:] == ["paid 2", "Paid."]
    assert ids == ["c1", "c1"]
    starts = [event.fact for event in await read_log(two) if event.type == "tool.started"]
    assert [(fact.tool_call_id, fact.attempt) for fact in starts] == [("c1", 1), ("c1", 2)]  # type: ignore[union-attr]
    await gate.open()


async def test_a_run_cut_between_two_tools_goes_on_with_the_second(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    gate, calls = ToolGate(), []

    def first(context_variables: Json) -> Result:
        calls.append("first")
        return Result("one", context_variables={"n": 1})

    @tool(idempotent=True)
    def second(context_variables: Json) -> str:
        calls.append("second")
        if len(calls) == 2:
            gate.enter()
        return f"two after {context_variables['n']}"

    agent = Agent(name="A", functions=[first, second])
    one = await open_engine(cluster, agent)
    model.calls([("first", {}, "c1"), ("second", {}, "c2")])
    await one.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    await kill_engine(one)
    model.say("Done.")
    two = await cluster.open_engine(agent)
    view = await wait_for_end(two)
    assert list_contents(view.messages)[-3:] == ["one", "two after 1", "Done."]
    assert calls == ["first", "second", "second"]
    await gate.open()


async def test_a_run_cut_after_a_handoff_goes_on_with_the_new_agent(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    def hand_over() -> Agent:
        return sales

    sales = Agent(name="Sales", instructions="Sell.")
    triage = Agent(name="Triage", functions=[hand_over])
    one = await open_engine(cluster, triage, sales)
    model.call("hand_over")
    model.hang()
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(2)
    await kill_engine(one)
    model.say("What would you like?")
    two = await cluster.open_engine(triage, sales)
    assert (await wait_for_end(two)).agent == "Sales"
    assert model.requests[2]["messages"][0]["content"] == "Sell."


async def test_a_waiting_run_survives_without_anybody(cluster: EngineCluster, model: ScriptedModel) -> None:
    launched: list[str] = []

    @tool(requires_approval=True)
    def launch() -> str:
        launched.append("launch")
        return "launched"

    agent = Agent(name="A", functions=[launch])
    one = await open_engine(cluster, agent)
    model.call("launch", id="c1")
    assert (await run_to_end(one)).status == "waiting"
    await kill_engine(one)
    two = await cluster.open_engine(agent)
    assert (await two.reader.get_run(KEY, "r1")).status == "waiting"
    assert await read_resume_reasons(two) == []
    model.say("Launched.")
    await two.runs.resume(KEY, "r1", approvals=[Approval(tool_call_id="c1", decision="approve")])
    assert (await wait_for_end(two)).output_text == "Launched."
    assert launched == ["launch"]


async def test_queued_runs_follow_after_a_take_over(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    model.hang()
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await one.runs.start(KEY, make_start_run("next", "r2", on_busy="queue"))
    await kill_engine(one)
    model.say("One.")
    model.say("Two.")
    two = await cluster.open_engine(AGENT)
    assert (await wait_for_end(two)).output_text == "One."
    assert (await wait_for_end(two, "r2")).output_text == "Two."


@pytest.mark.parametrize("step", range(2, 7))
async def test_a_run_cut_after_any_commit_comes_to_its_end(
    cluster: EngineCluster, model: ScriptedModel, step: int
) -> None:
    """The server stops right after its n-th commit of the run, whichever that is."""
    calls: list[str] = []

    def note(text: str) -> str:
        calls.append(text)
        return f"noted {text}"

    agent = Agent(name="A", functions=[note])
    one = await open_engine(cluster, agent)
    stopped = asyncio.Event()
    stop_after(one, step, stopped)
    # The script follows what the model is shown, so that it is the same however often it is asked.
    model.call("note", {"text": "x"}, id="c1", when=lambda request: count_answers(request) == 0)
    model.call("note", {"text": "y"}, id="c2", when=lambda request: count_answers(request) == 1)
    model.say("Done.", when=lambda request: count_answers(request) == 2)
    await one.runs.start(KEY, make_start_run())
    async with asyncio.timeout(SECONDS):
        await stopped.wait()
    await kill_engine(one)
    two = await cluster.open_engine(agent)
    view = await wait_for_end(two)
    assert view.status == "completed"
    assert view.output_text == "Done."
    assert len(calls) == len(set(calls)), "a tool ran twice"
    events = await read_log(two)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    for body in model.raw_requests:
        assert not find_body_faults(body)


def count_answers(request: Json) -> int:
    return sum(message["role"] == "tool" for message in request["messages"])


def stop_after(engine: Engine, step: int, stopped: asyncio.Event) -> None:
    """Let the engine never hear that its commit number `step` from now was made."""
    append = engine.store.append
    left = step

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        appended = await append(*args, **kwargs)
        left -= 1
        if left == 0:
            stopped.set()
            await asyncio.Event().wait()
        return appended

    engine.store.append = counted  # type: ignore[method-assign]


# When it is hopeless.


async def test_a_run_whose_agent_is_gone_is_interrupted_and_can_be_tried_again(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    one = await open_engine(cluster)
    model.hang()
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await kill_engine(one)
    without = await cluster.open_engine(Agent(name="Other"))
    view = await wait_for_end(without)
    assert (view.status, view.stop_reason) == ("interrupted", "interrupted")
    assert view.error is not None
    assert view.error.code == "agent_unavailable"
    again = await cluster.open_engine(AGENT)
    model.say("Here I am.")
    await again.runs.resume(KEY, "r1")
    view = await wait_for_end(again)
    assert (view.status, view.error, view.output_text) == ("completed", None, "Here I am.")


async def test_a_run_is_left_to_a_server_that_has_its_agent(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    model.hang()
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await kill_engine(one)
    # It looks for what nobody advances before this returns.
    await cluster.open_engine(Agent(name="Other"), limits=replace(LIMITS, unserved_seconds=3600.0))
    model.say("Here I am.")
    two = await cluster.open_engine(AGENT)
    view = await wait_for_end(two)
    assert (view.status, view.output_text) == ("completed", "Here I am.")
    assert "run.interrupted" not in await read_types(two)


async def test_a_queued_run_is_left_to_a_server_that_has_its_agent(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    other = Agent(name="B")
    one = await open_engine(cluster, limits=replace(LIMITS, unserved_seconds=3600.0))
    two = await cluster.open_engine(AGENT, other)
    model.hang(then="One.")
    model.say("Two.")
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await two.runs.start(KEY, make_start_run("next", "r2", agent="B", on_busy="queue"))
    model.release()
    view = await wait_for_end(two, "r2")
    assert (view.status, view.agent, view.output_text) == ("completed", "B", "Two.")


@pytest.mark.long
async def test_a_queued_run_whose_agent_nobody_has_fails(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    two = await cluster.open_engine(AGENT, Agent(name="B"), start=False)
    model.hang(then="One.")
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await two.runs.start(KEY, make_start_run("next", "r2", agent="B", on_busy="queue"))
    model.release()
    view = await wait_for_end(one, "r2")
    assert view.error is not None
    assert (view.status, view.error.code) == ("failed", "agent_unavailable")


async def test_calls_are_left_to_a_server_that_has_the_agent_which_asked_for_them(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    gate = ToolGate()

    def wait() -> str:
        gate.enter()
        return "waited"

    first, second = Agent(name="A", functions=[wait, look]), Agent(name="B")
    one = await open_engine(cluster, first, second)
    model.calls([("wait", {}, "c1"), ("look", {"city": "Oslo"}, "c2")])
    await one.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    await one.sessions.update(KEY, agent="B")
    await kill_engine(one)
    await cluster.open_engine(second, limits=replace(LIMITS, unserved_seconds=3600.0))
    model.say("Hello from B.")
    two = await cluster.open_engine(first, second)
    view = await wait_for_end(two)
    await gate.open()
    assert list_contents(view.messages)[-2:] == ["rain in Oslo", "Hello from B."]


async def test_a_run_that_is_taken_over_too_often_is_interrupted(cluster: EngineCluster, model: ScriptedModel) -> None:
    limits = Limits(lease_seconds=30, grace_seconds=0.05, max_recoveries=2)
    engine = await open_engine(cluster, limits=limits)
    model.hang()
    await engine.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    for n in (2, 3):
        await kill_engine(engine)
        model.hang()
        engine = await cluster.open_engine(AGENT, limits=limits)
        await model.wait_for_requests_async(n)
    await kill_engine(engine)
    engine = await cluster.open_engine(AGENT, limits=limits)
    view = await wait_for_end(engine)
    assert view.status == "interrupted"
    assert view.error is not None
    assert view.error.code == "too_many_recoveries"
    assert await read_resume_reasons(engine) == ["recovery", "recovery"]
    model.say("At last.")
    await engine.runs.resume(KEY, "r1")
    assert (await wait_for_end(engine)).output_text == "At last."


async def test_a_run_that_gets_on_may_be_taken_over_as_often_as_it_takes(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    limits = Limits(lease_seconds=30, grace_seconds=0.05, max_recoveries=1)
    engine = await open_engine(cluster, limits=limits)
    model.hang()
    await engine.runs.start(KEY, make_start_run())
    for n in range(3):
        await model.wait_for_requests_async(2 * n + 1)
        await kill_engine(engine)
        model.call("look", {"city": "Oslo"})
        model.hang()
        engine = await cluster.open_engine(AGENT, limits=limits)
        await model.wait_for_requests_async(2 * n + 3)
    await kill_engine(engine)
    model.say("Done.")
    engine = await cluster.open_engine(AGENT, limits=limits)
    assert (await wait_for_end(engine)).status == "completed"


# Leases.


async def test_what_another_server_advances_is_left_to_it(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    model.hang(then="Hello.")
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    two = await cluster.open_engine(AGENT)
    await two._worker.recovery.recover()
    assert not two._worker.is_advancing(KEY)
    model.release()
    assert (await wait_for_end(two)).output_text == "Hello."
    assert await read_resume_reasons(two) == []


async def test_what_this_server_advances_itself_is_not_taken_over_from_itself(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    engine = await open_engine(cluster)
    model.hang(then="Hello.")
    await engine.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await expire_leases(engine)
    await engine._worker.recovery.recover()
    model.release()
    assert (await wait_for_end(engine)).output_text == "Hello."
    assert model.request_count == 1


async def test_of_many_servers_one_takes_over(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    model.hang()
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
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


async def test_a_server_that_was_taken_over_from_records_nothing_more(
    cluster: EngineCluster, model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    one = await open_engine(cluster)
    model.hang(then="From the grave.")
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
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


async def test_a_zombie_is_stopped_at_its_next_commit_in_the_middle_of_the_others_run(
    cluster: EngineCluster, model: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    one = await open_engine(cluster)
    model.hang(then="From the grave.")
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await expire_leases(one)
    gate = ToolGate()
    model.call("slow", id="c1")
    two = await cluster.open_engine(Agent(name="A", functions=[_make_gated_tool(gate)]))
    await gate.wait_until_reached()
    model.release()
    await wait_for_state(one, lambda state: not one._worker.is_advancing(KEY))
    assert "by another process" in caplog.text
    model.say("Alive.")
    await gate.open()
    assert list_contents((await wait_for_end(two)).messages)[-2:] == ["ok", "Alive."]


def _make_gated_tool(gate: ToolGate) -> Any:
    def slow() -> str:
        gate.enter()
        return "ok"

    return slow


async def test_a_zombie_that_stops_does_not_interrupt_the_others_run(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    one = await open_engine(cluster)
    model.hang()
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await expire_leases(one)
    model.hang(then="Alive.")
    two = await cluster.open_engine(AGENT)
    await model.wait_for_requests_async(2)
    await one.drain()
    model.release()
    view = await wait_for_end(two)
    assert (view.status, view.output_text) == ("completed", "Alive.")


async def test_leases_are_renewed_while_runs_go_on(
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
    model.hang(then="Hello.")
    await engine.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    async with asyncio.timeout(SECONDS):
        await renewed.wait()
    model.release()
    assert (await wait_for_end(engine)).status == "completed"
    assert await read_resume_reasons(engine) == []


async def test_a_server_looks_after_abandoned_runs_by_itself(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    model.hang()
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    two = await cluster.open_engine(AGENT, limits=Limits(lease_seconds=0.15, grace_seconds=0.05, poll_seconds=0.01))
    model.say("Hello.")
    await kill_engine(one)
    view = await wait_for_end(two)
    assert (view.status, view.output_text) == ("completed", "Hello.")


async def test_a_database_that_fails_for_a_while_does_not_end_the_care_for_leases(
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
    monkeypatch.setattr("swarmkeep.engine.attempts.outage_log", outage_log)
    monkeypatch.setattr("swarmkeep.engine.worker.recovery.outage_log", outage_log)
    one = await open_engine(cluster)
    model.hang()
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
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


async def test_sessions_that_cannot_be_read_do_not_hide_the_others(
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
    complaints = [name for name in damaged if f"session {name}: its run could not be taken over" in caplog.text]
    assert complaints == damaged


# What other servers do.


async def test_a_run_that_was_ended_elsewhere_stops_here_at_once(cluster: EngineCluster, model: ScriptedModel) -> None:
    one, two = await open_engine(cluster), await cluster.open_engine(AGENT)
    model.hang()
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    waiting = asyncio.create_task(wait_for_end(one))
    await two.runs.cancel(KEY, "r1")
    # The model never answers; the call is dropped, and whoever waits is told.
    await model.wait_for_disconnects_async(1)
    assert (await waiting).status == "cancelled"
    assert not one._worker.is_advancing(KEY)


async def test_a_change_made_elsewhere_does_not_stop_a_run(cluster: EngineCluster, model: ScriptedModel) -> None:
    one, two = await open_engine(cluster), await cluster.open_engine(AGENT)
    model.hang(then="Hello.")
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    for n in range(5):
        await two.sessions.update(KEY, context_variables={"n": n})
    await wait_for_state(one, lambda state: state.context_variables == {"n": 4})
    await one._worker._on_moved({KEY})
    assert one._worker.is_advancing(KEY)
    model.release()
    assert (await wait_for_end(one)).output_text == "Hello."


async def test_a_session_that_was_deleted_elsewhere_is_let_go(cluster: EngineCluster, model: ScriptedModel) -> None:
    one, two = await open_engine(cluster), await cluster.open_engine(AGENT)
    model.hang()
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    waiting = asyncio.create_task(wait_for_end(one))
    await two.sessions.delete(KEY, force=True)
    await model.wait_for_disconnects_async(1)
    with pytest.raises(SessionNotFound):
        await waiting


@pytest.mark.parametrize("usage", [[], {"prompt_tokens": 2**63, "total_tokens": 2**63}])
async def test_a_provider_may_count_as_it_likes(cluster: EngineCluster, model: ScriptedModel, usage: Any) -> None:
    engine = await open_engine(cluster)
    model.call("look", {"city": "Rome"}, usage=usage)
    model.say("Rain.", usage=usage)
    view = await run_to_end(engine)
    assert (view.status, view.output_text, view.usage.model_calls) == ("completed", "Rain.", 2)
    assert await read_resume_reasons(engine) == []


def nest(levels: int) -> Json:
    nested: Json = {}
    for _ in range(levels):
        nested = {"in": nested}
    return nested


async def test_a_reply_that_cannot_be_recorded_fails_its_run(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(cluster)
    message = {"role": "assistant", "content": "Hi.", "annotations": nest(MAX_PAYLOAD_DEPTH)}
    model.raw({"choices": [{"index": 0, "finish_reason": "stop", "message": message}]})
    view = await run_to_end(engine)
    assert view.status == "failed"
    assert view.error is not None
    assert (view.error.code, view.error.retryable) == ("provider_malformed", True)
    assert "nested more than" in view.error.message
    assert model.request_count == 1


class RefusingModel:
    """A model of somebody's own making that raises a refusal of the domain, which is no sign of a session moved on."""

    async def ask(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[Deltas | Reply]:
        raise InvalidRequest("this cannot be asked")
        yield


async def test_a_refusal_in_the_middle_of_a_run_ends_the_run(cluster: EngineCluster) -> None:
    engine = await cluster.open_engine(AGENT, model=RefusingModel())
    await open_session(engine)
    view = await run_to_end(engine)
    assert view.status == "failed"
    assert view.error is not None
    assert view.error.code == "internal_error"
    assert await read_resume_reasons(engine) == []


async def test_a_run_begins_although_the_tool_of_the_one_before_will_not_end(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    reached, end = asyncio.Event(), asyncio.Event()

    async def stubborn() -> str:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            await end.wait()
        return "never"

    engine = await open_engine(cluster, Agent(name="A", functions=[stubborn]))
    model.call("stubborn")
    await engine.runs.start(KEY, make_start_run())
    await reached.wait()
    model.say("Here I am.")
    assert (await run_to_end(engine, "Hello?", "r2", on_busy="interrupt")).output_text == "Here I am."
    end.set()


# Stopping.


async def test_a_server_that_stops_lets_its_runs_end(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(cluster, limits=Limits(lease_seconds=30, grace_seconds=SECONDS))
    model.hang(then="Hello.")
    await engine.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    stopping = asyncio.create_task(engine.drain())
    await wait_until(lambda: engine.runs.is_draining)
    with pytest.raises(Draining):
        await engine.runs.start(KEY, make_start_run(run_id="r2"))
    model.release()
    await stopping
    assert (await engine.reader.get_run(KEY, "r1")).output_text == "Hello."


async def test_what_still_runs_after_the_grace_time_is_interrupted_and_can_go_on_elsewhere(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    one = await open_engine(cluster)
    model.hang()
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    waiting = asyncio.create_task(wait_for_end(one))
    await one.drain()
    view = await waiting
    assert (view.status, view.stop_reason) == ("interrupted", "interrupted")
    assert view.error is not None
    assert (view.error.code, view.error.retryable) == ("draining", True)
    await model.wait_for_disconnects_async(1)
    two = await cluster.open_engine(AGENT)
    model.say("Hello.")
    await two.runs.resume(KEY, "r1")
    view = await wait_for_end(two)
    assert (view.status, view.error) == ("completed", None)


async def test_what_only_waits_to_ask_again_is_interrupted_as_soon_as_the_server_is_to_stop(
    cluster: EngineCluster, model: ScriptedModel, async_client: AsyncOpenAI
) -> None:
    pauses = Pauses()
    patient = ChatModel(async_client, Retries(count=1), pauses.wait)
    # Longer than the test may take: if it were waited for, this would fail.
    limits = replace(LIMITS, grace_seconds=3600)
    one = await cluster.open_engine(AGENT, model=patient, limits=limits, pauses=pauses)
    await open_session(one)
    model.fail(429, headers={"retry-after": "50"})
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    async with asyncio.timeout(SECONDS):
        await one.drain()
    view = await one.reader.get_run(KEY, "r1")
    assert (view.status, view.error and view.error.code) == ("interrupted", "draining")
    two = await cluster.open_engine(AGENT)
    model.say("Hello.")
    await two.runs.resume(KEY, "r1")
    assert (await wait_for_end(two)).output_text == "Hello."


async def test_a_tool_that_blocks_does_not_hold_up_the_stop(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()
    agent = Agent(name="A", functions=[_make_gated_tool(gate)])
    one = await open_engine(cluster, agent)
    model.call("slow", id="c1")
    await one.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    async with asyncio.timeout(SECONDS):
        await one.drain()
    assert not gate.passed.is_set()
    two = await cluster.open_engine(agent)
    model.say("I see.")
    await two.runs.resume(KEY, "r1")
    view = await wait_for_end(two)
    assert "had been started when the process stopped" in list_contents(view.messages)[2]
    await gate.open()
    assert gate.count == 1


async def test_what_waits_in_the_queue_of_a_server_that_stops_runs_elsewhere(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    one = await open_engine(cluster)
    model.hang()
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await one.runs.start(KEY, make_start_run("next", "r2", on_busy="queue"))
    await one.drain()
    assert (await one.reader.get_run(KEY, "r1")).status == "interrupted"
    await expire_leases(one)
    model.say("Two.")
    two = await cluster.open_engine(AGENT)
    assert (await wait_for_end(two, "r2")).output_text == "Two."


async def test_a_server_that_stops_does_not_begin_with_its_queue(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster, limits=Limits(lease_seconds=30, grace_seconds=SECONDS, poll_seconds=0.02))
    model.hang(then="One.")
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    for run_id in ("r2", "r3"):
        await one.runs.start(KEY, make_start_run(run_id, run_id, on_busy="queue"))
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
    assert [(await wait_for_end(two, run_id)).output_text for run_id in ("r2", "r3")] == ["Two.", "Three."]


async def test_a_cancel_on_a_server_that_stops_leaves_the_queue_to_others(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    one = await open_engine(cluster, limits=Limits(lease_seconds=30, grace_seconds=SECONDS, poll_seconds=0.02))
    model.hang()
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await one.runs.start(KEY, make_start_run("next", "r2", on_busy="queue"))
    stopping = asyncio.create_task(one.drain())
    await wait_until(lambda: one.runs.is_draining)
    await one.runs.cancel(KEY, "r1")
    await stopping
    assert (await one.reader.get_run(KEY, "r2")).status == "queued"
    model.say("Two.")
    two = await cluster.open_engine(AGENT)
    assert (await wait_for_end(two, "r2")).output_text == "Two."


async def leave_queue_behind(cluster: EngineCluster, model: ScriptedModel, *run_ids: str) -> None:
    """A session with nothing but a queue: its server has stopped before it began with that."""
    one = await open_engine(cluster, limits=Limits(lease_seconds=30, grace_seconds=SECONDS, poll_seconds=0.02))
    model.hang(then="One.")
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    for run_id in run_ids:
        await one.runs.start(KEY, make_start_run(run_id, run_id, on_busy="queue"))
    stopping = asyncio.create_task(one.drain())
    await wait_until(lambda: one.runs.is_draining)
    model.release()
    await stopping


async def test_a_run_that_begins_with_somebodys_change_is_advanced_at_once(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    await leave_queue_behind(cluster, model, "r2", "r3")
    # It looks after nothing that was left by others.
    two = await cluster.open_engine(AGENT, start=False)
    model.say("Two.")
    model.say("Three.")
    await two.sessions.update(KEY, metadata={"seen": True})
    assert two._worker.is_advancing(KEY)
    assert [(await wait_for_end(two, run_id)).output_text for run_id in ("r2", "r3")] == ["Two.", "Three."]
    assert await read_resume_reasons(two) == []


async def test_a_run_that_begins_when_the_head_of_its_queue_is_cancelled_is_advanced_at_once(
    cluster: EngineCluster, model: ScriptedModel
) -> None:
    await leave_queue_behind(cluster, model, "r2", "r3")
    two = await cluster.open_engine(AGENT, start=False)
    model.say("Three.")
    assert (await two.runs.cancel(KEY, "r2")).status == "cancelled"
    assert (await wait_for_end(two, "r3")).output_text == "Three."


async def test_only_the_last_run_can_be_tried_again(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    model.hang()
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await one.drain()
    two = await cluster.open_engine(AGENT)
    model.say("Two.")
    await run_to_end(two, "next", "r2")
    with pytest.raises(RunNotWaiting):
        await two.runs.resume(KEY, "r1")
    for body in model.raw_requests:
        assert not find_body_faults(body)


async def test_to_stop_twice_is_to_stop_once(cluster: EngineCluster) -> None:
    engine = await cluster.open_engine(AGENT)
    await engine.drain()
    await engine.stop()


# Nothing is left.


async def test_threads_of_abandoned_tools_end_with_their_tools(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()
    engine = await open_engine(cluster, Agent(name="A", functions=[_make_gated_tool(gate)]))
    model.call("slow")
    await engine.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    await engine.runs.cancel(KEY, "r1")
    await gate.open()
    for thread in threading.enumerate():
        if thread.name == "swarmkeep-tool":
            await asyncio.to_thread(thread.join, SECONDS)
            assert not thread.is_alive()


async def test_many_runs_leave_nothing_behind(cluster: EngineCluster, model: ScriptedModel) -> None:
    engine = await open_engine(cluster)
    for n in range(30):
        model.say("Hello.")
        view = await run_to_end(engine, run_id=f"r{n}")
        assert view.status == "completed"
    worker = engine._worker
    assert (len(worker.tasks), len(worker.waiters)) == (0, 0)
    assert (engine.hub._feeds, engine.hub._partial_items) == ({}, {})
