"""Guardrails of calls: what they refuse never runs, and the model is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from swarmkeep import Agent
from tests.runs.cluster import (
    KEY,
    EngineCluster,
    ToolGate,
    kill_engine,
    make_start_run,
    open_session,
    read_log,
    run_to_end,
    wait_for_end,
)
from tests.runs.guardrails.guards import (
    SECRET,
    broken,
    check_log,
    find_divergences,
    list_kinds,
    list_statuses,
    list_trips,
    make_payer,
    no_secrets,
)
from tests.support.scripted import ScriptedModel
from tests.support.scripted.replies import Call

pytestmark = pytest.mark.one_database


async def test_refused_call_is_told_and_never_runs(cluster: EngineCluster, model: ScriptedModel) -> None:
    paid: list[str] = []
    passing: list[Any] = []

    def watch(call: Any, context_variables: dict[str, Any]) -> None:
        passing.append((call, context_variables))

    agent = Agent(name="A", functions=[make_payer(paid, watch, no_secrets)])
    engine = await cluster.open_engine(agent)
    await open_session(engine, context_variables={"k": 1})
    model.calls([Call("pay", {"to": SECRET}, id="c1"), Call("pay", {"to": "Lee"}, id="c2")])
    model.say("Done.")
    view = await run_to_end(engine)
    assert (view.stop_reason, paid) == ("end_turn", ["Lee"])
    assert passing[0] == ({"id": "c1", "name": "pay", "arguments": {"to": SECRET}}, {"k": 1})
    told = [message["content"] for message in model.requests[1]["messages"] if message["role"] == "tool"]
    assert told == ["Refused: pay did not run. Let us speak of something else.", "paid Lee"]
    (trip,) = list_trips(await read_log(engine))
    assert (trip.stage, trip.name, trip.tool_call_id) == ("tool", "no_secrets", "c1")
    assert list_statuses(await read_log(engine)) == ["refused", "ok"]
    await check_log(engine, model)
    assert await find_divergences(engine, agent) == []
    assert await list_kinds(engine, Agent(name="A", functions=[make_payer([])])) == ["guardrail"]
    assert await list_kinds(engine, Agent(name="A", functions=[make_payer([], broken)])) == ["guardrail"] * 2
    assert paid == ["Lee"]


async def test_failing_guardrail_blocks_its_call(cluster: EngineCluster, model: ScriptedModel) -> None:
    paid: list[str] = []
    engine = await cluster.open_engine(Agent(name="A", functions=[make_payer(paid, broken)]))
    await open_session(engine)
    model.call("pay", {"to": "Lee"}, id="c1")
    model.say("Sorry.")
    assert (await run_to_end(engine)).stop_reason == "end_turn"
    assert paid == []
    assert "the guardrail broken failed" in json.dumps(model.requests[1])


@pytest.mark.parametrize("idempotent", [False, True])
async def test_kill_at_guardrail_never_skips_it(cluster: EngineCluster, model: ScriptedModel, idempotent: bool) -> None:
    paid: list[str] = []
    gate = ToolGate()

    def slow(call: Any, context_variables: dict[str, Any]) -> None:
        gate.enter()

    def make_agent(*guardrails: Any) -> Agent:
        return Agent(name="A", functions=[make_payer(paid, *guardrails, idempotent=idempotent)])

    first = await cluster.open_engine(make_agent(slow))
    await open_session(first)
    model.call("pay", {"to": SECRET}, id="c1")
    model.say("Sorry.")
    await first.runs.start(KEY, make_start_run())
    await gate.wait_until_reached()
    await kill_engine(first)
    second = await cluster.open_engine(make_agent(no_secrets))
    assert (await wait_for_end(second)).stop_reason == "end_turn"
    await gate.open()
    assert paid == []
    assert list_statuses(await read_log(second)) == ["refused" if idempotent else "unknown_outcome"]
