"""Swarm's semantics, which AsyncSwarm shares: each test runs on both, with the real client against a real socket."""

from __future__ import annotations

import copy
import json
import math
from datetime import date

import httpx2
import openai
import pytest

from swarmkeep import Agent, Result
from swarmkeep.events.codec import Json
from tests.runs.swarm.runners import AsyncRunner, Runner, SyncRunner, make_answer, user_message
from tests.runs.swarm.shop import join_texts, make_refunds_and_sales
from tests.support.rules import find_body_faults
from tests.support.scripted import ScriptedModel


def test_request_holds_only_the_expected_fields(swarm: Runner, model: ScriptedModel) -> None:
    model.say("Hello!")
    swarm.run(Agent(instructions="Be brief.", model="small"), "Hi")
    assert model.requests == [
        {"model": "small", "messages": [{"role": "system", "content": "Be brief."}, user_message("Hi")]}
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
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
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


# What models and clients do that is not quite Chat Completions, on Swarm and on AsyncSwarm.


def test_empty_reply_ends_the_run(swarm: Runner, model: ScriptedModel) -> None:
    model.raw({"choices": [{"index": 0, "message": {"role": "assistant", "content": None}, "finish_reason": "stop"}]})
    assert swarm.run(Agent(), "Hi").messages == [make_answer(sender="Agent")]


def test_more_than_text_is_kept(swarm: Runner, model: ScriptedModel) -> None:
    message = {"role": "assistant", "content": None, "refusal": "No.", "reasoning_content": "hm", "audio": None}
    model.raw({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    [kept] = swarm.run(Agent(name="A"), "Hi").messages
    provider = {"model": "gpt-4o", "server": "127.0.0.1", "message": {"reasoning_content": "hm"}}
    assert kept == make_answer(refusal="No.", sender="A", provider=provider)


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
def test_client_exceptions_pass_unchanged(
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


# Agents that ask others where nothing is kept: as on a server, in memory.


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


# Runs that are streamed, on Swarm and on AsyncSwarm: deltas between delimiters, and at last the response.


def test_stream_has_delimited_deltas_and_response(swarm: Runner, model: ScriptedModel) -> None:
    model.say(["Hel", "lo ", "you"])
    frames = swarm.stream(Agent(name="Greeter"), "Hi")
    assert frames[0] == {"delim": "start"}
    assert frames[-2] == {"delim": "end"}
    assert frames[1]["sender"] == "Greeter"
    assert frames[1]["role"] == "assistant"
    assert [frame["content"] for frame in frames[1:-2] if frame.get("content")] == ["Hel", "lo ", "you"]
    response = frames[-1]["response"]
    assert response.messages == [make_answer(content="Hello you", sender="Greeter")]
    assert model.requests[0]["stream"] is True
    assert model.requests[0]["stream_options"] == {"include_usage": True}


def test_first_delta_alone_names_its_sender(swarm: Runner, model: ScriptedModel) -> None:
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


def test_deltas_without_content_have_a_null(swarm: Runner, model: ScriptedModel) -> None:
    # As Swarm's own deltas, so that `if chunk["content"] is not None` works.
    model.call("look")
    model.say("Hm.")
    frames = swarm.stream(Agent(), "Go")
    contents = [frame["content"] for frame in frames if "delim" not in frame and "response" not in frame]
    assert set(contents) == {None, "", "Hm."}


def test_breaking_stream_raises_after_its_words(swarm: Runner, model: ScriptedModel) -> None:
    model.half_stream("Half a")
    with pytest.raises(httpx2.RemoteProtocolError, match="peer closed connection"):
        swarm.stream(Agent(), "Hi")


def test_zero_max_turns_streams_only_response(swarm: Runner) -> None:
    [frame] = swarm.stream(Agent(), "Hi", max_turns=0)
    assert frame["response"].messages == []


def test_frames_are_json_except_the_response(swarm: Runner, model: ScriptedModel) -> None:
    model.say("Hello!")
    frames = swarm.stream(Agent(), "Hi")
    assert json.loads(json.dumps(frames[:-1])) == frames[:-1]
