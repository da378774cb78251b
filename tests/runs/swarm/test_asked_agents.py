"""Agents that ask others where nothing is kept: as on a server, in memory."""

from __future__ import annotations

import pytest

from swarmkeep import Agent, Result
from swarmkeep.events.codec import Json
from tests.runs.swarm.runners import Runner
from tests.support.scripted import ScriptedModel


def note(context_variables: Json, text: str) -> Result:
    return Result("noted", context_variables={"note": text + context_variables["mark"]})


CLERK = Agent(name="Clerk", functions=[note])
DESK = Agent(name="Desk", functions=[CLERK.as_tool("ask_clerk", "Ask the clerk.", timeout=20)])


def test_the_answer_is_the_result(swarm: Runner, model: ScriptedModel) -> None:
    model.call("ask_clerk", {"input": "Note it."}, id="c1")
    model.call("note", {"text": "late"}, id="n1")
    model.say("Done.")
    model.say("It is noted.")
    response = swarm.run(DESK, "Go", context_variables={"mark": "!"})
    assert [message["content"] for message in response.messages] == [None, "Done.", "It is noted."]
    assert response.context_variables == {"mark": "!", "note": "late!"}
    assert response.agent is DESK
    assert model.requests[1]["messages"][-1] == {"role": "user", "content": "Note it."}


def test_stream_shows_asker_not_asked(swarm: Runner, model: ScriptedModel) -> None:
    model.call("ask_clerk", {"input": "Hm?"}, id="c1")
    model.say("Below.")
    model.say("Above.")
    frames = swarm.stream(DESK, "Go", context_variables={"mark": "!"})
    assert "".join(frame.get("content") or "" for frame in frames) == "Above."


def test_self_asking_agent_terminates(swarm: Runner, model: ScriptedModel) -> None:
    mirror = Agent(name="Mirror")
    mirror.functions.append(mirror.as_tool("ask_mirror", "Ask yourself."))
    for number in range(9):
        model.call("ask_mirror", {"input": "?"}, id=f"c{number}")
    for number in range(9):
        model.say(f"answer {number}")
    response = swarm.run(mirror, "Go")
    assert response.messages[-1]["content"] == "answer 8"
    assert "up to 8 deep" in model.requests[9]["messages"][-1]["content"]


def test_who_fails_is_an_answer(swarm: Runner, model: ScriptedModel) -> None:
    model.call("ask_clerk", {"input": "Hm?"}, id="c1")
    model.fail(401, message="no such key")
    model.say("Nobody there.")
    response = swarm.run(DESK, "Go")
    assert "gave no answer" in response.messages[1]["content"]
    assert response.messages[-1]["content"] == "Nobody there."


def test_asking_function_is_not_hand_callable() -> None:
    with pytest.raises(TypeError, match="which only a run can do"):
        CLERK.as_tool("ask_clerk", "Ask.")("Hm?")
