"""Functions, handoffs and context variables, on Swarm and on AsyncSwarm."""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

from swarmkeep import Agent, Result, ToolCallId, tool
from swarmkeep.events.codec import Json
from tests.runs.swarm.runners import Runner, list_tool_texts
from tests.runs.swarm.shop import make_refunds_and_sales
from tests.support.rules import find_body_faults
from tests.support.scripted import ScriptedModel


class Opinion(BaseModel):
    text: str
    stars: int


@dataclass
class Point:
    x: int
    y: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        ({"a": [1, "é"]}, '{"a": [1, "é"]}'),
        ([1, None, True], "[1, null, true]"),
        (Opinion(text="good", stars=5), '{"text": "good", "stars": 5}'),
        (Point(1, 2), '{"x": 1, "y": 2}'),
        ([Point(1, 2)], '[{"x": 1, "y": 2}]'),
        (7, "7"),
        (None, "None"),
        (True, "True"),
        (date(2026, 1, 2), "2026-01-02"),
        (Result(value={"a": 1}), '{"a": 1}'),
        (Result(), ""),
    ],
)
def test_what_a_function_returns_becomes_text(swarm: Runner, model: ScriptedModel, value: Any, text: str) -> None:
    def give() -> Any:
        return value

    model.call("give")
    model.say("Done.")
    assert list_tool_texts(swarm.run(Agent(functions=[give]), "Go")) == [text]


def test_unserialisable_values_name_path_and_type(swarm: Runner, model: ScriptedModel) -> None:
    def give() -> Json:
        return {"rows": [{"when": date(2026, 1, 1)}]}

    model.call("give")
    model.say("Done.")
    [text] = list_tool_texts(swarm.run(Agent(functions=[give]), "Go"))
    assert text == (
        "Error: give gave something that JSON cannot hold: value.rows[0].when is of type date, which JSON cannot hold"
    )


def test_every_kind_of_callable_works(swarm: Runner, model: ScriptedModel) -> None:
    async def wait(name: str) -> str:
        return f"async {name}"

    def hand_on(name: str) -> Any:
        return wait(name)

    def greet(greeting: str, name: str) -> str:
        return f"{greeting} {name}"

    class Desk:
        def visit(self, name: str) -> str:
            return f"method {name}"

        def __call__(self, name: str) -> str:
            return f"object {name}"

    functions = [wait, hand_on, functools.partial(greet, greeting="Dear"), Desk().visit, Desk()]
    agent = Agent(functions=functions)
    names = list(agent.tools())
    assert names == ["wait", "hand_on", "greet", "visit", "Desk"]
    model.calls([(name, {"name": "Ann"}) for name in names])
    model.say("Done.")
    assert list_tool_texts(swarm.run(agent, "Go")) == ["async Ann", "async Ann", "Dear Ann", "method Ann", "object Ann"]


def test_arguments_are_converted_to_their_hints(swarm: Runner, model: ScriptedModel) -> None:
    def review(opinion: Opinion, days: list[date], n: int = 3) -> str:
        return f"{opinion.stars + n} {days[0].year}"

    model.call("review", {"opinion": {"text": "x", "stars": 4}, "days": ["2026-01-02"]})
    model.say("Done.")
    assert list_tool_texts(swarm.run(Agent(functions=[review]), "Go")) == ["7 2026"]


def test_function_can_request_its_call_id(swarm: Runner, model: ScriptedModel) -> None:
    def pay(amount: int, tool_call_id: ToolCallId) -> str:
        return f"{amount} for {tool_call_id}"

    model.call("pay", {"amount": 5}, id="call_77")
    model.say("Paid.")
    assert list_tool_texts(swarm.run(Agent(functions=[pay]), "Go")) == ["5 for call_77"]
    assert list(model.requests[0]["tools"][0]["function"]["parameters"]["properties"]) == ["amount"]


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


def test_an_agent_without_functions_says_so(swarm: Runner, model: ScriptedModel) -> None:
    model.call("look")
    model.say("Sorry.")
    assert "Valid functions: none." in list_tool_texts(swarm.run(Agent(), "Go"))[0]


def test_empty_arguments_count_as_none(swarm: Runner, model: ScriptedModel) -> None:
    def look() -> str:
        return "rain"

    model.call("look", "")
    model.say("Rain.")
    assert list_tool_texts(swarm.run(Agent(functions=[look]), "Go")) == ["rain"]


def test_slow_call_is_told_to_model(swarm: Runner, model: ScriptedModel) -> None:
    import threading

    never = threading.Event()

    @tool(timeout=0.01)
    def hang() -> str:
        never.wait(20)
        return "late"

    model.call("hang")
    model.say("Too slow.")
    [text] = list_tool_texts(swarm.run(Agent(functions=[hang]), "Go"))
    never.set()
    assert text == "Error: hang did not finish within 0.01 s. It may or may not have taken effect."


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


def test_calls_see_previous_context_changes(swarm: Runner, model: ScriptedModel) -> None:
    def count(context_variables: Json) -> Result:
        return Result(str(context_variables["n"]), context_variables={"n": context_variables["n"] + 1})

    def append(context_variables: Json) -> str:
        context_variables["seen"].append(context_variables["n"])
        return "ok"

    model.calls([("count", {}, "c1"), ("append", {}, "c2"), ("count", {}, "c3"), ("append", {}, "c4")])
    model.say("Done.")
    response = swarm.run(Agent(functions=[count, append]), "Go", context_variables={"n": 1, "seen": []})
    assert list_tool_texts(response) == ["1", "ok", "2", "ok"]
    assert response.context_variables == {"n": 3, "seen": [2, 3]}


def test_failed_call_leaves_context(swarm: Runner, model: ScriptedModel) -> None:
    def half(context_variables: Json) -> str:
        context_variables["half"] = True
        raise RuntimeError("no")

    model.call("half")
    model.say("Failed.")
    assert swarm.run(Agent(functions=[half]), "Go", context_variables={"a": 1}).context_variables == {"a": 1}


def test_keys_can_be_removed_or_none(swarm: Runner, model: ScriptedModel) -> None:
    def tidy(context_variables: Json) -> str:
        del context_variables["old"]
        context_variables["maybe"] = None
        return "ok"

    model.call("tidy")
    model.say("Done.")
    response = swarm.run(Agent(functions=[tidy]), "Go", context_variables={"old": 1, "kept": None})
    assert response.context_variables == {"kept": None, "maybe": None}


def test_unserialisable_context_names_path_and_type(swarm: Runner, model: ScriptedModel) -> None:
    def remember(context_variables: Json) -> str:
        context_variables["trip"] = {"days": [{"on": date(2026, 1, 1)}]}
        return "ok"

    model.call("remember")
    model.say("Failed.")
    response = swarm.run(Agent(functions=[remember]), "Go")
    [text] = list_tool_texts(response)
    assert "context_variables.trip.days[0].on" in text
    assert "date" in text
    assert response.context_variables == {}


def test_the_model_never_sees_context_variables(swarm: Runner, model: ScriptedModel) -> None:
    def greet(context_variables: Json, language: str) -> str:
        return f"{language} {context_variables['secret']}"

    model.call("greet", {"language": "en"})
    model.say("Done.")
    swarm.run(Agent(functions=[greet]), "Go", context_variables={"secret": "x"})
    parameters = model.requests[0]["tools"][0]["function"]["parameters"]
    assert list(parameters["properties"]) == ["language"]


def test_local_variable_name_is_no_parameter(swarm: Runner, model: ScriptedModel) -> None:
    def greet(name: str) -> str:
        context_variables = {"name": name}
        return context_variables["name"]

    model.call("greet", {"name": "Ann"})
    model.say("Done.")
    assert list_tool_texts(swarm.run(Agent(functions=[greet]), "Go")) == ["Ann"]


# Instructions.


def test_instructions_may_be_a_function(swarm: Runner, model: ScriptedModel) -> None:
    model.say("Hello!")
    swarm.run(Agent(instructions=lambda: "Say hello."), "Hi")
    assert model.requests[0]["messages"][0]["content"] == "Say hello."


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


def test_instructions_may_be_async(swarm: Runner, model: ScriptedModel) -> None:
    async def instructions(context_variables: Json) -> str:
        return f"Help {context_variables['name']}."

    model.say("Hello!")
    swarm.run(Agent(instructions=instructions), "Hi", context_variables={"name": "Ann"})
    assert model.requests[0]["messages"][0]["content"] == "Help Ann."


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
