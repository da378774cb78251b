"""Functions of every kind, on Swarm and on AsyncSwarm: what they may return, and that their errors are data."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

from swarmkeep import Agent, Result, ToolCallId, tool
from swarmkeep.events.codec import Json
from tests.runs.swarm.runners import Runner, list_tool_texts
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
