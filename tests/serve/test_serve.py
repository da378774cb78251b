"""The server process: how it starts, what it says, how it refuses to start, and how it stops."""

from __future__ import annotations

import http.client
import json
import logging
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from swarmkeep.serve.app import ServeError, create_app
from swarmkeep.serve.workers import LineLimit, serve
from swarmkeep.store import schema
from swarmkeep.store.records import SchemaBehind, StoreUnavailable
from swarmkeep_client import Client
from tests.http.server import server_settings
from tests.support.processes import Process, ServerProcess, clean_environment, free_port
from tests.support.scripted import ScriptedModel

PROGRAM = """
import sys
from swarmkeep.serve.app import ServeError
from swarmkeep.serve.workers import serve
from swarmkeep.serve.settings import Settings
try:
    serve(Settings())
except ServeError as refused:
    sys.exit(f"refused: {refused}")
"""
COUNTING_PROGRAM = f"""{PROGRAM}
import gc, threading
for thread in threading.enumerate():
    if thread.name == "swarmkeep-model-client":
        thread.join()
print("the collector has set aside", gc.get_freeze_count(), "and goes through", len(gc.get_objects()))
"""
LISTENING = re.compile(r"^Swarmkeep is listening on http://127\.0\.0\.1:(\d+)$", re.MULTILINE)


class ServeProcess(Process):
    """The server in a process of its own, on a free port. What warns is an error; from a `cold` start on."""

    def __init__(self, folder: Path, program: str = PROGRAM, *, cold: bool = False, **environment: str) -> None:
        defaults = {
            "SWARMKEEP_OFFLINE": "true",
            "SWARMKEEP_PORT": "0",
            "SWARMKEEP_AGENTS": str(Path(__file__).parents[1] / "http" / "team.py"),
            "SWARMKEEP_DATABASE_URL": f"sqlite:///{folder / 'swarmkeep.db'}",
            "SWARMKEEP_LOG_LEVEL": "warning",
        }
        command = [sys.executable, "-W", "error", "-c", program]
        if not cold:
            # A process that has everything loaded cannot be told by an option any more.
            command = [sys.executable, "-c", f"import warnings\nwarnings.simplefilter('error')\n{program}"]
        super().__init__(command, folder=folder, env=defaults | environment, cold=cold)
        self.ports: list[str] = []

    @property
    def port(self) -> int:
        return int(self.ports[-1])

    def start(self) -> None:
        super().start()
        deadline = time.monotonic() + 60
        known = len(self.ports)
        while len(self.ports) == known:
            if self.returncode is not None or time.monotonic() > deadline:
                raise self.failure("did not begin to listen")
            time.sleep(0.02)
            self.ports = LISTENING.findall(self.output())

    def __enter__(self) -> Self:
        self.start()
        return self

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = self.connect()
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()


def model_environment(model: ScriptedModel) -> dict[str, str]:
    return {"SWARMKEEP_OFFLINE": "false", "OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "test"}


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.long
def test_server_says_one_line_and_exits_0(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, cold=True) as server:
        assert server.request("GET", "/health/ready") == (200, {"status": "ok"})
        assert server.request("POST", "/v1/sessions", {"id": "s"})[0] == 201
        assert server.request("POST", "/v1/sessions/s/runs", {"input": "hello"})[1]["status"] == "completed"
        assert server.stop() == 0
        assert len(server.output().splitlines()) == 1, server.output()
        server.start()
        assert server.request("GET", "/v1/sessions/s")[1]["message_count"] == 2
        server.signal(signal.SIGINT)
        assert server.wait() == 0


@pytest.mark.long
def test_collector_skips_loaded_modules(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, COUNTING_PROGRAM, cold=True) as server:
        assert server.request("POST", "/v1/sessions", {"id": "s"})[0] == 201
        assert server.stop() == 0
        counts = re.search(r"set aside (\d+) and goes through (\d+)", server.output())
        assert counts is not None
        assert int(counts[1]) > 5 * int(counts[2]), server.output()


@pytest.mark.long
def test_shell_open_file_limit_is_raised(tmp_path: Path, model: ScriptedModel) -> None:
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (100, 4096))\n"
    for _ in range(120):
        model.hang()
    with ServeProcess(tmp_path, limited + PROGRAM, cold=True, **model_environment(model)) as server:
        for number in range(120):
            assert server.request("POST", "/v1/sessions", {"id": f"s{number}"})[0] == 201
            assert server.request("POST", f"/v1/sessions/s{number}/runs", {"input": "hi", "background": True})[0] == 202
        # Each has a connection of its own to its model.
        model.wait_for_requests(120)


@pytest.mark.long
def test_file_readable_by_others_warns(tmp_path: Path) -> None:
    (tmp_path / "swarmkeep.db").touch(0o644)
    (tmp_path / "swarmkeep.db").chmod(0o644)
    with ServeProcess(tmp_path) as server:
        assert "WARNING swarmkeep.serve.app: other users of this machine may read or change" in server.output()


@pytest.mark.long
def test_wildcard_cors_origin_warns(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, SWARMKEEP_CORS_ORIGINS="*") as server:
        assert "SWARMKEEP_CORS_ORIGINS=*, every web page" in server.output()


@pytest.mark.long
def test_stop_grants_time_and_is_unready(tmp_path: Path, model: ScriptedModel) -> None:
    model.hang("Half of ", then="it.")
    with ServeProcess(tmp_path, SWARMKEEP_GRACE_SECONDS="30", **model_environment(model)) as server:
        server.request("POST", "/v1/sessions", {"id": "s"})
        following, running = server.connect(), server.connect()
        following.request("GET", "/v1/sessions/s/events", headers={"Accept": "text/event-stream"})
        followed = following.getresponse()
        running.request("POST", "/v1/sessions/s/runs", json.dumps({"input": "hi", "stream": True}))
        stream = running.getresponse()
        model.wait_for_requests(1)
        server.signal(signal.SIGTERM)
        wait_until(lambda: server.request("GET", "/health/ready")[0] == 503)
        assert server.request("GET", "/health/ready")[1]["code"] == "draining"
        assert server.request("POST", "/v1/sessions/s/runs", {"input": "x"})[1]["code"] == "draining"
        assert server.request("GET", "/health/live")[0] == 200
        model.release()
        last = stream.read().decode().rstrip("\n").splitlines()
        assert last[-2] == "event: done"
        assert json.loads(last[-1].removeprefix("data: "))["output_text"] == "Half of it."
        assert followed.read().decode().endswith(": the server is shutting down\n\n")
        assert server.wait() == 0
        following.close()
        running.close()


@pytest.mark.long
def test_asked_twice_it_ends_at_once(tmp_path: Path, model: ScriptedModel) -> None:
    model.hang()
    with ServeProcess(tmp_path, SWARMKEEP_GRACE_SECONDS="600", **model_environment(model)) as server:
        server.request("POST", "/v1/sessions", {"id": "s"})
        server.request("POST", "/v1/sessions/s/runs", {"input": "hi", "background": True})
        model.wait_for_requests(1)
        server.signal(signal.SIGTERM)
        wait_until(lambda: server.request("GET", "/health/ready")[0] == 503)
        server.signal(signal.SIGINT)
        assert server.wait() == -signal.SIGINT
    model.wait_for_disconnects(1)


def test_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        given = server_settings(port=port, database_url=f"sqlite:///{tmp_path / 'a.db'}")
        with pytest.raises(ServeError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            serve(given)
    assert not (tmp_path / "a.db").exists()


@pytest.mark.parametrize("is_known", [True, False])
def test_an_older_mcp_client_is_named(tmp_path: Path, is_known: bool) -> None:
    (tmp_path / "mcp").mkdir()
    (tmp_path / "mcp" / "__init__.py").write_text("")
    (tmp_path / "team.py").write_text(
        "from swarmkeep import Agent, MCPServer\nclerk = Agent(mcp_servers=[MCPServer(name='a', command=['true'])])\n"
    )
    if is_known:
        (tmp_path / "mcp-1.9.0.dist-info").mkdir()
        (tmp_path / "mcp-1.9.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mcp\nVersion: 1.9.0\n")
    command = [sys.executable, "-m", "swarmkeep", "serve", "--offline", "--port", "0", "--agents", "team.py"]
    environment = clean_environment({"PYTHONPATH": str(tmp_path)})
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "mcp_servers need the package mcp from version 2.3 on" in ended.stderr
    assert not is_known or "and 1.9.0 is installed" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_non_http_requests_cannot_fill_log() -> None:
    now = 0.0
    limit = LineLimit(lines=3, clock=lambda: now)

    def write(text: str, level: int = logging.WARNING) -> str | None:
        record = logging.LogRecord("uvicorn.error", level, "", 0, text, None, None)
        return record.getMessage() if limit.filter(record) else None

    text = "Invalid HTTP request received."
    assert [write(text) for _ in range(10)] == [text] * 3 + [None] * 7
    assert (write("other"), write(text, logging.ERROR)) == ("other", text)
    now = 61.0
    assert write(text) == f"{text} (7 more since the last such line)"
    assert write(text) == text


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"host": "0.0.0.0"}, "does not listen on 0.0.0.0; make a key with `swarmkeep keys create`"),
        ({"host": "::"}, "does not listen on ::"),
        ({"host": "192.0.2.1"}, "cannot listen on 192.0.2.1"),
        ({"host": "no such host"}, "cannot listen on 'no such host'"),
        ({"offline": False}, "no model is configured"),
        ({"agents": ["no_such_module"]}, "no_such_module cannot be imported"),
        ({"agents": []}, "no agents"),
        ({"database_url": "mysql://x"}, "mysql"),
        ({"database_url": "sqlite:////no/such/folder/x.db"}, "/no/such/folder"),
        ({"database_url": "postgresql://u:sk-secret@127.0.0.1:1/d", "migrate": True}, "127.0.0.1:1"),
    ],
)
def test_start_obstacle_is_said_in_a_sentence(tmp_path: Path, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ServeError, match=re.escape(sentence)) as refused:
        serve(server_settings(**{"port": 0, "database_url": f"sqlite:///{tmp_path / 'a.db'}"} | given))
    assert "sk-secret" not in str(refused.value)


@pytest.mark.long
def test_postgresql_migrates_only_when_told(postgres_url: str, tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="swarmkeep db upgrade"):
        serve(server_settings(port=0, database_url=postgres_url))
    assert schema.current(postgres_url) is None
    with ServeProcess(tmp_path, SWARMKEEP_DATABASE_URL=postgres_url, SWARMKEEP_MIGRATE="1") as server:
        assert server.request("GET", "/health/ready")[0] == 200
        assert server.stop() == 0


@pytest.mark.long
def test_it_listens_on_any_loopback_address(tmp_path: Path) -> None:
    if not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    environment = {"SWARMKEEP_OFFLINE": "1", "SWARMKEEP_PORT": "0", "SWARMKEEP_HOST": "::1"}
    with Process([sys.executable, "-c", PROGRAM], folder=tmp_path, env=environment) as server:
        wait_until(
            lambda: "Swarmkeep is listening on http://[::1]:" in server.output() or server.returncode is not None
        )
        connection = http.client.HTTPConnection("::1", int(server.output().rpartition(":")[2]), timeout=20)
        connection.request("GET", "/v1/agents")
        assert connection.getresponse().status == 200
        connection.close()
        assert server.stop() == 0


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


async def test_failing_application_start_says_reason(postgres_url: str) -> None:
    """Under any ASGI server: as the error itself, not in a group of the framework's."""
    for url, error in ((postgres_url, SchemaBehind), ("postgresql://me@127.0.0.1:9/none", StoreUnavailable)):
        app = create_app(server_settings(database_url=url))
        with pytest.raises(error):
            async with app.lifespan():
                pass


@pytest.mark.long
def test_readiness_needs_no_run_or_migration_modules(tmp_path: Path) -> None:
    """openai takes a second and 30 MB to load, Alembic half of one."""
    url = f"sqlite:///{tmp_path / 'swarmkeep.db'}"
    schema.upgrade(url)
    program = f"""
import asyncio, sys
from swarmkeep.serve.app import create_app
from swarmkeep.serve.settings import Settings
app = create_app(Settings(_env_file=None, offline=True, database_url={url!r}))
async def main():
    async with app.lifespan():
        loaded = {{"openai", "httpx2", "alembic", "asyncpg"}} & set(sys.modules)
    sys.exit(f"loaded: {{sorted(loaded)}}" if loaded else 0)
asyncio.run(main())
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr


LOADING = """
import http.client, io, os, signal, sys, threading, time

def is_loaded():
    return getattr(sys.modules.get("openai"), "AsyncOpenAI", None) is not None

class Output(io.StringIO):
    def write(self, text):
        if "listening on" in text:
            loaded_when_ready.append("openai" in sys.modules)
            threading.Thread(target=watch, args=[int(text.rpartition(":")[2])], daemon=True).start()
        return super().write(text)

def watch(port):
    asked = http.client.HTTPConnection("127.0.0.1", port)
    asked.request("GET", "/health/ready")
    statuses.append(asked.getresponse().status)
    # Nothing else begins it: no run is started.
    while not is_loaded():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

loaded_when_ready, statuses = [], []
said, sys.stdout = sys.stdout, Output()
sys.argv = ["swarmkeep", "serve", *sys.argv[1:]]
from swarmkeep.__main__ import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
assert (loaded_when_ready, statuses, is_loaded()) == ([False], [200], True)
"""


@pytest.mark.long
@pytest.mark.parametrize("offline", [True, False], ids=["offline", "provider"])
def test_model_client_loads_once_ready(tmp_path: Path, offline: bool) -> None:
    options = [
        "--port",
        str(free_port()),
        "--agents",
        "swarmkeep_agents.acme",
        "--database-url",
        f"sqlite:///{tmp_path / 'swarmkeep.db'}",
    ]
    env = clean_environment({"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})
    command = [sys.executable, "-c", LOADING, *options, *(["--offline"] if offline else [])]
    run = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr


def test_idle_connections_leave_files_for_runs(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, Client(server.url) as client, ExitStack() as idle:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (120, 120))
        session = client.sessions.create()
        opened = [
            idle.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10)) for _ in range(200)
        ]
        answer = b""
        while part := opened[-1].recv(4096):
            answer += part
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert json.loads(body)["code"] == "overloaded"
        assert session.run("Hello.").status == "completed"
        idle.close()
        with Client(server.url) as other:
            assert other.sessions.get(session.id).run("Again.").status == "completed"
