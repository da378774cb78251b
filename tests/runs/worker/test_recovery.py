"""What recovery finds: nobody's sessions hide another's, whatever is the matter with them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from sqlalchemy import update

from swarmkeep import Agent
from swarmkeep.runs.engine import Engine
from swarmkeep.runs.recovery import SetAside
from swarmkeep.store.records import SessionKey
from swarmkeep.store.tables import sessions
from tests.runs.cluster import (
    KEY,
    LIMITS,
    EngineCluster,
    kill_engine,
    make_start_run,
    open_session,
    read_log,
    wait_for_end,
)
from tests.support.scripted import ScriptedModel

AGENT = Agent(name="A")


async def make_due(engine: Engine, tenant: str, count: int) -> list[SessionKey]:
    """Idle sessions of which the index says that somebody has to go on with them, which is wrong."""
    keys = [await open_session(engine, SessionKey(tenant, f"due-{number}")) for number in range(count)]
    made = (sessions.c.tenant == tenant, sessions.c.id.startswith("due-"))
    change = update(sessions).where(*made).values(due_at=0.0)
    await engine.store.database.write(lambda connection: connection.execute(change))  # type: ignore[attr-defined]
    return keys


async def abandon_run(cluster: EngineCluster, model: ScriptedModel, key: SessionKey = KEY) -> Engine:
    engine = await cluster.open_engine(AGENT)
    await open_session(engine, key)
    model.hang()
    await engine.runs.start(key, make_start_run())
    await model.wait_for_requests_async(1)
    return engine


@pytest.mark.parametrize("tenant", [KEY.tenant, "another"])
async def test_idle_sessions_do_not_hide_runs(cluster: EngineCluster, model: ScriptedModel, tenant: str) -> None:
    one = await abandon_run(cluster, model)
    due = await make_due(one, tenant, 7)
    await kill_engine(one)
    model.say("Hello.")
    two = await cluster.open_engine(AGENT, limits=replace(LIMITS, recovery_sessions=2))
    assert (await wait_for_end(two)).output_text == "Hello."
    assert [len(await read_log(two, key)) for key in due] == [1] * 7


async def test_idle_sessions_do_not_hide_due_ones(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await cluster.open_engine(AGENT)
    model.hang()
    await open_session(one)
    await one.runs.start(KEY, make_start_run())
    await model.wait_for_requests_async(1)
    await one.runs.start(KEY, make_start_run("later", "r2", on_busy="queue"))
    await make_due(one, "a", 7)
    # A server that stops leaves its queue to others.
    one._worker._is_stopping = True
    await one.runs.cancel(KEY, "r1")
    await kill_engine(one)
    model.say("Hello.")
    two = await cluster.open_engine(AGENT, limits=replace(LIMITS, recovery_sessions=2))
    assert (await wait_for_end(two, "r2")).output_text == "Hello."


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
