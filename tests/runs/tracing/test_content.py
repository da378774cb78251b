"""What was said is in spans only where it is asked for: masked, bounded, and in the conventions' shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan

from swarmkeep import Agent
from swarmkeep.events.messages import Entry
from swarmkeep.models.secrets import NO_SECRETS, REMOVED, Secrets
from swarmkeep.runs.spans import (
    MAX_TEXT_CHARACTERS,
    MAX_TOTAL_CHARACTERS,
    describe_input,
    describe_output,
    describe_text,
    is_content_wanted,
)
from tests.runs.cluster import EngineCluster, open_session, run_to_end
from tests.runs.tracing.conftest import MakeTracing
from tests.support.scripted import ScriptedModel
from tests.support.spans import CaughtSpans, get_attributes

WORDS = ("secret garden", "Oslo", "raining", "umbrella", "Help them")
SECRET = "sk-very-secret-key"


def look(city: str) -> str:
    return f"raining in {city}, says {SECRET}"


async def play(cluster: EngineCluster, model: ScriptedModel, tracing: Any) -> None:
    agent = Agent(name="Front", instructions="Help them.", model="m", functions=[look])
    engine = await cluster.open_engine(agent, tracing=tracing)
    await open_session(engine)
    model.call("look", {"city": "Oslo"}, id="call_1")
    model.say("Take an umbrella")
    await run_to_end(engine, "how is the secret garden?")


def read_json(span: ReadableSpan, name: str) -> Any:
    return json.loads(get_attributes(span)[name])


async def test_content_is_absent_unless_requested(
    cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans, make_tracing: MakeTracing
) -> None:
    await play(cluster, model, make_tracing())
    assert len(spans.all) == 4
    assert [word for word in (*WORDS, SECRET) if word in spans.read_texts()] == []


async def test_requested_content_has_no_secrets(
    cluster: EngineCluster, model: ScriptedModel, spans: CaughtSpans, make_tracing: MakeTracing
) -> None:
    await play(cluster, model, make_tracing(has_content=True, secrets=Secrets([SECRET])))
    first, second = spans.named("chat m")
    call = {"type": "tool_call", "id": "call_1", "name": "look", "arguments": {"city": "Oslo"}}
    result = f"raining in Oslo, says {REMOVED}"
    question = {"role": "user", "parts": [{"type": "text", "content": "how is the secret garden?"}]}
    assert read_json(first, "gen_ai.system_instructions") == [{"type": "text", "content": "Help them."}]
    assert read_json(first, "gen_ai.input.messages") == [question]
    assert read_json(first, "gen_ai.output.messages") == [
        {"role": "assistant", "parts": [call], "finish_reason": "tool_calls"}
    ]
    assert read_json(second, "gen_ai.input.messages") == [
        question,
        {"role": "assistant", "parts": [call]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_1", "response": result}]},
    ]
    called = get_attributes(spans.one("execute_tool look"))
    assert called["gen_ai.tool.call.arguments"] == '{"city": "Oslo"}'
    assert called["gen_ai.tool.call.result"] == result
    assert SECRET not in spans.read_texts()


def make_entry(role: str = "user", **message: Any) -> Entry:
    return Entry(seq=1, at="", run_id=None, message={"role": role, **message})


def test_long_history_keeps_last_messages() -> None:
    entries = [make_entry(content=f"{number} " + "x" * 5_000) for number in range(1_000)]
    text = describe_input(entries, NO_SECRETS)
    kept = [message["parts"][0]["content"].partition(" ")[0] for message in json.loads(text)]
    assert kept == ["994", "995", "996", "997", "998", "999"]
    assert len(text) < MAX_TOTAL_CHARACTERS


@pytest.mark.parametrize(
    "message",
    [
        {"content": "é" * 5_000_000},
        {"content": [{"type": "text", "text": "y" * 100_000} for _ in range(100)]},
        {"content": [{"type": "image_url", "image_url": {"url": "data:" + "z" * 5_000_000}}]},
        {
            "role": "assistant",
            "tool_calls": [
                {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": "1" * 50_000}}
                for number in range(500)
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "t" * 5_000_000},
    ],
    ids=["text", "parts", "picture", "calls", "result"],
)
def test_one_large_message_is_cut(message: dict[str, Any]) -> None:
    described = describe_input([make_entry(**message)], NO_SECRETS)
    (found,) = json.loads(described)
    assert found["parts"]
    # A part that begins within the bound is kept, each no longer than a text may be.
    assert len(described) < MAX_TOTAL_CHARACTERS + 2 * MAX_TEXT_CHARACTERS
    assert "zzz" not in described


@pytest.mark.parametrize("arguments", ["{", '{"a": "\ud800"}', "[" * 5_000 + "]" * 5_000, "NaN"])
def test_odd_arguments_are_a_text(arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    (found,) = json.loads(describe_output({"tool_calls": [call]}, None, NO_SECRETS))
    assert isinstance(found["parts"][0]["arguments"], str)


def test_secrets_are_removed_before_cutting() -> None:
    text = "x" * (MAX_TEXT_CHARACTERS - 6) + SECRET
    assert "sk-ver" not in describe_text(text, Secrets([SECRET]))


def test_half_a_character_can_be_sent(spans: CaughtSpans) -> None:
    odd = "half \ud800"
    with spans.tracer.start_as_current_span("odd") as span:
        span.set_attribute("text", describe_text(odd, NO_SECRETS))
        span.set_attribute("output", describe_output({"content": odd}, "stop", NO_SECRETS))
    assert encode_spans(spans.all).SerializeToString()


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("true", True), ("True", True), ("SPAN_ONLY", True), ("span_and_event", True), ("1", True)]
    + [(value, False) for value in ("", "false", "event_only", "no_content", "0")],
)
def test_conventional_variable_enables_content(value: str, wanted: bool) -> None:
    assert is_content_wanted({"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": value}) is wanted


def test_without_the_variable_nobody_asks() -> None:
    assert not is_content_wanted({})
