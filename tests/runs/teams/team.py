"""A desk that asks a clerk, and what the tests of teams read of both."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from swarmkeep import Agent, Result, tool
from swarmkeep.events.facts import MessageAdded, RecordedEvent, ToolStarted
from swarmkeep.events.records import UsageQuery
from swarmkeep.runs.limits import Limits
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, LIMITS, EngineCluster, Server
from tests.support.scripted import ScriptedModel


def note(context_variables: dict[str, Any], text: str) -> Result:
    """Write something down."""
    return Result(value="noted", context_variables={"note": text, "seen": context_variables.get("user")})


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def make_team(*functions: Any, **options: Any) -> Agent:
    """The agent that asks, and one that is asked."""
    clerk = Agent(name="Clerk", functions=[note, pay, *functions])
    return Agent(name="Desk", functions=[clerk.as_tool("ask_clerk", "Ask the clerk.", **options)])


async def open_team(cluster: EngineCluster, *functions: Any, limits: Limits = LIMITS, **options: Any) -> Server:
    return await cluster.open_engine(make_team(*functions, **options), limits=limits)


async def find_child(engine: Server, key: SessionKey = KEY) -> SessionKey:
    """The session of the last call that asks."""
    starts = [event.fact for event in await engine.read_log(key) if isinstance(event.fact, ToolStarted)]
    assert starts[-1].session_id is not UNSET
    return SessionKey(key.tenant, starts[-1].session_id)


def find_result(events: list[RecordedEvent]) -> MessageAdded:
    facts = [event.fact for event in events]
    return next(fact for fact in reversed(facts) if isinstance(fact, MessageAdded) and fact.tool is not None)


async def count_model_calls(engine: Server) -> int:
    """Those of the tenant."""
    return sum(row.model_calls for row in (await engine.store.sum_usage(KEY.tenant, UsageQuery())).rows)


async def ask_clerk(cluster: EngineCluster, model: ScriptedModel) -> tuple[Server, SessionKey]:
    """A run that has ended with what the agent that it asked has answered."""
    engine = await open_team(cluster)
    await engine.open_session()
    model.call("ask_clerk", {"input": "Hm?"}, id="c1")
    model.say("Yes.")
    model.say("Yes, it is.")
    await engine.run()
    return engine, await find_child(engine)


async def ask_hanging_clerk(cluster: EngineCluster, model: ScriptedModel, said: str = "") -> tuple[Server, SessionKey]:
    """A run that goes on, because the agent that it asks has been told nothing by its model, or no more than `said`."""
    engine = await open_team(cluster)
    await engine.open_session()
    model.call("ask_clerk", {"input": "Hm?"}, id="c1")
    model.hang(said)
    await engine.start_run()
    await model.wait_for_requests_async(2)
    return engine, await find_child(engine)


async def ask_for_payment(cluster: EngineCluster, model: ScriptedModel, **options: Any) -> tuple[Server, SessionKey]:
    """A run that waits, because the agent that it asks needs an approval."""
    engine = await open_team(cluster, **options)
    await engine.open_session()
    model.call("ask_clerk", {"input": "Pay 7."}, id="c1")
    model.call("pay", {"amount": 7}, id="p1")
    await engine.start_run()
    await engine.wait_for_state(lambda state: state.status == "waiting")
    return engine, await find_child(engine)
