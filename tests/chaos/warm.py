"""Servers that start in a blink, because a crash test starts hundreds.

A cold start is mostly imports: seconds of CPU. A warm parent does them once and then forks. What it forks is `swarmkeep
serve` in every other way: a process and a group of its own, its own environment, log, sockets and connections. Stops
and starts that matter in themselves are tested with cold ones.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.support.processes import ServerProcess
from tests.support.source import ROOT

# What a server imports only when it first needs it.
LATE = (
    "asyncpg",
    "openai.resources.chat",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.sqlite",
    "swarmkeep.app",
    "swarmkeep.cli",
    "swarmkeep.store.postgres.database",
    "swarmkeep_migrations",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
)
SPAWN_SECONDS = 30.0


class Spawned:
    """A process that the warm parent forked: what is used of subprocess.Popen."""

    def __init__(self, warm_parent: WarmParent, pid: int) -> None:
        self.pid = pid
        self._warm_parent = warm_parent

    def poll(self) -> int | None:
        return self._warm_parent.exit_code(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        return self._warm_parent.wait(self.pid, timeout)


class WarmParent:
    """A process that has loaded the server, and forks one whenever it is asked to."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.warm", str(theirs.fileno())],
                # `-m` looks for modules here first.
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._changed = threading.Condition()
        self._pids: list[int] = []
        self._codes: dict[int, int] = {}
        self._ended = False
        self._asking = threading.Lock()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def spawn(self, arguments: Sequence[str], *, folder: Path, env: Mapping[str, str], log: Path) -> Spawned:
        wish = {"arguments": list(arguments), "folder": str(folder), "env": dict(env), "log": str(log)}
        # One at a time, so that the next pid to come is this one's.
        with self._asking, self._changed:
            with contextlib.suppress(OSError):
                self._ours.sendall(json.dumps(wish).encode() + b"\n")
            self._changed.wait_for(lambda: self._pids or self._ended, SPAWN_SECONDS)
            if not self._pids:
                raise AssertionError("no server was forked; what the warm parent said about it is above")
            return Spawned(self, self._pids.pop())

    def exit_code(self, pid: int) -> int | None:
        with self._changed:
            return self._codes.get(pid)

    def wait(self, pid: int, timeout: float | None) -> int:
        with self._changed:
            if not self._changed.wait_for(lambda: pid in self._codes, timeout):
                raise subprocess.TimeoutExpired(f"server {pid}", timeout or 0.0)
            return self._codes[pid]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        self._process.wait()
        self._listener.join()
        self._ours.close()

    def _listen(self) -> None:
        with contextlib.suppress(ConnectionError), self._ours.makefile("rb") as lines:
            for line in lines:
                self._handle_message(json.loads(line))
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _handle_message(self, told: dict[str, int]) -> None:
        with self._changed:
            if "code" in told:
                self._codes[told["pid"]] = told["code"]
            else:
                self._codes.pop(told["pid"], None)
                self._pids.append(told["pid"])
            self._changed.notify_all()


class WarmServer(ServerProcess):
    """A ServerProcess from the warm parent."""

    def __init__(self, warm_parent: WarmParent, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self._warm_parent = warm_parent

    def start(self) -> None:
        assert self._process is None or self._process.poll() is not None, "it is running already"
        arguments = self.command[self.command.index("swarmkeep") + 1 :]
        self._process = self._warm_parent.spawn(  # type: ignore[assignment]
            arguments, folder=self.folder, env=self.env, log=self.log
        )
        try:
            self.wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def wait_until_ready(self) -> None:
        # As its parent's, but for the pause: here a server is ready sooner than a machine with many of them looks.
        deadline = time.monotonic() + self.start_seconds
        while self.health("ready") != 200:
            if self.returncode is not None:
                raise self.failure(f"ended with exit code {self.returncode} before it was ready")
            if time.monotonic() > deadline:
                raise self.failure(f"not ready after {self.start_seconds:g} s")
            time.sleep(0.05)


# The warm parent's side.


def main(line: socket.socket) -> None:
    """Fork a server for each line that comes, tell its pid, and later how it ended; returns in each server."""
    for name in LATE:
        importlib.import_module(name)
    _rehearse()
    gc.collect()
    gc.freeze()
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    heard = b""
    alive: set[int] = set()
    while True:
        for ready in select.select([line, woken], [], [])[0]:
            if ready is woken:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
                _tell_the_ended(line, alive)
                continue
            heard += (said := line.recv(65_536))
            if not said:
                _end(alive)
            *wishes, heard = heard.split(b"\n")
            for wish in wishes:
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    line.close()
                    os.close(woken)
                    os.close(wake)
                    _become(json.loads(wish))
                    return
                # Here as well as in the child: whoever is told the pid may signal the group at once.
                with contextlib.suppress(OSError):
                    os.setpgid(pid, pid)
                alive.add(pid)
                line.sendall(json.dumps({"pid": pid}).encode() + b"\n")


def _end(alive: set[int]) -> NoReturn:
    """End with whoever asked for the servers, who may have had no time to end them himself."""
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    sys.exit()


def _rehearse() -> None:
    """Put an application together, which opens nothing but loads what is loaded on the way."""
    from swarmkeep.app import create_app
    from swarmkeep.settings import Settings

    create_app(Settings(_env_file=None, offline=True, database_url="sqlite:///never.db"))  # type: ignore[call-arg]


def _tell_the_ended(line: socket.socket, alive: set[int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            alive.discard(ended[0])
            told = {"pid": ended[0], "code": os.waitstatus_to_exitcode(ended[1])}
            line.sendall(json.dumps(told).encode() + b"\n")


def _become(wish: dict[str, Any]) -> None:
    """Turn into the process that a command with these arguments would be."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    log = os.open(wish["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(wish["folder"])
    os.environ.clear()
    os.environ.update(wish["env"])
    sys.argv = ["swarmkeep", *wish["arguments"]]
    # Where it is to die is read from the environment as this module is loaded.
    importlib.reload(importlib.import_module("swarmkeep.engine.failpoints"))


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
    importlib.import_module("swarmkeep.cli").main()
