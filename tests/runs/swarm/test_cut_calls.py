"""Calls that the end of a reply cut, in Swarm and AsyncSwarm: see tests/runs/calls/test_cut_calls.py."""

from __future__ import annotations

import pytest

from swarmkeep import Agent
from tests.runs.calls.test_cut_calls import PIECES, RAN, cancel_orders, options_of, ping, script_calls
from tests.runs.swarm.runners import Runner, list_tool_texts
from tests.support.scripted import ScriptedModel


@pytest.fixture(autouse=True)
def ran() -> None:
    RAN.clear()


@PIECES
@pytest.mark.parametrize("execute_tools", [True, False])
def test_swarm_runs_whole_calls_only(
    swarm: Runner, model: ScriptedModel, how: str, arguments: str, execute_tools: bool
) -> None:
    agent = Agent(name="Desk", functions=[cancel_orders, ping])
    script_calls(model, how, ("cancel_orders", arguments))
    if execute_tools:
        script_calls(model, how, ("ping", "{}"))
        model.say("Done.")
    if options_of(how).stream:
        response = swarm.stream(agent, "Cancel A-1.", execute_tools=execute_tools)[-1]["response"]
    else:
        response = swarm.run(agent, "Cancel A-1.", execute_tools=execute_tools)
    assert (["ping"] if execute_tools else []) == RAN
    assert "cancel_orders was not run" in list_tool_texts(response)[0]
    if not execute_tools:
        assert response.messages[-1]["role"] == "tool"


def test_cut_calls_exhaust_turns_or_raise(swarm: Runner, model: ScriptedModel) -> None:
    agent = Agent(name="Desk", functions=[cancel_orders])
    for _ in range(4):
        script_calls(model, "length", ("cancel_orders", "{}"))
    assert len(swarm.run(agent, "Cancel A-1.", max_turns=1).messages) == 2
    with pytest.raises(RuntimeError, match="token limit"):
        swarm.run(agent, "Cancel A-1.")
    assert RAN == []
