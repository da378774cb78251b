"""Runs that are streamed, on Swarm and on AsyncSwarm: deltas between delimiters, and at last the response."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from swarmkeep import Agent
from swarmkeep.events.codec import Json
from tests.runs.swarm.runners import Runner, list_tool_texts, make_answer
from tests.runs.swarm.shop import join_texts, make_refunds_and_sales
from tests.support.scripted import USAGE, ScriptedModel


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


def make_chunk(delta: Json, finish_reason: str | None = None, **more: Any) -> Json:
    return {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}], **more}


def make_piece(**fields: Any) -> Json:
    function = {key: fields.pop(key) for key in ("name", "arguments") if key in fields}
    return {**fields, "function": function}


def test_wild_chunks_are_streamed(swarm: Runner, model: ScriptedModel) -> None:
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


def test_half_character_is_not_a_delta(swarm: Runner, model: ScriptedModel) -> None:
    chunks = [make_chunk({"content": text}) for text in ("hi \ud83d", "\ude00")]
    model.chunks([f"data: {json.dumps(chunk)}\n\n" for chunk in [*chunks, make_chunk({}, "stop")]])
    frames = swarm.stream(Agent(), "Hi")
    assert [frame["content"] for frame in frames if frame.get("content")] == ["hi ", "\U0001f600"]


def test_repetition_is_not_a_delta(swarm: Runner, model: ScriptedModel) -> None:
    def get_time(city: str = "here") -> str:
        return f"noon in {city}"

    texts = ({}, '{"city": "Rome"}', '{"city": "Rome"}')
    pieces = [make_piece(index=0, id="u1", name="get_time", arguments=text) for text in texts]
    model.chunks([*(make_chunk({"tool_calls": [piece]}) for piece in pieces), make_chunk({}, "tool_calls")])
    model.say("Noon.")
    frames = swarm.stream(Agent(functions=[get_time]), "When?")
    assert list_tool_texts(frames[-1]["response"]) == ["noon in Rome"]
    shown = [call["function"]["arguments"] for frame in frames for call in frame.get("tool_calls") or ()]
    assert "".join(shown) == '{"city": "Rome"}'


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
