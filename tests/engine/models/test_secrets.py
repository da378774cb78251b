"""Which texts of the environment are secrets."""

from __future__ import annotations

import pytest

from swarmkeep.engine.models.secrets import REMOVED, find_secrets


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("OTEL_EXPORTER_OTLP_HEADERS", "tenant=shop-one,authorization=Basic%20dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20dXNlcjpwYXNz", "Basic dXNlcjpwYXNz"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-team = 0123456789abcdef , a=b", "0123456789abcdef"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-team=0123456789abcdef==", "0123456789abcdef=="),
    ],
)
def test_what_a_collector_is_sent_to_let_the_server_in_is_one(name: str, value: str, secret: str) -> None:
    assert find_secrets({name: value}).mask(f"it sent {secret}!") == f"it sent {REMOVED}!"


def test_other_settings_of_a_collector_are_none() -> None:
    found = find_secrets(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.example:4318", "OTEL_SERVICE_NAME": "swarmkeep"}
    )
    assert found.mask("swarmkeep sends to collector.example:4318") == "swarmkeep sends to collector.example:4318"
