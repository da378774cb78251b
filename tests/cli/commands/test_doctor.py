"""The doctor finds what would keep a server from starting, says so in a line each, and tells no secrets."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from swarmkeep.cli.commands.doctor import _explain_provider_error, strip_password
from swarmkeep.store import schema
from tests.cli.command_line import ACME, CommandLine
from tests.support.processes import ServerProcess, free_port
from tests.support.scripted import MODEL, ScriptedModel
from tests.support.signing import write_keys


@pytest.fixture
def healthy() -> list[str]:
    return ["doctor", "--offline", "--agents", ACME, "--port", str(free_port())]


def checks(result: Any) -> dict[str, tuple[str, str]]:
    return {one["check"]: (one["status"], one["detail"]) for one in result.json["checks"]}


def test_all_is_well(cli: CommandLine, healthy: list[str]) -> None:
    result = cli(*healthy, "--json")
    assert result.code == 0
    assert result.json["healthy"] is True
    found = checks(result)
    names = ["python", "sqlite", "database", "disk", "agents", "model", "port", "open files", "access", "integrity"]
    assert list(found) == names
    assert all(status != "wrong" for status, _ in found.values())
    assert "Triage Agent" in found["agents"][1]
    assert "not an LLM" in found["model"][1]
    text = cli(*healthy)
    assert text.code == 0
    assert all(f"\n{check} " in text.out for check in found)
    assert "\nSWARMKEEP_LEASE_SECONDS " in text.out
    assert {"OPENAI_API_KEY", "SWARMKEEP_OPENAI_SESSION_HEADERS"} <= result.json["settings"].keys()
    assert "OPENAI_SESSION_HEADERS" not in result.json["settings"]


def test_named_files_are_looked_at(cli: CommandLine, healthy: list[str]) -> None:
    private, _ = write_keys(cli.folder, "key")
    good = {
        "SWARMKEEP_RETENTION": "180d",
        "SWARMKEEP_ARCHIVE": f"file://{cli.folder / 'archive'}",
        "SWARMKEEP_ARCHIVE_AFTER": "90d",
        "SWARMKEEP_SIGNING_KEY": str(private),
        "SWARMKEEP_PRICES": '{"gpt*": {"input": 1, "output": 2}}',
    }
    bad = {
        "SWARMKEEP_RETENTION": "soon",
        "SWARMKEEP_ARCHIVE": "s3://archive/sessions",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "SWARMKEEP_SIGNING_KEY": "none.pem",
        "SWARMKEEP_PRICES": "none.json",
    }
    for env, status in ((good, "ok"), (bad, "wrong")):
        found = checks(cli(*healthy, "--json", env=env))
        assert [found[name][0] for name in ("prices", "retention", "archive", "signing key")] == [status] * 4, found
    assert "archived sessions cannot be read" in found["archive"][1]
    assert checks(cli(*healthy, "--json", env={"SWARMKEEP_ARCHIVE_AFTER": "90d"}))["archive"][0] == "wrong"


def test_looking_changes_nothing(cli: CommandLine, healthy: list[str]) -> None:
    assert cli(*healthy).code == 0
    assert list(cli.folder.iterdir()) == []
    assert "does not exist yet" in checks(cli(*healthy, "--json"))["database"][1]


@pytest.mark.parametrize(("version", "status"), [((3, 51, 2), "warning"), ((3, 51, 3), "ok"), ((3, 60, 0), "ok")])
def test_an_old_sqlite_is_warned_of(
    cli: CommandLine, healthy: list[str], monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], status: str
) -> None:
    monkeypatch.setattr("sqlite3.sqlite_version_info", version)
    result = cli(*healthy, "--json")
    assert result.code == 0
    assert checks(result)["sqlite"][0] == status


def test_workers_on_file_database_found(cli: CommandLine, healthy: list[str]) -> None:
    (cli.folder / ".env").write_text("SWARMKEEP_WORKERS=2\n")
    result = cli(*healthy, "--json")
    assert result.code == 1
    assert checks(result)["workers"][0] == "wrong"


def test_misspelt_setting_told(cli: CommandLine, healthy: list[str]) -> None:
    # As editors on Windows save it.
    (cli.folder / ".env").write_bytes(b"\xef\xbb\xbfSWARMKEEP_AGENST=shop.py\r\nSWARMKEEP_LOG_LEVEL=debug\r\n")
    result = cli(*healthy, "--json", env={"SWARMKEEP_OFLINE": "1", "SWARMKEEP_ELSEWHERE": "1", "SWARMKEEP_URL": ""})
    assert result.json["settings"]["SWARMKEEP_LOG_LEVEL"] == "debug"
    assert result.err.splitlines() == [
        "unknown setting SWARMKEEP_AGENST; did you mean SWARMKEEP_AGENTS?",
        "unknown setting SWARMKEEP_OFLINE; did you mean SWARMKEEP_OFFLINE?",
    ]


def test_targeted_server_is_asked(cli: CommandLine, healthy: list[str]) -> None:
    for url, complaint in (("http://127.0.0.1:1", "no answer from the server"), ("shop", "http")):
        result = cli(*healthy, "--json", env={"SWARMKEEP_URL": url})
        # It is no reason why a server could not start.
        assert result.code == 0
        status, detail = checks(result)["commands"]
        assert (status, url in detail, complaint in detail) == ("warning", True, True), detail


def test_binary_settings_file_named(cli: CommandLine) -> None:
    (cli.folder / ".env").write_bytes("SWARMKEEP_PORT=1".encode("utf-16"))
    assert "/.env, which must be text in UTF-8" in cli.expect_refusal("doctor")


@pytest.mark.long
def test_all_faults_named_at_once(cli: CommandLine) -> None:
    (cli.folder / "broken.py").write_text("import nothing_of_that_name\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        url = "postgresql://clerk:hunter2@127.0.0.1:1/shop"
        result = cli("doctor", "--agents", "broken.py", "--database-url", url, "--port", port, "--json")
    assert result.code == 1
    found = checks(result)
    assert {check for check, (status, _) in found.items() if status == "wrong"} == {
        "database", "agents", "model", "port",
    }  # fmt: skip
    assert "nothing_of_that_name" in found["agents"][1]
    assert "OPENAI_BASE_URL" in found["model"][1]
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in found["port"][1]
    assert "hunter2" not in result.out
    assert result.err == "error: 4 of 9 checks failed: database, agents, model, port\n"


def test_outdated_schema_names_the_command(cli: CommandLine, healthy: list[str], postgres_url: str) -> None:
    result = cli(*healthy, "--database-url", postgres_url, "--json")
    assert result.code == 1
    assert "swarmkeep db upgrade" in checks(result)["schema"][1]
    schema.upgrade(postgres_url)
    assert checks(cli(*healthy, "--database-url", postgres_url, "--json"))["schema"][0] == "ok"


@pytest.mark.long
def test_tenant_near_quota_warned(cli: CommandLine, healthy: list[str]) -> None:
    where = ["--database-url", "sqlite:///here.db"]
    assert cli("db", "upgrade", *where).code == 0
    assert checks(cli(*healthy, *where, "--json"))["quotas"] == ("ok", "nothing is stored yet")
    assert cli("chat", "--offline", "--agents", ACME, *where, text="Hello\n").code == 0
    status, detail = checks(cli(*healthy, *where, "--json"))["quotas"]
    assert (status, "has 1 of 10000000 sessions" in detail) == ("ok", True)
    env = {"SWARMKEEP_MAX_SESSIONS": "1"}
    status, detail = checks(cli(*healthy, *where, "--json", env=env))["quotas"]
    assert (status, "'default', has 1 of 1 session and" in detail) == ("warning", True)


def test_uncreatable_file_is_wrong(cli: CommandLine, healthy: list[str]) -> None:
    result = cli(*healthy, "--database-url", "sqlite:///no/such/folder/x.db", "--json")
    assert checks(result)["database"][0] == "wrong"


def test_log_without_database_is_wrong(cli: CommandLine, healthy: list[str]) -> None:
    (cli.folder / "swarmkeep.db-wal").write_bytes(b"committed last")
    status, detail = checks(cli(*healthy, "--json"))["database"]
    assert (status, "put the file back" in detail) == ("wrong", True)


def test_secrets_are_not_shown(cli: CommandLine, healthy: list[str]) -> None:
    env = {
        "OPENAI_API_KEY": "sk-hunter2",
        "OPENAI_BASE_URL": "http://clerk:hunter3@127.0.0.1:1/v1?key=hunter4",
        "SWARMKEEP_DATABASE_URL": "postgresql://clerk:hunter5@127.0.0.1:1/shop?password=hunter6",
    }
    for options in ([], ["--json"]):
        result = cli(*healthy, *options, env=env)
        assert "hunter" not in result.out + result.err
        assert "127.0.0.1:1/v1" in result.out
        assert "127.0.0.1:1/shop" in result.out


def test_every_setting_can_be_shown(cli: CommandLine, healthy: list[str]) -> None:
    write_keys(cli.folder, "private")
    shown = cli(*healthy, env={"SWARMKEEP_SIGNING_KEY": "private.pem"})
    assert (shown.code, "private.pem" in shown.out) == (0, True), shown
    assert cli(*healthy, "--json", env={"SWARMKEEP_SIGNING_KEY": "private.pem"}).code == 0


def test_running_server_is_fine(cli: CommandLine) -> None:
    with ServerProcess(cli.folder, agents=[ACME]) as server:
        result = cli("doctor", "--offline", "--agents", ACME, "--port", str(server.port), "--json")
    assert "a Swarmkeep server" in checks(result)["port"][1]
    assert result.code == 0


def test_provider_asked_only_on_request(cli: CommandLine, model: ScriptedModel) -> None:
    asking = ["doctor", "--agents", ACME, "--port", str(free_port()), "--json"]
    env = {"OPENAI_BASE_URL": model.url}
    assert "provider" not in checks(cli(*asking, env=env))
    assert checks(cli(*asking, "--online", "--model", MODEL, env=env))["provider"][0] == "ok"
    assert checks(cli(*asking, "--online", "--model", "gpt-none", env=env))["provider"][0] == "warning"


def test_unreachable_provider_is_wrong(cli: CommandLine) -> None:
    asking = ["doctor", "--agents", ACME, "--port", str(free_port()), "--json", "--online"]
    result = cli(*asking, env={"OPENAI_BASE_URL": f"http://127.0.0.1:{free_port()}/v1"})
    assert result.code == 1
    assert checks(result)["provider"][0] == "wrong"


@pytest.mark.parametrize(("status", "found"), [(401, "wrong"), (403, "wrong"), (404, "warning"), (500, "warning")])
def test_unexpected_provider_answers_are_judged(status: int, found: str) -> None:
    error = Exception("no")
    error.status_code = status  # type: ignore[attr-defined]
    judged = _explain_provider_error(error)
    assert judged.status == found
    assert str(status) in judged.detail


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://clerk:secret@host:1/v1", "http://host:1/v1"),
        ("http://host/v1?key=secret", "http://host/v1"),
        ("https://host", "https://host"),
        ("no url", "no url"),
    ],
)
def test_urls_are_shown_without_passwords(url: str, shown: str) -> None:
    assert strip_password(url) == shown


def test_file_readable_by_others_told(cli: CommandLine, healthy: list[str], tmp_path: Path) -> None:
    cli("db", "upgrade")
    (tmp_path / "swarmkeep.db").chmod(0o644)
    result = cli(*healthy, "--json")
    assert result.code == 0
    status, detail = checks(result)["files"]
    assert status == "warning"
    assert "swarmkeep.db" in detail
    assert "chmod 600" in detail


TEAM_WITH_SERVERS = """
import sys
from swarmkeep import Agent, MCPServer

quiet = "import sys; sys.exit('no room')"
agent = Agent(name="A", mcp_servers=[MCPServer(command=[sys.executable, "-c", quiet], name="inn", env={"K": "a-key"})])
"""


def test_unreachable_mcp_server_is_a_warning(cli: CommandLine) -> None:
    team = cli.folder / "team.py"
    team.write_text(TEAM_WITH_SERVERS)
    result = cli("doctor", "--offline", "--agents", str(team), "--port", str(free_port()), "--json")
    status, detail = checks(result)["mcp server"]
    assert status == "warning"
    assert "cannot be reached: its process ended with code 1; its last output: no room" in detail
    assert result.code == 0
    assert "a-key" not in result.out
