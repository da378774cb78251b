"""Traces: when they are made, what was said in them, and values that every exporter can send."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan

from swarmkeep import Agent
from swarmkeep.events.messages import Entry
from swarmkeep.models.clients import ModelSettings
from swarmkeep.models.failures import NO_SECRETS, REMOVED, Secrets
from swarmkeep.runs.genai import (
    MAX_TEXT_CHARACTERS,
    MAX_TOTAL_CHARACTERS,
    describe_input,
    describe_output,
    describe_text,
    is_content_wanted,
)
from swarmkeep.runs.tracing import clean_value, describe_provider, read_traceparent, set_attributes
from swarmkeep.serve.traces import open_tracing
from tests.http.server import server_settings
from tests.runs.cluster import EngineCluster
from tests.runs.tracing.conftest import MakeTracing
from tests.support.cases import first
from tests.support.scripted import ScriptedModel
from tests.support.spans import CaughtSpans, get_attributes

COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("mode", "environment"),
    [
        ("auto", {}),
        ("auto", {"OTEL_EXPORTER_OTLP_ENDPOINT": " "}),
        ("off", COLLECTOR),
        ("on", {"OTEL_SDK_DISABLED": "true"}),
        ("on", {"OTEL_TRACES_EXPORTER": "none"}),
        ("auto", {**COLLECTOR, "OTEL_SDK_DISABLED": "TRUE"}),
    ],
)
def test_no_traces_are_made(mode: str, environment: dict[str, str]) -> None:
    assert open_tracing(server_settings(traces=mode), NO_SECRETS, "1", environment) is None


PROGRAM = """
from swarmkeep.models.failures import NO_SECRETS
from swarmkeep.serve.traces import TracesError, open_tracing
from swarmkeep.serve.settings import Settings
try:
    opened = open_tracing(Settings(_env_file=None), NO_SECRETS, "1")
except TracesError as error:
    print("refused:", error)
else:
    print("open" if opened else "none")
"""


@pytest.mark.parametrize(
    ("environment", "said", "logged"),
    first(
        3,
        [
            ({"SWARMKEEP_TRACES": "on"}, "open", ""),
            ({"OTEL_TRACES_EXPORTER": "console"}, "open", ""),
            (
                {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "SWARMKEEP_TRACES": "ON"},
                "refused: traces are sent by http/protobuf only, not by grpc: see OTEL_EXPORTER_OTLP_PROTOCOL",
                "",
            ),
            ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", **COLLECTOR}, "none", "by http/protobuf only, not by grpc"),
            (
                {"OTEL_PROPAGATORS": "b3", **COLLECTOR},
                "none",
                "OpenTelemetry refuses its settings: Propagator b3 not found",
            ),
            ({"OTEL_TRACES_EXPORTER": "zipkin"}, "none", "OTEL_TRACES_EXPORTER is 'zipkin'; use otlp, console or none"),
        ],
    ),
)
def test_process_without_provider_makes_one(environment: dict[str, str], said: str, logged: str) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SWARMKEEP_", "OTEL_"))}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=kept | environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout == f"{said}\n"
    assert logged in run.stderr
    assert bool(run.stderr) is bool(logged)


# What others send (a traceparent, names, figures) becomes values that every exporter can send, or nothing.

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_traceparent_is_read() -> None:
    found = read_traceparent(f"00-{TRACE}-{SPAN}-01")
    assert (f"{found.trace_id:032x}", f"{found.span_id:016x}") == (TRACE, SPAN)
    assert (found.trace_flags.sampled, found.is_remote) == (True, True)


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        "",
        "x",
        f"01-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
    ],
)
def test_invalid_traceparent_names_no_span(text: object) -> None:
    """Events come from files, too."""
    assert read_traceparent(text) is None


def test_unsendable_values_are_mended_or_dropped(spans: CaughtSpans) -> None:
    secrets = Secrets(["sk-very-secret"])
    given: dict[str, Any] = {
        "half": "a\udfffb",
        "long": "x" * 100_000,
        "large": 2**63,
        "masked": "id-sk-very-secret",
        "none": None,
        "list": ["a\ud800"],
        "count": 7,
    }
    with spans.tracer.start_as_current_span("odd") as span:
        set_attributes(span, given, secrets)
    found = get_attributes(spans.one("odd"))
    assert found == {"half": "a\ufffdb", "long": "x" * 256, "masked": f"id-{REMOVED}", "list": ("a\ufffd",), "count": 7}
    assert encode_spans(spans.all).SerializeToString()
    assert clean_value(-(2**64), NO_SECRETS) is None


def make_settings(**given: Any) -> ModelSettings:
    return server_settings(offline=False, **given)


@pytest.mark.parametrize(
    ("url", "name", "address", "port"),
    [
        (None, "openai", "api.openai.com", 443),
        ("http://localhost:11434/v1", "openai", "localhost", 11434),
        ("https://api.mistral.ai/v1", "mistral_ai", "api.mistral.ai", 443),
        ("https://mine.openai.azure.com/openai", "azure.ai.openai", "mine.openai.azure.com", 443),
        ("https://evilgroq.com", "openai", "evilgroq.com", 443),
        ("https://user:password@host.example:99999/v1", "openai", "host.example", None),
    ],
)
def test_provider_is_named_by_host(url: str | None, name: str, address: str, port: int | None) -> None:
    found = describe_provider(make_settings(openai_base_url=url))
    assert found == {"gen_ai.provider.name": name, "server.address": address, "server.port": port}


def test_the_offline_model_is_no_provider() -> None:
    assert describe_provider(server_settings()) == {"gen_ai.provider.name": "swarmkeep.offline"}


# What was said is in spans only where it is asked for: masked, bounded, and in the conventions' shape.

WORDS = ("secret garden", "Oslo", "raining", "umbrella", "Help them")
SECRET = "sk-very-secret-key"


def look(city: str) -> str:
    return f"raining in {city}, says {SECRET}"


async def play(cluster: EngineCluster, model: ScriptedModel, tracing: Any) -> None:
    agent = Agent(name="Front", instructions="Help them.", model="m", functions=[look])
    engine = await cluster.begin(agent, tracing=tracing)
    model.call("look", {"city": "Oslo"}, id="call_1")
    model.say("Take an umbrella")
    await engine.run("how is the secret garden?")


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
