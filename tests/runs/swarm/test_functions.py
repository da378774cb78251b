"""Functions, handoffs and context variables, on Swarm and on AsyncSwarm."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from swarmkeep import Agent, Result, tool
from swarmkeep.events.codec import Json
from tests.runs.calls.test_cut_calls import PIECES, RAN, cancel_orders, options_of, ping, script_calls
from tests.runs.swarm.runners import Runner, list_tool_texts
from tests.runs.swarm.shop import make_refunds_and_sales
from tests.support.rules import find_body_faults
from tests.support.scripted import ScriptedModel

# Errors are data.


def fail() -> str:
    raise ConnectionError("the printer is on fire")


def leave() -> str:
    raise SystemExit(3)


def stop() -> str:
    raise StopIteration


def pay(amount: int) -> str:
    return str(amount)


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("nobody", "{}", ["no function called 'nobody'", "Valid functions: fail, leave, stop, pay"]),
        ("", "{}", ["no function called ''"]),
        ("pay", '{"amount": 5', ["pay was not called", "not valid JSON"]),
        ("pay", "[1]", ["must be a JSON object"]),
        ("pay", "{}", ["amount is missing"]),
        ("pay", '{"amount": 1, "currency": "EUR"}', ['"currency" is unexpected', "it takes amount"]),
        ("pay", '{"amount": "much"}', ["amount should be a valid integer", "much"]),
        ("pay", '{"context_variables": {}, "amount": 1}', ['"context_variables" is unexpected']),
        ("fail", "{}", ["fail failed", "ConnectionError: the printer is on fire"]),
        ("leave", "{}", ["leave failed", "SystemExit: 3"]),
        ("stop", "{}", ["stop failed", "StopIteration"]),
    ],
)
def test_bad_call_is_told_and_loop_continues(
    swarm: Runner, model: ScriptedModel, name: str, arguments: str, told: list[str]
) -> None:
    model.call(name, arguments, id="c1")
    model.say("Sorry.")
    response = swarm.run(Agent(functions=[fail, leave, stop, pay]), "Go")
    [text] = list_tool_texts(response)
    for part in told:
        assert part in text
    assert "Traceback" not in text
    assert response.messages[-1]["content"] == "Sorry."
    assert not find_body_faults(model.raw_requests[1])


def test_guarded_call_is_given_back(swarm: Runner, model: ScriptedModel) -> None:
    @tool(requires_approval=True)
    def launch() -> str:
        raise AssertionError("nobody approved")

    def look(at: str) -> str:
        return f"seen {at}"

    rocket = Agent(functions=[launch, look])
    model.calls([("look", {"at": "fuel"}, "c1"), ("launch", {}, "c2"), ("look", {"at": "sky"}, "c3")])
    response = swarm.run(rocket, "Go")
    assert [(message["role"], message.get("content")) for message in response.messages[1:]] == [("tool", "seen fuel")]
    # Whoever decides says what came of it, and goes on.
    model.say("As you command.")
    messages = [{"role": "user", "content": "Go"}, *response.messages]
    messages += [{"role": "tool", "tool_call_id": call_id, "content": "Denied."} for call_id in ("c2", "c3")]
    assert swarm.run(rocket, messages).messages[-1]["content"] == "As you command."
    sent = [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "tool"]
    assert sent == ["seen fuel", "Denied.", "Denied."]


# Context variables and instructions, on Swarm and on AsyncSwarm: who sees them, and which changes stay.


def test_failed_call_leaves_context(swarm: Runner, model: ScriptedModel) -> None:
    def half(context_variables: Json) -> str:
        context_variables["half"] = True
        raise RuntimeError("no")

    model.call("half")
    model.say("Failed.")
    assert swarm.run(Agent(functions=[half]), "Go", context_variables={"a": 1}).context_variables == {"a": 1}


# Instructions.


def test_instructions_see_current_context(swarm: Runner, model: ScriptedModel) -> None:
    def instructions(context_variables: defaultdict[str, Any]) -> str:
        return f"Help {context_variables['name']}, who likes <{context_variables['likes']}>."

    def rename() -> Result:
        return Result("ok", context_variables={"name": "Bob"})

    model.call("rename")
    model.say("Hello Bob!")
    swarm.run(Agent(instructions=instructions, functions=[rename]), "Hi", context_variables={"name": "Ann"})
    assert [request["messages"][0]["content"] for request in model.requests] == [
        "Help Ann, who likes <>.",
        "Help Bob, who likes <>.",
    ]


def test_failing_instructions_raise_their_own_error(swarm: Runner, model: ScriptedModel) -> None:
    def instructions() -> str:
        raise LookupError("no template")

    with pytest.raises(RuntimeError, match=r"the instructions of 'Lost' failed: LookupError: no template") as failed:
        swarm.run(Agent(name="Lost", instructions=instructions), "Hi")
    assert failed.value.code == "instructions_failed"  # type: ignore[attr-defined]
    assert model.request_count == 0


# Handing over, on Swarm and on AsyncSwarm: who goes on, with which context, and what the other calls become.


def test_function_returning_agent_hands_over(swarm: Runner, model: ScriptedModel) -> None:
    triage, sales, _ = make_refunds_and_sales()
    model.call("to_sales")
    model.say("What would you like?")
    response = swarm.run(triage, "I want to buy.")
    assert response.agent is sales
    assert list_tool_texts(response) == ['{"assistant": "Sales"}']
    assert [message["sender"] for message in response.messages] == ["Triage", "Triage", "Sales"]
    assert model.requests[1]["messages"][0] == {"role": "system", "content": "Sell."}
    assert "tools" not in model.requests[1]


def test_a_result_hands_over_with_context(swarm: Runner, model: ScriptedModel) -> None:
    triage, _, refunds = make_refunds_and_sales()
    model.call("to_refunds")
    model.say("Refunded.")
    response = swarm.run(triage, "My money back!", context_variables={"name": "Ann"})
    assert response.agent is refunds
    assert response.context_variables == {"name": "Ann", "department": "refunds"}
    assert list_tool_texts(response) == ["Transferred to Refunds."]
    assert model.requests[1]["model"] == "careful"


def test_call_belongs_to_asking_agent_despite_namesake(swarm: Runner, model: ScriptedModel) -> None:
    def hand_over() -> Agent:
        return second

    def note() -> str:
        return "noted"

    second = Agent(instructions="I am the second.")
    model.calls([("hand_over", {}), ("note", {})])
    model.say("Here I am.")
    response = swarm.run(Agent(functions=[hand_over, note]), "Go")
    assert list_tool_texts(response)[1] == "noted"
    assert response.agent is second
    assert model.requests[1]["messages"][0]["content"] == "I am the second."


def test_agent_may_be_made_in_place(swarm: Runner, model: ScriptedModel) -> None:
    def specialist(topic: str) -> Agent:
        return Agent(name=f"{topic} specialist", instructions=f"Talk about {topic}.")

    model.call("specialist", {"topic": "tax"})
    model.say("About tax…")
    response = swarm.run(Agent(functions=[specialist]), "Tax!")
    assert response.agent.name == "tax specialist"
    assert model.requests[1]["messages"][0]["content"] == "Talk about tax."


# Calls that the end of a reply cut, in Swarm and AsyncSwarm: see tests/runs/calls/test_cut_calls.py.


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
