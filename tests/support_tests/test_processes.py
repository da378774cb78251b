"""Processes for tests end with all they started, and say what went wrong."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.processes import Process, ProcessFailed, ServerProcess, clean_environment

# It is ready at its third answer, ends on SIGTERM with code 7, and has a child that it never ends.
SERVER = """
import http.server, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid)
asked = []

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked.append(self.path)
        self.send_response(200 if len(asked) > 2 and self.path == "/health/ready" else 503)
        self.end_headers()

signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def has_ended(pid: int) -> bool:
    # What was started by a process that is gone waits as a zombie where no init collects it.
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def server(tmp_path: Path) -> ServerProcess:
    server = ServerProcess(tmp_path)
    server.command = [sys.executable, "-c", SERVER, str(server.port)]
    return server


def find_child(server: ServerProcess) -> int:
    return int(server.output().split("child ")[1].split()[0])


def test_started_server_is_ready_and_ends_children(server: ServerProcess) -> None:
    with server:
        assert server.health("ready") == 200
        assert server.health("live") == 503
        child = find_child(server)
        assert not has_ended(child)
        assert server.stop() == 7
    wait_until(lambda: has_ended(child))
    assert server.health("ready") is None


def test_killed_server_returns_on_its_port(server: ServerProcess) -> None:
    with server:
        child = find_child(server)
        server.kill()
        assert server.returncode == -signal.SIGKILL
        wait_until(lambda: has_ended(child))
        server.start()
        assert server.health("ready") == 200


def test_paused_server_resumes(server: ServerProcess) -> None:
    with server:
        server.pause()
        wait_until(lambda: psutil.Process(server.pid).status() == psutil.STATUS_STOPPED)
        server.resume()
        assert server.health("ready") == 200


def test_server_ending_before_ready_shows_log(server: ServerProcess) -> None:
    server.command = [sys.executable, "-c", "print('no such database'); raise SystemExit(2)"]
    with pytest.raises(ProcessFailed, match=r"(?s)exit code 2 .*no such database"):
        server.start()


def test_never_ready_server_is_killed(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, start_seconds=0.3)
    server.command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(ProcessFailed, match="not ready after"):
        server.start()
    assert server.returncode == -signal.SIGKILL


def test_unending_process_is_named(tmp_path: Path) -> None:
    with (
        Process([sys.executable, "-c", "import time; time.sleep(600)"], folder=tmp_path) as process,
        pytest.raises(ProcessFailed, match="still runs after"),
    ):
        process.wait(0.1)
    assert process.returncode == -signal.SIGKILL


def test_a_failing_test_shows_the_log(tmp_path: Path) -> None:
    def failing() -> None:
        with Process([sys.executable, "-c", "print('what it said')"], folder=tmp_path) as process:
            process.wait()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as failed:
        failing()
    assert "what it said" in failed.value.__notes__[0]


def test_developer_settings_and_keys_are_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a real one")
    monkeypatch.setenv("SWARMKEEP_DATABASE_URL", "a real one")
    env = clean_environment({"SWARMKEEP_AGENTS": "mine"})
    assert "a real one" not in env.values()
    assert env["SWARMKEEP_AGENTS"] == "mine"
    assert env["PATH"] == os.environ["PATH"]
