"""Handing over, on Swarm and on AsyncSwarm: who goes on, with which context, and what the other calls become."""

from __future__ import annotations

from swarmkeep import Agent
from tests.runs.swarm.runners import Runner, list_tool_texts
from tests.runs.swarm.shop import make_refunds_and_sales
from tests.support.scripted import ScriptedModel


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


def test_last_handoff_in_reply_wins(swarm: Runner, model: ScriptedModel) -> None:
    triage, _, refunds = make_refunds_and_sales()
    model.calls([("to_sales", {}, "c1"), ("to_refunds", {}, "c2")])
    model.say("Refunded.")
    response = swarm.run(triage, "Buy, no, return!")
    assert response.agent is refunds
    first, second = list_tool_texts(response)
    assert "Not handed over to Sales" in first
    assert second == "Transferred to Refunds."
    assert [message["content"] for message in model.requests[1]["messages"][-2:]] == [first, second]


def test_calls_beside_handoff_stay_old_agents(swarm: Runner, model: ScriptedModel) -> None:
    triage, sales, _ = make_refunds_and_sales()

    def note() -> str:
        return "noted"

    triage.functions.append(note)
    model.calls([("to_sales", {}, "c1"), ("note", {}, "c2")])
    model.say("Hello from sales.")
    response = swarm.run(triage, "Go")
    assert list_tool_texts(response) == ['{"assistant": "Sales"}', "noted"]
    assert response.agent is sales


def test_agents_may_share_a_name(swarm: Runner, model: ScriptedModel) -> None:
    def hand_over() -> Agent:
        return second

    second = Agent(instructions="I am the second.")
    first = Agent(instructions="I am the first.", functions=[hand_over])
    model.call("hand_over")
    model.say("Here I am.")
    response = swarm.run(first, "Go")
    assert response.agent is second
    assert model.requests[1]["messages"][0]["content"] == "I am the second."


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


def test_agent_may_be_made_in_place(swarm: Runner, model: ScriptedModel) -> None:
    def specialist(topic: str) -> Agent:
        return Agent(name=f"{topic} specialist", instructions=f"Talk about {topic}.")

    model.call("specialist", {"topic": "tax"})
    model.say("About tax…")
    response = swarm.run(Agent(functions=[specialist]), "Tax!")
    assert response.agent is not None
    assert response.agent.name == "tax specialist"
    assert model.requests[1]["messages"][0]["content"] == "Talk about tax."


def test_agents_that_hand_back_and_forth(swarm: Runner, model: ScriptedModel) -> None:
    def to_b() -> Agent:
        return b

    def to_a() -> Agent:
        return a

    a = Agent(name="A", functions=[to_b])
    b = Agent(name="B", functions=[to_a])
    model.call("to_b")
    model.call("to_a")
    model.call("to_b")
    model.say("B it is.")
    response = swarm.run(a, "Go")
    assert response.agent is b
    assert [message["sender"] for message in response.messages] == ["A", "A", "B", "B", "A", "A", "B"]
