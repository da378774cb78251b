"""A server of several processes on one port: to whoever calls it, it is one server."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from swarmkeep.http.auth import RateLimited
from swarmkeep.http.metrics import label_and_join
from swarmkeep.serve.app import create_app
from tests.http.server import server_settings
from tests.serve.test_serve import ServeProcess, model_environment, wait_until
from tests.support.processes import Process
from tests.support.scripted import ScriptedModel

REFUSED = "several workers need PostgreSQL"


class WorkersProcess(ServeProcess):
    """A server with workers, and connections to each of them."""

    def __init__(self, folder: Path, database_url: str, *, workers: int = 2, **environment: str) -> None:
        super().__init__(folder, SWARMKEEP_DATABASE_URL=database_url, SWARMKEEP_WORKERS=str(workers), **environment)

    def list_workers(self) -> list[psutil.Process]:
        return [child for child in psutil.Process(self.pid).children() if child.status() != psutil.STATUS_ZOMBIE]

    def find_worker(self, connection: http.client.HTTPConnection) -> int:
        """The process that has accepted a connection."""
        return self.find_workers([connection])[0]

    def find_workers(self, connections: Sequence[http.client.HTTPConnection]) -> list[int]:
        # To list them takes a moment, so it is done once for all.
        accepted = {
            found.raddr.port: worker.pid
            for worker in self.list_workers()
            for found in worker.net_connections("tcp")
            if found.raddr and found.laddr.port == self.port
        }
        return [accepted[connection.sock.getsockname()[1]] for connection in connections]

    def connect_to_each(self, stack: ExitStack) -> list[http.client.HTTPConnection]:
        """A connection to every worker."""
        found: dict[int, http.client.HTTPConnection] = {}
        while len(found) < len(self.list_workers()):
            connection = self.connect()
            stack.callback(connection.close)
            assert ask(connection, "GET", "/health/live")[0] == 200
            found.setdefault(self.find_worker(connection), connection)
        return [found[pid] for pid in sorted(found)]


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read() or b"null")


@pytest.mark.long
def test_workers_say_one_line_and_exit_0(tmp_path: Path, postgres_ready: str) -> None:
    with WorkersProcess(tmp_path, postgres_ready) as server:
        workers = server.list_workers()
        assert len(workers) == 2
        assert server.request("GET", "/health/ready") == (200, {"status": "ok"})
        assert server.request("POST", "/v1/sessions", {"id": "s"})[0] == 201
        assert server.request("POST", "/v1/sessions/s/runs", {"input": "hello"})[1]["status"] == "completed"
        assert server.stop() == 0
        assert len(server.output().splitlines()) == 1, server.output()
        assert not any(worker.is_running() for worker in workers)


@pytest.mark.parametrize("arguments", [("--workers", "2"), ("--workers", "2", "--log-format", "json"), ()])
def test_sqlite_file_is_refused_with_reason(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "swarmkeep", "serve", "--offline", *arguments]
    with Process(command, folder=tmp_path, env={"SWARMKEEP_WORKERS": "3"}) as process:
        assert process.wait() == 2
        assert REFUSED in process.output()
    assert list(tmp_path.glob("*.db")) == []


@pytest.mark.long
def test_start_obstacle_is_said_once_with_code(tmp_path: Path) -> None:
    process = WorkersProcess(tmp_path, "postgresql://u:sk-secret@127.0.0.1:1/d")
    with pytest.raises(AssertionError, match="did not begin to listen"):
        process.start()
    assert process.wait() == 1
    assert process.output().count("cannot connect to the database at postgresql://u@127.0.0.1:1/d") == 1
    assert "Traceback" not in process.output()


@pytest.mark.long
def test_parent_migrates_and_names_port_occupant(tmp_path: Path, postgres_url: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        process = WorkersProcess(tmp_path, postgres_url, SWARMKEEP_MIGRATE="1", SWARMKEEP_PORT=str(port))
        with pytest.raises(AssertionError, match="Address already in use"):
            process.start()
    process.env["SWARMKEEP_PORT"] = "0"
    with process as server:
        assert server.request("GET", "/health/ready")[0] == 200


def test_a_burst_of_connections_is_shared(tmp_path: Path, postgres_ready: str) -> None:
    with WorkersProcess(tmp_path, postgres_ready) as server, ExitStack() as stack:
        connections = [server.connect() for _ in range(40)]
        for connection in connections:
            stack.callback(connection.close)
            connection.connect()
        for connection in connections:
            assert ask(connection, "GET", "/health/live")[0] == 200
        shares = Counter(server.find_workers(connections))
        # With one that took all that wait in one go, it would be 40 and 0.
        assert len(shares) == 2, shares
        assert min(shares.values()) >= 12, shares


@pytest.mark.long
def test_run_is_same_from_every_worker(tmp_path: Path, postgres_ready: str, model: ScriptedModel) -> None:
    model.hang("Half of ", then="it.")
    with WorkersProcess(tmp_path, postgres_ready, **model_environment(model)) as server, ExitStack() as stack:
        one, other = server.connect_to_each(stack)
        ask(one, "POST", "/v1/sessions", {"id": "s"})
        key = {"Idempotency-Key": "again"}
        first = ask(one, "POST", "/v1/sessions/s/runs", {"input": "hi", "background": True}, **key)[1]
        assert (
            ask(other, "POST", "/v1/sessions/s/runs", {"input": "hi", "background": True}, **key)[1]["id"]
            == first["id"]
        )
        assert ask(other, "POST", "/v1/sessions/s/runs", {"input": "no"})[1]["code"] == "session_busy"
        model.wait_for_requests(1)
        # A reader there of a run here, up to its end.
        other.request("GET", f"/v1/sessions/s/runs/{first['id']}/stream", headers={"Accept": "text/event-stream"})
        stream = other.getresponse()
        assert stream.status == 200
        model.release()
        text = stream.read().decode()
        assert "event: run.completed" in text
        assert model.request_count == 1


@pytest.mark.long
@pytest.mark.parametrize("to_all", [False, True])
def test_group_signal_stop_grants_runs_time(
    tmp_path: Path, postgres_ready: str, model: ScriptedModel, to_all: bool
) -> None:
    model.hang("Half of ", then="it.")
    settings = {"SWARMKEEP_GRACE_SECONDS": "30", **model_environment(model)}
    with WorkersProcess(tmp_path, postgres_ready, **settings) as server, ExitStack() as stack:
        one = server.connect_to_each(stack)[0]
        ask(one, "POST", "/v1/sessions", {"id": "s"})
        one.request("POST", "/v1/sessions/s/runs", json.dumps({"input": "hi"}))
        model.wait_for_requests(1)
        server.signal(signal.SIGTERM) if to_all else os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: server.request("GET", "/health/ready")[0] == 503)
        model.release()
        assert json.loads(one.getresponse().read())["output_text"] == "Half of it."
        assert server.wait() == 0


@pytest.mark.long
def test_killed_worker_is_replaced_during_service(tmp_path: Path, postgres_ready: str) -> None:
    with WorkersProcess(tmp_path, postgres_ready) as server, ExitStack() as stack:
        one, other = server.connect_to_each(stack)
        dead = server.find_worker(one)
        os.kill(dead, signal.SIGKILL)
        assert ask(other, "GET", "/health/ready")[0] == 200
        wait_until(lambda: f"(process {dead}) was killed by SIGKILL; a new one starts now" in server.output())
        fresh = server.connect_to_each(stack)
        assert dead not in {server.find_worker(connection) for connection in fresh}
        assert len(server.ports) == 1
        assert server.stop() == 0


@pytest.mark.long
def test_metrics_cover_numbered_workers(tmp_path: Path, postgres_ready: str) -> None:
    with WorkersProcess(tmp_path, postgres_ready) as server, ExitStack() as stack:
        for connection, count in zip(server.connect_to_each(stack), (1, 2), strict=True):
            for _ in range(count):
                ask(connection, "GET", "/v1/agents")
        texts = [read_text(connection, "/metrics") for connection in server.connect_to_each(stack)]
        for text in texts:
            found = dict(
                re.findall(r'^swarmkeep_http_requests_total\{.*"/v1/agents".*worker="(\d)"\} (\S+)$', text, re.M)
            )
            assert sorted(found.values()) == ["1.0", "2.0"]
            assert text.count("# TYPE swarmkeep_http_requests_total counter") == 1


def read_text(connection: http.client.HTTPConnection, path: str) -> str:
    connection.request("GET", path)
    return connection.getresponse().read().decode()


def test_metric_texts_join_without_summing() -> None:
    text = b'# HELP runs_total Runs.\n# TYPE runs_total counter\nruns_total{event="ended"} %d\n'
    assert label_and_join({2: text % 5, 1: text % 3}).decode().splitlines() == [
        "# HELP runs_total Runs.",
        "# TYPE runs_total counter",
        'runs_total{event="ended",worker="1"} 3.0',
        'runs_total{event="ended",worker="2"} 5.0',
    ]


async def test_server_limits_are_divided_among_workers(sqlite_ready: str) -> None:
    given = server_settings(
        database_url=sqlite_ready, workers=4, rate_limit_per_minute=10, max_runs_per_tenant=100, max_forks_per_minute=1
    )
    served = create_app(given)
    async with served.lifespan():
        service = served.state.service
        for _ in range(3):
            service.rate_limiter.count("key")
        with pytest.raises(RateLimited):
            service.rate_limiter.count("key")
        limits = service.engine.limits
        assert (limits.max_runs_per_tenant, limits.max_forks_per_minute) == (25, 1)
