"""Swarm's semantics, which AsyncSwarm shares: each test runs on both, with the real client against a real socket."""

from __future__ import annotations

import copy
import functools
import json
import math
from collections import defaultdict
from dataclasses import dataclass
from datetime import date
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from swarmkeep import Agent, Result, Swarm, ToolCallId, tool
from swarmkeep.domain.codec import Json
from tests.engine.swarm.runners import AsyncRunner, Runner, SyncRunner, list_tool_texts, user_message
from tests.support.rules import find_body_faults
from tests.support.scripted import USAGE, ScriptedModel


@pytest.fixture(params=[SyncRunner, AsyncRunner], ids=["Swarm", "AsyncSwarm"])
def swarm(request: pytest.FixtureRequest, model: ScriptedModel) -> Runner:
    runner: Runner = request.param(model.url)
    return runner


# What is asked, and what comes back.


def test_a_text_is_answered(swarm: Runner, model: ScriptedModel) -> None:
    model.say("Hello!")
    agent = Agent(name="Greeter")
    response = swarm.run(agent, "Hi")
    assert response.messages == [{"role": "assistant", "content": "Hello!", "sender": "Greeter"}]
    assert response.agent is agent
    assert response.context_variables == {}


def test_the_request_holds_instructions_model_and_history_and_nothing_else(swarm: Runner, model: ScriptedModel) -> None:
    model.say("Hello!")
    swarm.run(Agent(instructions="Be brief.", model="small"), "Hi")
    assert model.requests == [
        {"model": "small", "messages": [{"role": "system", "content": "Be brief."}, user_message("Hi")]},
    ]


def test_tools_go_with_their_settings(swarm: Runner, model: ScriptedModel) -> None:
    def look(city: str) -> str:
        """Look out of the window."""
        return city

    model.say("Hello!")
    swarm.run(Agent(functions=[look], tool_choice="required", parallel_tool_calls=False), "Hi")
    [request] = model.requests
    assert request["tool_choice"] == "required"
    assert request["parallel_tool_calls"] is False
    assert request["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "look",
                "description": "Look out of the window.",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}},
                    "required": ["city"],
                },
            },
        }
    ]


def test_a_forced_call_is_forced_once_for_each_agent_of_a_run(swarm: Runner, model: ScriptedModel) -> None:
    def look() -> Agent:
        """Look, and hand over."""
        return second

    named = {"type": "function", "function": {"name": "look"}}
    second = Agent(name="Second", functions=[look], tool_choice=named)
    model.call("look")
    model.call("look")
    model.say("Seen.")
    swarm.run(Agent(name="First", functions=[look], tool_choice="required"), "Hi")
    assert [request["tool_choice"] for request in model.requests] == ["required", named, "auto"]


def test_a_tool_choice_can_name_a_function(swarm: Runner, model: ScriptedModel) -> None:
    def look() -> str:
        return ""

    model.say("Hello!")
    choice = {"type": "function", "function": {"name": "look"}}
    swarm.run(Agent(functions=[look], tool_choice=choice), "Hi")
    assert model.requests[0]["tool_choice"] == choice


def test_model_override_goes_before_the_agents_model(swarm: Runner, model: ScriptedModel) -> None:
    model.say("Hello!")
    swarm.run(Agent(model="small"), "Hi", model_override="large")
    assert model.requests[0]["model"] == "large"


def test_a_call_is_answered_and_the_model_asked_again(swarm: Runner, model: ScriptedModel) -> None:
    def add(a: int, b: int) -> str:
        return str(a + b)

    model.call("add", {"a": 1, "b": 2}, id="call_1")
    model.say("Three.")
    response = swarm.run(Agent(name="Sums", functions=[add]), "1 + 2?")
    asked, answered, said = response.messages
    assert asked == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
        ],
        "sender": "Sums",
    }
    assert answered == {
        "role": "tool", "tool_call_id": "call_1", "tool_name": "add", "content": "3", "sender": "Sums",
    }  # fmt: skip
    assert said["content"] == "Three."
    # What goes back to the model is the same without the keys that only we know.
    assert model.requests[1]["messages"][2:] == [
        {"role": "assistant", "content": None, "tool_calls": asked["tool_calls"]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]


def test_messages_can_be_the_next_input(swarm: Runner, model: ScriptedModel) -> None:
    def look() -> str:
        return "rain"

    agent = Agent(functions=[look])
    model.call("look")
    model.say("It rains.")
    history = [user_message("Weather?")]
    history += swarm.run(agent, history).messages
    model.say("You are welcome.")
    history.append(user_message("Thanks"))
    swarm.run(agent, history)
    assert all(not find_body_faults(body) for body in model.raw_requests)
    assert [message["role"] for message in model.requests[2]["messages"]] == [
        "system", "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip


def test_an_unanswered_call_of_the_history_is_answered_before_it_is_sent(swarm: Runner, model: ScriptedModel) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "gone", "arguments": "{}"}}
    model.say("I see.")
    swarm.run(
        Agent(),
        [user_message("Hi"), {"role": "assistant", "content": None, "tool_calls": [call]}, user_message("And now?")],
    )
    sent = model.requests[0]["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "user"]
    assert "unknown" in sent[3]["content"]


def test_what_is_given_is_left_as_it_is(swarm: Runner, model: ScriptedModel) -> None:
    def change(context_variables: Json) -> Result:
        context_variables["cart"].append("pear")
        return Result("ok", context_variables={"new": 1})

    messages = [user_message("Hi")]
    context = {"cart": ["apple"]}
    before = copy.deepcopy((messages, context))
    model.call("change")
    model.say("Done.")
    response = swarm.run(Agent(functions=[change]), messages, context_variables=context)
    assert (messages, context) == before
    assert response.context_variables == {"cart": ["apple", "pear"], "new": 1}
    # And what is given back shares nothing with what the next run would be given.
    response.messages[0]["content"] = "changed"
    assert messages == before[0]


def test_a_message_without_a_known_role_is_refused(swarm: Runner) -> None:
    with pytest.raises(ValueError, match=r"messages\[1\].role is 'robot'"):
        swarm.run(Agent(), [user_message("Hi"), {"role": "robot", "content": "beep"}])


def test_context_that_json_cannot_hold_is_refused_by_name(swarm: Runner) -> None:
    with pytest.raises(ValueError, match=r"context_variables.trip.on is of type date"):
        swarm.run(Agent(), "Hi", context_variables={"trip": {"on": date(2026, 1, 1)}})


@pytest.mark.parametrize(("allowed", "asked"), [(0, 0), (1, 1), (2, 2), (3, 3), (math.inf, 4)])
def test_max_turns_counts_model_calls(swarm: Runner, model: ScriptedModel, allowed: float, asked: int) -> None:
    def again() -> str:
        return "once more"

    for _ in range(min(asked, 3)):
        model.call("again")
    if asked == 4:
        model.say("Enough.")
    response = swarm.run(Agent(functions=[again]), "Go", max_turns=allowed)
    assert model.request_count == asked
    assert [message["role"] for message in response.messages] == ["assistant", "tool"] * min(asked, 3) + (
        ["assistant"] if asked == 4 else []
    )


def test_without_execute_tools_the_calls_are_given_back(swarm: Runner, model: ScriptedModel) -> None:
    def never() -> str:
        raise AssertionError

    model.calls([("never", {}, "c1"), ("never", {}, "c2")])
    response = swarm.run(Agent(functions=[never]), "Go", execute_tools=False)
    [message] = response.messages
    assert [call["id"] for call in message["tool_calls"]] == ["c1", "c2"]


def test_debug_tells_what_happens(swarm: Runner, model: ScriptedModel, capsys: pytest.CaptureFixture[str]) -> None:
    def look() -> str:
        return "rain in Oslo"

    model.call("look")
    model.say("It rains.")
    swarm.run(Agent(functions=[look]), "Weather?", debug=True)
    shown = capsys.readouterr().out
    assert "look" in shown
    assert '"content":"rain in Oslo"' in shown
    assert "UNSET" not in shown
    model.say("Quiet.")
    swarm.run(Agent(), "Hi")
    assert capsys.readouterr().out == ""


# Handing over.


def make_refunds_and_sales() -> tuple[Agent, Agent, Agent]:
    def to_sales() -> Agent:
        return sales

    def to_refunds() -> Result:
        return Result("Transferred to Refunds.", agent=refunds, context_variables={"department": "refunds"})

    sales = Agent(name="Sales", instructions="Sell.")
    refunds = Agent(name="Refunds", instructions="Refund.", model="careful")
    triage = Agent(name="Triage", functions=[to_sales, to_refunds])
    return triage, sales, refunds


def test_a_function_that_returns_an_agent_hands_over(swarm: Runner, model: ScriptedModel) -> None:
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


def test_of_several_handoffs_in_one_reply_the_last_wins_and_the_other_says_so(
    swarm: Runner, model: ScriptedModel
) -> None:
    triage, _, refunds = make_refunds_and_sales()
    model.calls([("to_sales", {}, "c1"), ("to_refunds", {}, "c2")])
    model.say("Refunded.")
    response = swarm.run(triage, "Buy, no, return!")
    assert response.agent is refunds
    first, second = list_tool_texts(response)
    assert "Not handed over to Sales" in first
    assert second == "Transferred to Refunds."
    assert [message["content"] for message in model.requests[1]["messages"][-2:]] == [first, second]


def test_calls_beside_a_handoff_are_the_old_agents(swarm: Runner, model: ScriptedModel) -> None:
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


def test_a_call_goes_to_the_agent_that_asked_even_if_another_of_its_name_follows(
    swarm: Runner, model: ScriptedModel
) -> None:
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


def test_an_agent_may_be_made_on_the_spot(swarm: Runner, model: ScriptedModel) -> None:
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


# Context variables.


def test_each_call_sees_the_context_that_the_former_left(swarm: Runner, model: ScriptedModel) -> None:
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


def test_a_failed_call_leaves_the_context_as_it_was(swarm: Runner, model: ScriptedModel) -> None:
    def half(context_variables: Json) -> str:
        context_variables["half"] = True
        raise RuntimeError("no")

    model.call("half")
    model.say("Failed.")
    assert swarm.run(Agent(functions=[half]), "Go", context_variables={"a": 1}).context_variables == {"a": 1}


def test_a_key_can_be_removed_and_none_is_a_value(swarm: Runner, model: ScriptedModel) -> None:
    def tidy(context_variables: Json) -> str:
        del context_variables["old"]
        context_variables["maybe"] = None
        return "ok"

    model.call("tidy")
    model.say("Done.")
    response = swarm.run(Agent(functions=[tidy]), "Go", context_variables={"old": 1, "kept": None})
    assert response.context_variables == {"kept": None, "maybe": None}


def test_context_that_json_cannot_hold_fails_at_the_call_by_path_and_type(swarm: Runner, model: ScriptedModel) -> None:
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


def test_a_local_variable_of_that_name_is_no_parameter(swarm: Runner, model: ScriptedModel) -> None:
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


def test_instructions_see_the_context_as_it_is_now_and_missing_keys_are_empty(
    swarm: Runner, model: ScriptedModel
) -> None:
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


def test_instructions_that_fail_end_the_run_with_their_own_words(swarm: Runner, model: ScriptedModel) -> None:
    def instructions() -> str:
        raise LookupError("no template")

    with pytest.raises(RuntimeError, match=r"the instructions of 'Lost' failed: LookupError: no template") as failed:
        swarm.run(Agent(name="Lost", instructions=instructions), "Hi")
    assert failed.value.code == "instructions_failed"  # type: ignore[attr-defined]
    assert model.request_count == 0


# Functions of every kind, and what they may return.


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


def test_values_that_json_cannot_hold_name_path_and_type(swarm: Runner, model: ScriptedModel) -> None:
    def give() -> Json:
        return {"rows": [{"when": date(2026, 1, 1)}]}

    model.call("give")
    model.say("Done.")
    [text] = list_tool_texts(swarm.run(Agent(functions=[give]), "Go"))
    assert text == (
        "Error: give gave something that JSON cannot hold: value.rows[0].when is of type date, which JSON cannot hold"
    )


def test_async_functions_partials_methods_and_callable_objects(swarm: Runner, model: ScriptedModel) -> None:
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


def test_a_function_can_ask_for_the_id_of_its_call(swarm: Runner, model: ScriptedModel) -> None:
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
def test_a_bad_call_is_told_to_the_model_and_the_loop_goes_on(
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


def test_a_call_that_takes_too_long_is_told_to_the_model(swarm: Runner, model: ScriptedModel) -> None:
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


def test_a_call_that_needs_an_approval_is_given_back(swarm: Runner, model: ScriptedModel) -> None:
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


# What models answer that is not quite Chat Completions.


def test_calls_without_ids_get_some(swarm: Runner, model: ScriptedModel) -> None:
    def look() -> str:
        return "rain"

    calls = [{"type": "function", "function": {"name": "look", "arguments": {}}} for _ in range(2)]
    choice = {"index": 0, "message": {"role": "assistant", "tool_calls": calls}, "finish_reason": "tool_calls"}
    model.raw({"choices": [choice]})
    model.say("Rain.")
    response = swarm.run(Agent(functions=[look]), "Go")
    ids = [call["id"] for call in response.messages[0]["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(ids)
    assert [message["tool_call_id"] for message in response.messages[1:3]] == ids


def test_ids_that_are_used_again_are_replaced(swarm: Runner, model: ScriptedModel) -> None:
    def look(n: int) -> str:
        return str(n)

    model.call("look", {"n": 1}, id="0")
    model.call("look", {"n": 2}, id="0")
    model.say("Done.")
    response = swarm.run(Agent(functions=[look]), "Go")
    assert list_tool_texts(response) == ["1", "2"]
    first, second = (m["tool_calls"][0]["id"] for m in response.messages if m.get("tool_calls"))
    assert first == "0"
    assert second != "0"


def test_a_reply_without_text_or_calls_ends_the_run(swarm: Runner, model: ScriptedModel) -> None:
    model.raw({"choices": [{"index": 0, "message": {"role": "assistant", "content": None}, "finish_reason": "stop"}]})
    assert swarm.run(Agent(), "Hi").messages == [{"role": "assistant", "content": None, "sender": "Agent"}]


def test_more_than_text_is_kept(swarm: Runner, model: ScriptedModel) -> None:
    message = {"role": "assistant", "content": None, "refusal": "No.", "reasoning_content": "hm", "audio": None}
    model.raw({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    [kept] = swarm.run(Agent(name="A"), "Hi").messages
    assert kept == {
        "role": "assistant", "content": None, "refusal": "No.", "reasoning_content": "hm", "sender": "A",
    }  # fmt: skip


# What clients raise.


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_client_raises_is_raised_as_it_is(
    swarm: Runner, model: ScriptedModel, status: int, error: type[openai.APIStatusError], stream: bool
) -> None:
    model.fail(status, message="no such luck")
    with pytest.raises(error, match="no such luck") as raised:
        (swarm.stream if stream else swarm.run)(Agent(), "Hi")
    assert raised.value.status_code == status


def test_a_model_that_cannot_be_reached() -> None:
    import socket

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
    with pytest.raises(openai.APIConnectionError):
        SyncRunner(url).run(Agent(), "Hi")
    with pytest.raises(openai.APIConnectionError):
        AsyncRunner(url).run(Agent(), "Hi")


# Streaming.


def join_texts(frames: list[Json]) -> str:
    return "".join(frame.get("content") or "" for frame in frames)


def test_a_stream_is_deltas_between_delimiters_and_at_last_the_response(swarm: Runner, model: ScriptedModel) -> None:
    model.say(["Hel", "lo ", "you"])
    frames = swarm.stream(Agent(name="Greeter"), "Hi")
    assert frames[0] == {"delim": "start"}
    assert frames[-2] == {"delim": "end"}
    assert frames[1]["sender"] == "Greeter"
    assert frames[1]["role"] == "assistant"
    assert [frame["content"] for frame in frames[1:-2] if frame.get("content")] == ["Hel", "lo ", "you"]
    response = frames[-1]["response"]
    assert response.messages == [{"role": "assistant", "content": "Hello you", "sender": "Greeter"}]
    assert model.requests[0]["stream"] is True
    assert model.requests[0]["stream_options"] == {"include_usage": True}


def test_only_the_first_delta_of_a_message_names_its_sender(swarm: Runner, model: ScriptedModel) -> None:
    triage, _, _ = make_refunds_and_sales()
    model.call("to_sales", text="One moment.")
    model.say("What would you like?")
    frames = swarm.stream(triage, "Buy!")
    assert [frame["delim"] for frame in frames if "delim" in frame] == ["start", "end", "start", "end"]
    # The sender right after a handoff is the agent that speaks, not the one that spoke.
    assert [frame["sender"] for frame in frames if "sender" in frame] == ["Triage", "Sales"]
    after = frames[frames.index({"delim": "end"}) + 1 :]
    assert after[0] == {"delim": "start"}
    assert after[1]["sender"] == "Sales"
    assert join_texts(after) == "What would you like?"


def test_streaming_gives_the_same_response(swarm: Runner, model: ScriptedModel) -> None:
    triage, sales, _ = make_refunds_and_sales()

    def script() -> None:
        model.call("to_sales", id="c1", text="One moment.")
        model.say("What would you like?")

    script()
    plain = swarm.run(triage, "Buy!", context_variables={"a": 1})
    script()
    streamed = swarm.stream(triage, "Buy!", context_variables={"a": 1})[-1]["response"]
    assert streamed.messages == plain.messages
    assert streamed.context_variables == plain.context_variables
    assert streamed.agent is plain.agent is sales


def make_chunk(delta: Json, finish_reason: str | None = None, **more: Any) -> Json:
    return {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}], **more}


def make_piece(**fields: Any) -> Json:
    function = {key: fields.pop(key) for key in ("name", "arguments") if key in fields}
    return {**fields, "function": function}


def test_chunks_as_they_come_in_the_wild(swarm: Runner, model: ScriptedModel) -> None:
    def add(a: int, b: int) -> str:
        return str(a + b)

    model.chunks(
        [
            {"id": "x", "choices": []},
            ": a comment\n\n",
            make_chunk({"role": "assistant"}),
            make_chunk(
                {
                    "tool_calls": [
                        make_piece(index=0, id="c1", name="add", arguments='{"a": 1,'),
                        make_piece(index=1, id="c2", name="add", arguments='{"a": 3,'),
                    ]
                }
            ),
            make_chunk(
                {"tool_calls": [make_piece(index=1, arguments=' "b": 4}'), make_piece(index=0, arguments=' "b": 2}')]}
            ),
            make_chunk({}, "tool_calls"),
            {"id": "x", "choices": [], "usage": USAGE},
        ]
    )
    model.chunks(
        [
            make_chunk({"tool_calls": [make_piece(id="c3", name="add", arguments='{"a": 5, "b": 5}')]}),
            make_chunk({"tool_calls": [make_piece(id="c4", name="add", arguments='{"a": 6, "b": 6}')]}, "stop"),
        ],
        done=False,
    )
    model.chunks([make_chunk({"content": None}), make_chunk({"content": "Done."}, "stop", usage=USAGE)])
    frames = swarm.stream(Agent(functions=[add]), "Go")
    assert list_tool_texts(frames[-1]["response"]) == ["3", "7", "10", "12"]
    assert join_texts(frames) == "Done."
    deltas = [call for frame in frames for call in frame.get("tool_calls") or ()]
    assert [delta["index"] for delta in deltas] == [0, 1, 1, 0, 0, 1]


def test_deltas_without_content_have_a_null(swarm: Runner, model: ScriptedModel) -> None:
    # As Swarm's own deltas, so that `if chunk["content"] is not None` works.
    model.call("look")
    model.say("Hm.")
    frames = swarm.stream(Agent(), "Go")
    assert all("content" in frame for frame in frames if "delim" not in frame and "response" not in frame)


def test_a_stream_that_breaks_raises_after_what_it_said(swarm: Runner, model: ScriptedModel) -> None:
    model.half_stream("Half a")
    with pytest.raises(Exception, match=r"(?i)stream|closed|peer"):
        swarm.stream(Agent(), "Hi")


def test_max_turns_zero_streams_only_a_response(swarm: Runner) -> None:
    [frame] = swarm.stream(Agent(), "Hi", max_turns=0)
    assert frame["response"].messages == []


# Only for Swarm.


def test_run_and_stream_is_swarms_name_for_it(client: OpenAI, model: ScriptedModel) -> None:
    model.say("Hello!")
    frames = list(Swarm(client).run_and_stream(Agent(), [user_message("Hi")]))
    assert join_texts(frames) == "Hello!"


def test_a_stream_closed_early_leaves_nothing_running(client: OpenAI, model: ScriptedModel) -> None:
    model.hang("Once upon")
    frames = Swarm(client).run(Agent(), [user_message("A story!")], stream=True)
    assert next(frames) == {"delim": "start"}
    while not next(frames).get("content"):
        pass
    frames.close()
    model.wait_for_disconnects(1)
    with pytest.raises(StopIteration):
        next(frames)
    model.say("I am still here.")
    assert Swarm(client).run(Agent(), [user_message("Hello?")]).messages[-1]["content"] == "I am still here."


def test_a_stream_that_is_never_read_asks_nobody(client: OpenAI, model: ScriptedModel) -> None:
    Swarm(client).run(Agent(), [user_message("Hi")], stream=True)
    assert model.request_count == 0


def test_tools_run_in_the_callers_thread(client: OpenAI, model: ScriptedModel) -> None:
    import sqlite3

    connection = sqlite3.connect(":memory:")
    connection.execute("create table notes (text)")

    def note(text: str) -> str:
        connection.execute("insert into notes values (?)", [text])
        return str(connection.execute("select count(*) from notes").fetchone()[0])

    model.calls([("note", {"text": "a"}), ("note", {"text": "b"})])
    model.say("Noted.")
    response = Swarm(client).run(Agent(functions=[note]), [user_message("Note a and b.")])
    connection.close()
    assert list_tool_texts(response) == ["1", "2"]


def test_an_interrupt_of_the_program_is_no_tools_error(client: OpenAI, model: ScriptedModel) -> None:
    def control_c() -> str:
        raise KeyboardInterrupt

    model.call("control_c")
    with pytest.raises(KeyboardInterrupt):
        Swarm(client).run(Agent(functions=[control_c]), [user_message("Go")])


async def test_swarm_inside_a_running_loop(client: OpenAI, model: ScriptedModel) -> None:
    # As in a notebook, where async functions cannot be awaited by a second loop in the same thread.
    async def wait() -> str:
        return "waited"

    def plain() -> str:
        return "plain"

    async def instructions() -> str:
        return "Be brief."

    model.calls([("wait", {}), ("plain", {})])
    model.say("Done.")
    response = Swarm(client).run(Agent(functions=[wait, plain], instructions=instructions), [user_message("Go")])
    assert list_tool_texts(response) == ["waited", "plain"]
    model.say(["Do", "ne."])
    frames = list(Swarm(client).run(Agent(), [user_message("Go")], stream=True))
    assert join_texts(frames) == "Done."


def test_the_default_client_is_openais(monkeypatch: pytest.MonkeyPatch, model: ScriptedModel) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment")
    monkeypatch.setenv("OPENAI_BASE_URL", model.url)
    model.say("Hello!")
    swarm = Swarm()
    assert swarm.run(Agent(), [user_message("Hi")]).messages[-1]["content"] == "Hello!"
    swarm.client.close()
    assert model.headers[0]["authorization"] == "Bearer from-the-environment"


def test_an_asynchronous_client_is_refused(async_client: openai.AsyncOpenAI) -> None:
    with pytest.raises(TypeError, match="use AsyncSwarm with it"):
        Swarm(async_client)


@pytest.mark.parametrize("stream", [False, True])
def test_an_asynchronous_double_is_refused_when_it_shows(stream: bool) -> None:
    import asyncio

    class Completions:
        async def create(self, **arguments: Any) -> Any:
            await asyncio.sleep(0)

    class Double:
        chat = type("Chat", (), {"completions": Completions()})

    with pytest.raises(TypeError, match="use AsyncSwarm with it"):
        list(Swarm(Double()).run(Agent(), [user_message("Hi")], stream=stream))


def test_frames_are_json_but_for_the_response(swarm: Runner, model: ScriptedModel) -> None:
    model.say("Hello!")
    frames = swarm.stream(Agent(), "Hi")
    assert json.loads(json.dumps(frames[:-1])) == frames[:-1]


def test_in_one_thread_concurrent_functions_run_one_after_the_other(client: OpenAI, model: ScriptedModel) -> None:
    order: list[str] = []

    @tool(concurrent=True)
    def step(name: str) -> str:
        order.extend([f"{name} begins", f"{name} ends"])
        return name

    model.calls([("step", {"name": "x"}), ("step", {"name": "y"})])
    model.say("Done.")
    Swarm(client).run(Agent(functions=[step], concurrent_tools=True), [user_message("Go")])
    assert order == ["x begins", "x ends", "y begins", "y ends"]
