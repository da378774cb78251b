"""Which texts of the environment are secrets."""

from __future__ import annotations

import json

import pytest

from swarmkeep.models.failures import REMOVED, find_secrets


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("OTEL_EXPORTER_OTLP_HEADERS", "tenant=shop-one,authorization=Basic%20dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20dXNlcjpwYXNz", "Basic dXNlcjpwYXNz"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-team = 0123456789abcdef , a=b", "0123456789abcdef"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-team=0123456789abcdef==", "0123456789abcdef=="),
    ],
)
def test_collector_credentials_are_secret(name: str, value: str, secret: str) -> None:
    assert find_secrets({name: value}).mask(f"it sent {secret}!") == f"it sent {REMOVED}!"


def test_other_collector_settings_are_not_secret() -> None:
    found = find_secrets(
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.example:4318", "OTEL_SERVICE_NAME": "swarmkeep"}
    )
    assert found.mask("swarmkeep sends to collector.example:4318") == "swarmkeep sends to collector.example:4318"


@pytest.mark.parametrize(
    "secret",
    [
        "-----BEGIN KEY-----\nMC4CAQAw\n-----END KEY-----\n",
        '{"id": "shop", "private_key": "0123"}',
        "pass\\word",
        "clé-secrète",
    ],
)
def test_secrets_are_removed_in_any_escaping(secret: str) -> None:
    found, value = find_secrets({"SHOP_CREDENTIALS": secret}), {"is": secret}
    for written in (secret, secret.strip(), json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret)):
        masked = found.mask(f"<{written}>")
        assert REMOVED in masked
        assert len(masked) <= len(f'<"{REMOVED}\\n">')
    assert REMOVED in found.mask(json.dumps(value))
    assert REMOVED in found.mask(str(value))


def test_url_password_is_removed_raw_and_encoded() -> None:
    found = find_secrets({"DATABASE_URL": "postgresql://app:very%2Fsecret@db/app"})
    assert found.mask("very%2Fsecret very/secret") == f"{REMOVED} {REMOVED}"
    found = find_secrets({"DATABASE_URL": "postgresql://db/app?user=app&password=very-secret&sslmode=require"})
    assert found.mask("app very-secret require") == f"app {REMOVED} require"
