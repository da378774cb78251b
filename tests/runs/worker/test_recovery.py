"""Recovery: sessions of dead servers are found and taken over by a server that has the agent, or ended."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from sqlalchemy import update

from swarmkeep import Agent
from swarmkeep.runs.recovery import SetAside
from swarmkeep.store.records import SessionKey
from swarmkeep.store.tables import sessions
from tests.runs.cluster import KEY, LIMITS, LOOKS_OFTEN, EngineCluster, Server, ToolGate, kill_engine, list_contents
from tests.runs.worker.servers import AGENT, look, open_engine
from tests.support.scripted import ScriptedModel

PLAIN_AGENT = Agent(name="A")


async def make_due(engine: Server, tenant: str, count: int) -> list[SessionKey]:
    """Idle sessions of which the index says that somebody has to go on with them, which is wrong."""
    keys = [await engine.open_session(SessionKey(tenant, f"due-{number}")) for number in range(count)]
    made = (sessions.c.tenant == tenant, sessions.c.id.startswith("due-"))
    change = update(sessions).where(*made).values(due_at=0.0)
    await engine.store.database.write(lambda connection: connection.execute(change))  # type: ignore[attr-defined]
    return keys


async def abandon_run(cluster: EngineCluster, model: ScriptedModel, key: SessionKey = KEY) -> Server:
    engine = await cluster.open_engine(PLAIN_AGENT)
    await engine.open_session(key)
    model.hang()
    await engine.start_run(key=key)
    await model.wait_for_requests_async(1)
    return engine


@pytest.mark.parametrize("tenant", [KEY.tenant, "another"])
async def test_idle_sessions_do_not_hide_runs(cluster: EngineCluster, model: ScriptedModel, tenant: str) -> None:
    one = await abandon_run(cluster, model)
    due = await make_due(one, tenant, 7)
    await kill_engine(one)
    model.say("Hello.")
    two = await cluster.open_engine(PLAIN_AGENT, limits=replace(LIMITS, recovery_sessions=2))
    assert (await two.wait()).output_text == "Hello."
    assert [len(await two.read_log(key)) for key in due] == [1] * 7


async def test_idle_sessions_do_not_hide_due_ones(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await cluster.begin(PLAIN_AGENT)
    model.hang()
    await one.start_run()
    await model.wait_for_requests_async(1)
    await one.start_run("later", "r2", on_busy="queue")
    await make_due(one, "a", 7)
    # A server that stops leaves its queue to others.
    one._worker._is_stopping = True
    await one.runs.cancel(KEY, "r1")
    await kill_engine(one)
    model.say("Hello.")
    two = await cluster.open_engine(PLAIN_AGENT, limits=replace(LIMITS, recovery_sessions=2))
    assert (await two.wait("r2")).output_text == "Hello."


def test_fruitless_session_is_set_aside_increasingly() -> None:
    now = 0.0
    aside = SetAside[str](clock=lambda: now, first_seconds=1.0, last_seconds=5.0, limit=2)
    aside.add("a")
    waits = []
    for _ in range(5):
        begun = now
        while aside.is_waiting("a"):
            now += 0.5
        waits.append(now - begun)
        aside.add("a")
    assert waits == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_setback_is_forgotten_on_success_or_removal() -> None:
    aside = SetAside[str](clock=lambda: 0.0)
    for name in ("a", "b", "c"):
        aside.add(name)
    aside.discard("a")
    aside.keep_only(["b"])
    assert [aside.is_waiting(name) for name in ("a", "b", "c")] == [False, True, False]
    assert len(aside) == 1


def test_remembered_setbacks_are_bounded() -> None:
    aside = SetAside[int](clock=lambda: 0.0, limit=3)
    for number in range(10):
        aside.add(number)
    assert (len(aside), aside.is_waiting(9), aside.is_waiting(0)) == (3, True, False)


# Runs whose agent is not on every server, or on none: left to a server that has it, or ended.


async def test_missing_agent_interrupts_run_for_retry(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    await one.start_hanging_run(model)
    await kill_engine(one)
    without = await cluster.open_engine(Agent(name="Other"))
    view = await without.wait()
    assert (view.status, view.stop_reason) == ("interrupted", "interrupted")
    assert view.error.code == "agent_unavailable"
    again = await cluster.open_engine(AGENT)
    model.say("Here I am.")
    await again.runs.resume(KEY, "r1")
    view = await again.wait()
    assert (view.status, view.error, view.output_text) == ("completed", None, "Here I am.")


async def test_run_is_left_for_agents_server(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster)
    await one.start_hanging_run(model)
    await kill_engine(one)
    # It looks for what nobody advances before this returns.
    await cluster.open_engine(Agent(name="Other"), limits=replace(LIMITS, unserved_seconds=3600.0))
    model.say("Here I am.")
    two = await cluster.open_engine(AGENT)
    view = await two.wait()
    assert (view.status, view.output_text) == ("completed", "Here I am.")
    assert "run.interrupted" not in await two.read_types()


async def test_queued_run_is_left_for_agents_server(cluster: EngineCluster, model: ScriptedModel) -> None:
    other = Agent(name="B")
    one = await open_engine(cluster, limits=replace(LOOKS_OFTEN, unserved_seconds=3600.0))
    two = await cluster.open_engine(AGENT, other, limits=LOOKS_OFTEN)
    model.hang(then="One.")
    model.say("Two.")
    await one.start_run()
    await model.wait_for_requests_async(1)
    await two.start_run("next", "r2", agent="B", on_busy="queue")
    model.release()
    view = await two.wait("r2")
    assert (view.status, view.agent, view.output_text) == ("completed", "B", "Two.")


@pytest.mark.long
async def test_queued_run_without_any_agent_fails(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await open_engine(cluster, limits=LOOKS_OFTEN)
    two = await cluster.open_engine(AGENT, Agent(name="B"), start=False)
    await one.start_hanging_run(model, then="One.")
    await two.start_run("next", "r2", agent="B", on_busy="queue")
    model.release()
    view = await one.wait("r2")
    assert (view.status, view.error.code) == ("failed", "agent_unavailable")


async def test_calls_are_left_for_asking_agents_server(cluster: EngineCluster, model: ScriptedModel) -> None:
    gate = ToolGate()

    def wait() -> str:
        gate.enter()
        return "waited"

    first, second = Agent(name="A", functions=[wait, look]), Agent(name="B")
    one = await open_engine(cluster, first, second)
    model.calls([("wait", {}, "c1"), ("look", {"city": "Oslo"}, "c2")])
    await one.start_run(gate=gate)
    await one.sessions.update(KEY, agent="B")
    await kill_engine(one)
    await cluster.open_engine(second, limits=replace(LIMITS, unserved_seconds=3600.0))
    model.say("Hello from B.")
    two = await cluster.open_engine(first, second)
    view = await two.wait()
    await gate.open()
    assert list_contents(view.messages)[-2:] == ["rain in Oslo", "Hello from B."]
