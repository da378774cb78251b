"""Connections that do nothing take no file that runs need."""

from __future__ import annotations

import json
import resource
import socket
from contextlib import ExitStack
from pathlib import Path

from swarmkeep_client import Client
from tests.support.processes import ServerProcess


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
