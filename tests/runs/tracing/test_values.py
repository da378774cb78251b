"""What others send (a traceparent, names, figures) becomes values that every exporter can send, or nothing."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from swarmkeep.models.clients import ModelSettings
from swarmkeep.models.secrets import NO_SECRETS, REMOVED, Secrets
from swarmkeep.runs.spans import clean_value, describe_provider, read_traceparent, set_attributes
from tests.http.server import server_settings
from tests.support.spans import CaughtSpans, get_attributes

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_traceparent_is_read() -> None:
    found = read_traceparent(f"00-{TRACE}-{SPAN}-01")
    assert found is not None
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
    assert found == {
        "half": "a\ufffdb",
        "long": "x" * 256,
        "masked": f"id-{REMOVED}",
        "list": ("a\ufffd",),
        "count": 7,
    }
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
