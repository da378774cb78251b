"""Context variables and instructions, on Swarm and on AsyncSwarm: who sees them, and which changes stay."""

from __future__ import annotations

from collections import defaultdict
from datetime import date
from typing import Any

import pytest

from swarmkeep import Agent, Result
from swarmkeep.events.codec import Json
from tests.runs.swarm.runners import Runner, list_tool_texts
from tests.support.scripted import ScriptedModel


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
