"""What a server process writes to standard error as JSON: each line an object, also of what other parts of it say."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import httpx2
import pytest

from swarmkeep.events.codec import Json
from tests.serve.test_serve import ServeProcess, model_environment, wait_until
from tests.support.processes import Process, ServerProcess
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
