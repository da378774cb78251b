"""The processes that are measured, and what they have used."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

import httpx2
import psutil


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Meter(Protocol):
    @property
    def cpu_seconds(self) -> float: ...


class _Nothing:
    """The meter of a database that has no processes of its own."""

    cpu_seconds = 0.0


NOTHING = _Nothing()


class ProcessFamily:
    """A process and its children."""

    def __init__(self, pid: int) -> None:
        self._parent = psutil.Process(pid)

    @property
    def cpu_seconds(self) -> float:
        return measure_cpu_seconds(self._parent)


class Process:
    """A server in a process of its own, ready once the block is entered. `under` is a command that is to run it."""

    def __init__(
        self, arguments: list[str], port: int, env: Mapping[str, str] = {}, *, under: Sequence[str] = ()
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed on exit)
        self._process = subprocess.Popen(
            [*under, sys.executable, "-m", *arguments],
            env={**os.environ, **env},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for who measures, who then stops it.
            process_group=0,
        )
        self._usage = psutil.Process(self._process.pid)

    @property
    def cpu_seconds(self) -> float:
        """Of the process, and of its workers if it has some."""
        return measure_cpu_seconds(self._usage)

    def __enter__(self) -> Process:
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                httpx2.get(self.url, timeout=1)
            except httpx2.TransportError:
                time.sleep(0.05)
            else:
                return
        self._log.seek(0)
        raise RuntimeError(f"{self._process.args} did not start:\n{self._log.read().decode()}")

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end, and wait until it has."""
        if self._process.poll() is None:
            self._process.send_signal(by)
        self._process.wait()

    @property
    def log(self) -> str:
        """What it has written so far."""
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0).decode(errors="replace")

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()
        self._log.close()


def measure_cpu_seconds(process: psutil.Process) -> float:
    """Of a process and of all that it has started, those included that have ended."""
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def start_stub_model() -> Process:
    port = free_port()
    return Process(["uvicorn", "benchmarks.stub_model:app", "--port", str(port), "--log-level", "warning"], port)


def start_floor(model_url: str) -> Process:
    port = free_port()
    arguments = ["uvicorn", "benchmarks.floor:app", "--port", str(port), "--no-access-log"]
    return Process(arguments, port, {"OPENAI_BASE_URL": f"{model_url}/v1"})


def start_server(
    model_url: str, database_url: str, *, workers: int = 1, port: int | None = None, under: Sequence[str] = ()
) -> Process:
    """The server as it is by default, but without a line in its log for each request, as the floor is."""
    port = port or free_port()
    arguments = ["swarmkeep", "serve", "--agents", str(Path(__file__).with_name("team.py")), "--port", str(port)]
    env = {
        "OPENAI_BASE_URL": f"{model_url}/v1",
        "OPENAI_API_KEY": "bench",
        "SWARMKEEP_DATABASE_URL": database_url,
        "SWARMKEEP_ACCESS_LOG": "false",
        "SWARMKEEP_WORKERS": str(workers),
    }
    return Process(arguments, port, env, under=under)
