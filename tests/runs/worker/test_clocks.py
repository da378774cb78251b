"""Servers whose clocks are not the same: what has to end at some time goes by the database's clock, or by one's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from swarmkeep import Agent, tool
from swarmkeep.decide.commands import Approval
from swarmkeep.events.codec import parse_timestamp
from swarmkeep.events.errors import AlreadyDecided
from swarmkeep.store.opening import SqlStore
from tests.runs.cluster import (
    KEY,
    LIMITS,
    LOOKS_OFTEN,
    EngineCluster,
    kill_engine,
    make_start_run,
    open_session,
    read_types,
    start_hanging_run,
    wait_for_end,
    wait_for_state,
)
from tests.support.scripted import ScriptedModel

AGENT = Agent(name="A")


@pytest.mark.parametrize("hours", [-1.5, 1.5])
async def test_taken_over_run_keeps_time_despite_clock(
    cluster: EngineCluster, model: ScriptedModel, hours: float
) -> None:
    one = await cluster.open_engine(AGENT, clock=lambda: datetime.now(UTC) + timedelta(hours=hours))
    await open_session(one)
    await start_hanging_run(one, model)
    await kill_engine(one)
    model.say("Hello.")
    two = await cluster.open_engine(AGENT, limits=replace(LIMITS, run_seconds=3600))
    view = await wait_for_end(two)
    assert (view.status, view.output_text) == ("completed", "Hello.")


async def test_skewed_clock_grants_no_extra_time(cluster: EngineCluster, model: ScriptedModel) -> None:
    one = await cluster.open_engine(AGENT, clock=lambda: datetime.now(UTC) + timedelta(hours=1.5))
    await open_session(one)
    await start_hanging_run(one, model)
    await kill_engine(one)
    model.hang()
    two = await cluster.open_engine(AGENT, limits=replace(LIMITS, run_seconds=0.2))
    view = await wait_for_end(two)
    assert view.error is not None
    assert (view.status, view.error.code) == ("failed", "run_timeout")


async def test_approval_expires_by_database_clock(
    cluster: EngineCluster, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid: list[str] = []

    @tool(requires_approval=True)
    def pay(to: str) -> str:
        paid.append(to)
        return "paid"

    # Two hours ahead of this host.
    database = datetime.now(UTC) + timedelta(hours=2)

    async def read_clock(self: SqlStore) -> datetime:
        return database

    monkeypatch.setattr(SqlStore, "read_clock", read_clock)
    engine = await cluster.open_engine(Agent(name="A", functions=[pay]), limits=replace(LIMITS, approval_seconds=3600))
    await open_session(engine)
    model.calls([("pay", {"to": "Ann"}, "c1"), ("pay", {"to": "Bob"}, "c2")])
    await engine.runs.start(KEY, make_start_run())
    [pending, _] = (await wait_for_end(engine)).pending
    assert parse_timestamp(pending.expires_at or "") == database + timedelta(hours=1)
    await engine.runs.resume(KEY, "r1", approvals=[Approval(tool_call_id="c1", decision="approve")])
    database += timedelta(hours=1)
    with pytest.raises(AlreadyDecided):
        await engine.runs.resume(KEY, "r1", approvals=[Approval(tool_call_id="c2", decision="approve")])
    assert (await read_types(engine))[-1] == "approval.decided"


async def test_due_approval_is_denied_on_any_clock(cluster: EngineCluster, model: ScriptedModel) -> None:
    @tool(requires_approval=True)
    def pay() -> str:
        return "paid"

    behind = await cluster.open_engine(
        Agent(name="A", functions=[pay]),
        limits=replace(LOOKS_OFTEN, approval_seconds=0.01),
        clock=lambda: datetime.now(UTC) - timedelta(hours=1.5),
    )
    await open_session(behind)
    model.call("pay", {}, id="c1")
    model.say("Then not.")
    await behind.runs.start(KEY, make_start_run())
    await wait_for_end(behind)
    await wait_for_state(behind, lambda state: state.status == "idle")
    assert (await wait_for_end(behind)).output_text == "Then not."
