"""What a server process leaves behind: log lines as JSON, starts in the audit log, and no secret anywhere."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import text

from swarmkeep import __version__
from swarmkeep.events.codec import Json, decode
from swarmkeep.history.checkpoints import verify_audit_log
from swarmkeep.serve.server import StartRecord, describe_settings
from swarmkeep.serve.settings import Settings
from swarmkeep.store.opening import open_store
from swarmkeep.store.schema import upgrade
from tests.http.server import server_settings
from tests.serve.test_serve import ServeProcess, model_environment, wait_until
from tests.support.processes import Process, ServerProcess, clean_environment
from tests.support.scripted import ScriptedModel

API_KEY = 'sk-"canary"-0123456789'

TEAM = """
import logging
import warnings

from swarmkeep import Agent

log = logging.getLogger("shop")


def look_up(order: str) -> str:
    log.warning("looking for\\n%s", order, extra={"order": order})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("this is\\nold", stacklevel=1)
    return "found"


clerk = Agent(name="Clerk", functions=[look_up])
"""


def read_lines(process: Process) -> list[Json]:
    """The log; what is told on standard output is not a part of it."""
    lines = process.output().splitlines()
    found: list[Json] = [json.loads(line) for line in lines if not line.startswith("Swarmkeep is listening on ")]
    assert all(list(line)[:4] == ["time", "level", "logger", "message"] for line in found)
    return found


@pytest.mark.long
def test_lines_are_objects_with_their_context(tmp_path: Path) -> None:
    (tmp_path / "team.py").write_text(TEAM)
    with ScriptedModel() as model:
        environment = model_environment(model) | {
            "OPENAI_API_KEY": API_KEY,
            "SWARMKEEP_AGENTS": str(tmp_path / "team.py"),
            "SWARMKEEP_LOG_FORMAT": "JSON",
            "SWARMKEEP_LOG_LEVEL": "info",
        }
        with ServeProcess(tmp_path, **environment) as server:
            server.request("POST", "/v1/sessions", {"id": "s"})
            model.fail(503, message=f"{API_KEY} is\noverloaded")
            model.call("look_up", {"order": API_KEY}, id="call_1")
            model.say("It is there.")
            run = server.request("POST", "/v1/sessions/s/runs", {"input": "where?"})[1]
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
                connection.sendall(b"this is not HTTP\r\n\r\n")
                assert connection.recv(4096).startswith(b"HTTP/1.1 400")
            assert server.stop() == 0
            lines = read_lines(server)
    assert "canary" not in server.output()
    assert "agents: 1; sessions that name none begin with 'Clerk'" in [line["message"] for line in lines]
    where = {"tenant": "default", "session_id": "s", "run_id": run["id"]}
    (retry,) = [line for line in lines if line["logger"] == "swarmkeep.models.model"]
    assert {**where, "attempt": 1, "level": "warning"}.items() <= retry.items()
    (told,) = [line for line in lines if line["logger"] == "shop"]
    assert {**where, "tool": "look_up", "tool_call_id": "call_1", "attempt": 1}.items() <= told.items()
    assert told["order"] == "[secret removed]"
    (warned,) = [line for line in lines if line["logger"] == "py.warnings"]
    assert "UserWarning: this is\nold" in warned["message"]
    assert {**where, "tool": "look_up"}.items() <= warned.items()
    (access,) = [line for line in lines if line.get("path") == "/v1/sessions/s/runs"]
    assert access["request_id"] == retry["request_id"] == told["request_id"]
    assert [line["message"] for line in lines if line["logger"] == "uvicorn.error"] == [
        "Invalid HTTP request received."
    ]


@pytest.mark.long
def test_taken_over_run_is_named(tmp_path: Path) -> None:
    with ScriptedModel() as model:
        environment = model_environment(model) | {
            "SWARMKEEP_LOG_FORMAT": "json",
            "SWARMKEEP_LOG_LEVEL": "info",
            "SWARMKEEP_LEASE_SECONDS": "1",
            "SWARMKEEP_MODEL_RETRIES": "1",
        }
        with ServeProcess(tmp_path, **environment) as server:
            server.request("POST", "/v1/sessions", {"id": "s"})
            model.hang()
            run = server.request("POST", "/v1/sessions/s/runs", {"input": "hello", "background": True})[1]
            model.wait_for_requests(1)
            server.kill()
            server.start()
            model.fail(503)
            model.say("Hello again.")
            path = f"/v1/sessions/s/runs/{run['id']}"
            wait_until(lambda: server.request("GET", path)[1]["status"] == "completed")
            assert server.stop() == 0
            lines = read_lines(server)
    engine = [line for line in lines if line["logger"].startswith(("swarmkeep.models", "swarmkeep.runs"))]
    assert {line["logger"].rpartition(".")[2] for line in engine} == {"recovery", "model"}
    for line in engine:
        assert {"tenant": "default", "session_id": "s", "run_id": run["id"]}.items() <= line.items()
        assert "request_id" not in line


@pytest.mark.long
@pytest.mark.parametrize(("arguments", "reason"), [((), "no module"), (("--host", "192.0.2.1"), "cannot listen")])
def test_failed_server_start_is_a_line(tmp_path: Path, arguments: tuple[str, ...], reason: str) -> None:
    agents = () if arguments else ("--agents", "no_such_module")
    command = [sys.executable, "-m", "swarmkeep", "serve", "--offline", "--log-format", "json", *agents, *arguments]
    with Process(command, folder=tmp_path) as server:
        assert server.wait() == 1
        lines = read_lines(server)
    assert lines[-1]["level"] == "critical"
    assert reason in lines[-1]["message"].lower()
    assert any("offline" in line["message"] for line in lines)


@pytest.mark.long
def test_disabled_request_logging_logs_none(tmp_path: Path) -> None:
    for arguments, expected in ((("--no-access-log",), []), (("--access-log",), ["/v1/agents"])):
        env = {"SWARMKEEP_ACCESS_LOG": "false"}
        with ServerProcess(tmp_path, arguments=["--log-format", "json", *arguments], env=env) as server:
            assert httpx2.get(f"{server.url}/v1/agents").headers["x-request-id"].startswith("req_")
            server.stop()
            lines = read_lines(server)
        assert [line["path"] for line in lines if line["logger"].startswith("swarmkeep.http.access")] == expected


# Keys and passwords of a server's environment reach no event, file, log or error.


MODEL_KEY = "sk-canary-0123456789"
BANK_TOKEN = "tok-canary-9876543210"
PASSWORD = "pw-canary-5555"
CANARY = "canary"

BANK_TEAM = """
import os

from swarmkeep import Agent, Result


def look_up():
    return Result(value="token: " + os.environ["BANK_TOKEN"], context_variables={"used": os.environ["BANK_TOKEN"]})


def fail():
    raise RuntimeError("cannot reach " + os.environ["LEDGER_URL"])


clerk = Agent(name="Clerk", functions=[look_up, fail])
"""


@pytest.mark.long
def test_secrets_sent_back_are_removed(tmp_path: Path) -> None:
    (tmp_path / "team.py").write_text(BANK_TEAM)
    with ScriptedModel() as model:
        environment = {
            "SWARMKEEP_OFFLINE": "false",
            "SWARMKEEP_AGENTS": str(tmp_path / "team.py"),
            "SWARMKEEP_MODEL_RETRIES": "1",
            "OPENAI_BASE_URL": model.url,
            "OPENAI_API_KEY": MODEL_KEY,
            "BANK_TOKEN": BANK_TOKEN,
            "LEDGER_URL": f"https://clerk:{PASSWORD}@ledger.example/v2",
        }
        with ServeProcess(tmp_path, **environment) as server:
            server.request("POST", "/v1/sessions", {"id": "s"})
            model.calls([("look_up", {}), ("fail", {"unknown": MODEL_KEY}), ("fail", {})], text=f"I know {MODEL_KEY}")
            model.say(f"Your key is {MODEL_KEY}.")
            answered = server.request("POST", "/v1/sessions/s/runs", {"input": "hello"})[1]
            # Once in a log line about the next attempt, once in the error of the run.
            model.fail(503, message=f"Bearer {MODEL_KEY} is overloaded")
            model.fail(401, message=f"Incorrect API key provided: {MODEL_KEY}")
            failed = server.request("POST", "/v1/sessions/s/runs", {"input": "again"})[1]
            assert server.stop() == 0
            assert model.headers[-1]["authorization"] == f"Bearer {MODEL_KEY}"
        sent = b"".join(model.raw_requests).decode()
    assert answered["output_text"] == "Your key is [secret removed]."
    assert failed["error"]["message"] == "Incorrect API key provided: [secret removed]"
    assert "Bearer [secret removed] is overloaded" in server.output()
    assert "https://clerk:[secret removed]@ledger.example/v2" in sent
    assert answered["context_variables"] == {"used": "[secret removed]"}
    for place in (sent, server.output(), *(file.read_bytes().decode("latin-1") for file in tmp_path.glob("*.db*"))):
        assert CANARY not in place


@pytest.mark.long
def test_human_text_kept_unchanged(tmp_path: Path) -> None:
    """Only what models and tools send back is looked at: texts of people come back exactly as they were accepted."""
    with ServeProcess(tmp_path, BANK_TOKEN=BANK_TOKEN) as server:
        server.request("POST", "/v1/sessions", {"id": "s", "context_variables": {"said": BANK_TOKEN}})
        server.request("POST", "/v1/sessions/s/runs", {"input": f"Is {BANK_TOKEN} yours?"})
        messages = server.request("GET", "/v1/sessions/s/messages")[1]["data"]
        assert messages[0]["content"] == f"Is {BANK_TOKEN} yours?"
        assert server.request("GET", "/v1/sessions/s")[1]["context_variables"] == {"said": BANK_TOKEN}


# That a server began and ended is in the audit log, with the settings that say who may do what.


SECRETS = {"OPENAI_API_KEY": "sk-canary-1234567", "SWARMKEEP_METRICS_TOKEN": "canary-token-123"}


def test_authorisation_settings_are_recorded() -> None:
    described = describe_settings(server_settings(cors_origins=["https://desk.example"], metrics_token="canary-token"))
    assert described["cors_origins"] == ["https://desk.example"]
    assert described["separate_approvers"] is False
    assert described["agents"] == ["tests.http.team"]
    assert described["metrics_token"] is True
    assert {name for name in Settings.model_fields if name.startswith("max_")} <= described.keys()
    assert "canary" not in json.dumps(described)


async def test_start_and_end_entries_verify(ready_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="swarmkeep.serve.server")
    store = open_store(ready_url)
    try:
        for _ in range(2):
            record = StartRecord(store)
            await record.record_start(server_settings(), "127.0.0.1:8000", needs_keys=True)
            await record.record_stop()
        entries = await store.read_audit_log("default")
        assert (await verify_audit_log(store, "default")).valid
    finally:
        await store.close()
    found = [(entry.type, entry.by, decode(entry.payload)) for entry in entries]
    assert [type for type, _, _ in found] == ["server.started", "server.stopped"] * 2
    (_, by, started), (_, _, stopped) = found[:2]
    assert by is None
    assert {"address": "127.0.0.1:8000", "api_keys": True, "version": __version__}.items() <= started.items()
    assert started["settings"] == describe_settings(server_settings())
    assert stopped == {"server": started["server"], "version": __version__, "reason": None}
    assert found[2][2]["server"] != started["server"]
    assert [message.split(",")[0] for message in caplog.messages] == [
        f"swarmkeep {__version__} is up",
        f"swarmkeep {__version__} has stopped",
    ] * 2
    assert "with agents from tests.http.team and the database sqlite:///" in caplog.messages[0]


async def test_unwritable_entry_stops_no_server(sqlite_ready: str, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(sqlite_ready)
    try:
        await store.database.write(lambda connection: connection.execute(text("DROP TABLE trail")))
        record = StartRecord(store)
        await record.record_start(server_settings(), "127.0.0.1:8000", needs_keys=False)
        await record.record_stop()
    finally:
        await store.close()
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "the audit log has no entry server.started",
        "the audit log has no entry server.stopped",
    ]


@pytest.mark.long
async def test_read_only_server_starts(postgres_url: str, tmp_path: Path) -> None:
    await asyncio.to_thread(upgrade, postgres_url)
    store = open_store(postgres_url)
    name = await store.database.read(lambda connection: connection.scalar(text("SELECT current_database()")))
    change = text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    await store.database.write(lambda connection: connection.execute(change))
    await store.close()
    with ServeProcess(tmp_path, SWARMKEEP_DATABASE_URL=postgres_url) as server:
        assert server.request("GET", "/health/ready")[0] == 200
        assert server.request("GET", "/v1/audit")[1]["data"] == []
        assert server.stop() == 0
        assert "the audit log has no entry server.started" in server.output()


@pytest.mark.long
def test_process_starts_are_shown(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, SWARMKEEP_SEPARATE_APPROVERS="true", **SECRETS) as server:
        port = server.port
        assert server.stop() == 0
        server.start()
        server.kill()
        server.start()
        listed = server.request("GET", "/v1/audit")[1]["data"]
        assert server.request("GET", "/v1/audit/verify")[1]["valid"]
        assert server.stop() == 0
    assert [entry["type"] for entry in listed] == [
        "server.started",
        "server.stopped",
        "server.started",
        "server.started",
    ]
    assert listed[0]["data"]["address"] == f"127.0.0.1:{port}"
    assert listed[0]["data"]["settings"]["separate_approvers"] is True
    assert listed[0]["data"]["api_keys"] is False
    for file in tmp_path.glob("*.db*"):
        assert b"canary" not in file.read_bytes()
    command = [sys.executable, "-m", "swarmkeep", "audit", "--database-url", f"sqlite:///{tmp_path / 'swarmkeep.db'}"]
    shown = subprocess.run(command, env=clean_environment(), cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"server.started  127.0.0.1:{port}" in shown.stdout
    assert shown.stdout.count("server.stopped") == 2
