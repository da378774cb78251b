"""Swarm's semantics, which AsyncSwarm shares: each test runs on both, with the real client against a real socket."""

from __future__ import annotations

import copy
import math
from datetime import date

import pytest

from swarmkeep import Agent, Result
from swarmkeep.events.codec import Json
from tests.runs.swarm.runners import Runner, make_answer, user_message
from tests.support.rules import find_body_faults
from tests.support.scripted import ScriptedModel


def test_a_text_is_answered(swarm: Runner, model: ScriptedModel) -> None:
    model.say("Hello!")
    agent = Agent(name="Greeter")
    response = swarm.run(agent, "Hi")
    assert response.messages == [make_answer(content="Hello!", sender="Greeter")]
    assert response.agent is agent
    assert response.context_variables == {}


def test_request_holds_only_the_expected_fields(swarm: Runner, model: ScriptedModel) -> None:
    model.say("Hello!")
    swarm.run(Agent(instructions="Be brief.", model="small"), "Hi")
    assert model.requests == [
        {"model": "small", "messages": [{"role": "system", "content": "Be brief."}, user_message("Hi")]},
    ]


def test_foreign_parts_are_converted_or_refused(swarm: Runner, model: ScriptedModel) -> None:
    model.say("Hello!")
    said: list[Json] = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Yes?"}]},
        user_message("Well."),
    ]
    swarm.run(Agent(), said)
    assert find_body_faults(model.raw_requests[-1]) == []
    assert [message["content"] for message in model.requests[-1]["messages"][1:]] == [
        [{"type": "text", "text": "Hi"}], [{"type": "text", "text": "Yes?"}], "Well.",
    ]  # fmt: skip
    for part in ({"type": "video_url", "video_url": {"url": "x"}}, {"type": "text"}, "text"):
        with pytest.raises(ValueError, match="content"):
            swarm.run(Agent(), [{"role": "user", "content": [part]}])


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


def test_forced_call_holds_once_per_agent(swarm: Runner, model: ScriptedModel) -> None:
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


def test_tool_choice_can_name_function(swarm: Runner, model: ScriptedModel) -> None:
    def look() -> str:
        return ""

    model.say("Hello!")
    choice = {"type": "function", "function": {"name": "look"}}
    swarm.run(Agent(functions=[look], tool_choice=choice), "Hi")
    assert model.requests[0]["tool_choice"] == choice


def test_model_override_beats_agent_model(swarm: Runner, model: ScriptedModel) -> None:
    model.say("Hello!")
    swarm.run(Agent(model="small"), "Hi", model_override="large")
    assert model.requests[0]["model"] == "large"


def test_answered_call_prompts_model_again(swarm: Runner, model: ScriptedModel) -> None:
    def add(a: int, b: int) -> str:
        return str(a + b)

    model.call("add", {"a": 1, "b": 2}, id="call_1")
    model.say("Three.")
    response = swarm.run(Agent(name="Sums", functions=[add]), "1 + 2?")
    asked, answered, said = response.messages
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    assert asked == make_answer(tool_calls=[call], sender="Sums")
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


def test_unanswered_history_call_gets_answered(swarm: Runner, model: ScriptedModel) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "gone", "arguments": "{}"}}
    model.say("I see.")
    swarm.run(
        Agent(),
        [user_message("Hi"), {"role": "assistant", "content": None, "tool_calls": [call]}, user_message("And now?")],
    )
    sent = model.requests[0]["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "user"]
    assert "unknown" in sent[3]["content"]


def test_given_arguments_are_left_unchanged(swarm: Runner, model: ScriptedModel) -> None:
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


def test_message_with_unknown_role_is_refused(swarm: Runner) -> None:
    with pytest.raises(ValueError, match=r"messages\[1\].role is 'robot'"):
        swarm.run(Agent(), [user_message("Hi"), {"role": "robot", "content": "beep"}])


def test_unserialisable_context_is_refused_by_name(swarm: Runner) -> None:
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


def test_unexecuted_tool_calls_are_given_back(swarm: Runner, model: ScriptedModel) -> None:
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
