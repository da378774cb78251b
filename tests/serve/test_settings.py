"""Settings: read from where people put them, refused where they cannot be meant, and silent about secrets."""

from __future__ import annotations

import os
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError
from pydantic_settings import SettingsError

from swarmkeep.serve.settings import Settings


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder, and nothing of ours in the environment."""
    for name in os.environ:
        if name.startswith(("SWARMKEEP_", "OPENAI_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_settings_have_defaults_and_descriptions() -> None:
    settings = Settings()
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.database_url == "sqlite:///swarmkeep.db"
    assert settings.openai_api_key is None
    assert all(field.description for field in Settings.model_fields.values())


def test_flags_override_environment_overrides_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("SWARMKEEP_PORT=1\nSWARMKEEP_HOST=file\nOPENAI_API_KEY=sk-file\nOTHER=x\nSWARMKEEP_NEW=1\n")
    monkeypatch.setenv("SWARMKEEP_PORT", "2")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:11434/v1")
    settings = Settings(model="m")
    assert (settings.port, settings.host, settings.model) == (2, "file", "m")
    assert settings.openai_api_key == SecretStr("sk-file")
    assert settings.openai_base_url == "http://localhost:11434/v1"
    assert Settings(port=3).port == 3


def test_what_is_empty_counts_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "SWARMKEEP_AGENTS", "SWARMKEEP_PORT"):
        monkeypatch.setenv(name, "")
    assert Settings() == Settings(_env_file=None)  # type: ignore[call-arg]
    assert Settings().openai_base_url is None
    assert Settings().agents


@pytest.mark.parametrize(
    ("text", "agents"),
    [
        ("one", ("one",)),
        ("one, two.three ,", ("one", "two.three")),
        (f"one.py{os.pathsep}folder/two", ("one.py", "folder/two")),
        ('["a,b.py", "c"]', ("a,b.py", "c")),
        ("odd:name.py", ("odd:name.py",)),
    ],
)
def test_agents_named_in_usual_ways(text: str, agents: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("odd:name.py").touch()
    monkeypatch.setenv("SWARMKEEP_AGENTS", text)
    assert Settings().agents == agents
    assert Settings(agents=list(agents)).agents == agents  # type: ignore[arg-type]


def test_limits_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARMKEEP_TOOL_SECONDS", "None")
    monkeypatch.setenv("SWARMKEEP_RATE_LIMIT_PER_MINUTE", "none")
    monkeypatch.setenv("SWARMKEEP_LOG_LEVEL", "DEBUG")
    assert (Settings().tool_seconds, Settings().rate_limit_per_minute, Settings().log_level) == (None, None, "debug")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.8.9.10", True), ("::1", True), ("[::1]", True), ("localhost", True), ("127.1", True),
        ("0.0.0.0", False), ("0", False), ("::", False), ("192.0.2.1", False), ("2001:db8::1", False),
    ],
)  # fmt: skip
def test_local_addresses_known_by_any_name(host: str, loopback: bool) -> None:
    assert ip_address(Settings(host=host).resolve_address()[0]).is_loopback is loopback


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 70000),
        ("lease_seconds", 0),
        ("approval_seconds", 1e12),
        ("agents", "[broken"),
        ("log_level", "loud"),
        ("rate_limit_per_minute", 0),
    ],
)
def test_what_cannot_be_meant_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings(**{name: value})
    assert refused.value.errors()[0]["loc"] == (name,)


@pytest.mark.parametrize("origin", ["nonsense", "https://desk.example/", "https://Desk.example", "https://", "**"])
def test_impossible_browser_origin_refused(origin: str) -> None:
    with pytest.raises(ValidationError, match="is not an origin: write https://HOST"):
        Settings(cors_origins=f"https://fine.example,{origin}")  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["localhost:11434", "user:secret@host/v1", "//host/v1", "http:/host", "http://"])
def test_address_of_no_model_server_refused(url: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings(openai_base_url=url)
    [problem] = refused.value.errors()
    assert problem["msg"].endswith("begin it with http:// or https://, as in http://127.0.0.1:11434/v1")


def test_address_of_a_model_server_kept() -> None:
    for url in ("http://127.0.0.1:11434/v1", "HTTPS://user:secret@host", "http://[::1]:80/v1"):
        assert Settings(openai_base_url=url).openai_base_url == url


def test_origins_accepted_as_browsers_send() -> None:
    given = ("https://desk.example", "http://127.0.0.1:5173", "http://[::1]:80", "*", "chrome-extension://abc")
    assert Settings(cors_origins=",".join(given)).cors_origins == given  # type: ignore[arg-type]


def test_names_of_headers_are_checked() -> None:
    given = Settings(openai_session_headers="X-Chat, x_thread!")  # type: ignore[arg-type]
    assert given.openai_session_headers == ("X-Chat", "x_thread!")
    for name in ("X Chat", "X-Chat:", "é", "x" * 101):
        with pytest.raises(ValidationError, match="openai_session_headers"):
            Settings(openai_session_headers=f"X-Fine,{name}")  # type: ignore[arg-type]


def test_secrets_are_not_shown() -> None:
    settings = Settings(openai_api_key="sk-secret", database_url="postgresql://u:sk-secret@h/d")  # type: ignore[arg-type]
    assert "sk-secret" not in f"{settings!r} {settings}"
    assert "sk-secret" not in settings.model_dump_json(exclude={"database_url"})
    with pytest.raises(ValidationError) as refused:
        Settings(openai_api_key="sk-secret", port="sk-secret")  # type: ignore[arg-type]
    assert "sk-secret" not in str(refused.value)


def test_file_cannot_redirect_environment_key(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("OPENAI_BASE_URL=https://evil.example/v1\n")
    assert Settings().openai_base_url == "https://evil.example/v1"
    with pytest.raises(SettingsError, match="OPENAI_API_KEY would be sent there"):
        Settings(openai_api_key=SecretStr("sk-flag"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-environment")
    with pytest.raises(SettingsError, match="OPENAI_API_KEY would be sent there") as refused:
        Settings()
    assert "sk-environment" not in str(refused.value)
    Path(".env").write_text("OPENAI_BASE_URL=https://evil.example/v1\nOPENAI_API_KEY=sk-file\n")
    with pytest.raises(SettingsError):
        Settings()
    monkeypatch.setenv("OPENAI_BASE_URL", "https://mine.example/v1")
    assert Settings().openai_base_url == "https://mine.example/v1"
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.delenv("OPENAI_API_KEY")
    assert Settings().openai_api_key == SecretStr("sk-file")


@pytest.mark.parametrize("proxies", ["10.0.0.1", "10.0.0.0/8,::1", "*"])
def test_proxies_are_addresses_or_networks(proxies: str) -> None:
    assert Settings(forwarded_allow_ips=proxies).forwarded_allow_ips == tuple(proxies.split(","))  # type: ignore[arg-type]


@pytest.mark.parametrize("proxies", ["proxy.example", "10.0.0.0/99", "10.0.0.1/8"])
def test_invalid_proxy_address_refused(proxies: str) -> None:
    with pytest.raises(ValidationError):
        Settings(forwarded_allow_ips=proxies)  # type: ignore[arg-type]
