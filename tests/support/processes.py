"""Real server processes for tests: started, stopped, paused and killed as an operator or a crash would."""

from __future__ import annotations

import fcntl
import http.client
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tests.support import warm

# A server needs a second or two; a busy machine with two cores much longer.
START_SECONDS = 60.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.02

# Below the range from which the system takes ports for outgoing connections, so that none of those comes in between.
PORTS = range(20_000, 32_000)
# Each worker of a test run has ports of its own and takes each once: between the look at a port and the server that is
# to have it, somebody else's server could take it, and would be asked in its place.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
_WORKER_PORTS = PORTS[_WORKER :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
_ports = itertools.cycle(random.sample(_WORKER_PORTS, len(_WORKER_PORTS)))


def _is_stopped(task: Path) -> bool:
    try:
        return task.read_text().rpartition(")")[2].split()[0] in "TtXZ"
    except OSError:
        return True


class ProcessFailed(AssertionError):
    """A process did not do what it should; the message ends with the tail of its log."""


def free_port() -> int:
    """A port that nobody listens on."""
    for port in _ports:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("there is no port left")


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without any setting of ours or of a model provider, and with `extra`.

    So no test uses a developer's key or database.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SWARMKEEP_", "OPENAI_"))}
    return {**kept, "PYTHONUNBUFFERED": "1", **(extra or {})}


def popen(command: Sequence[str], *, take_terminal: bool = False, **options: Any) -> subprocess.Popen[bytes]:
    """Start a program cold, in a session of its own. `take_terminal`: its input becomes its controlling terminal.

    What a shell ignores in the background, or `nohup` always, what is started there inherits: it is set right.
    """

    def prepare() -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        if take_terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    return subprocess.Popen(command, start_new_session=True, preexec_fn=prepare, **options)


def start(
    command: Sequence[str],
    *,
    folder: Path,
    env: Mapping[str, str],
    stdin: IO[bytes] | int,
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int,
    take_terminal: bool = False,
    cold: bool = False,
) -> subprocess.Popen[bytes] | warm.WarmProcess:
    """Start a program with these files, open ones, as its standard ones; warm, if it can be and shall be."""
    if cold or not warm.suits(command, env):
        return popen(
            command, cwd=folder, env=env, stdin=stdin, stdout=stdout, stderr=stderr, take_terminal=take_terminal
        )
    files = [file if isinstance(file, int) else file.fileno() for file in (stdin, stdout, stderr)]
    return warm.start(command, folder=folder, env=env, files=files, terminal=take_terminal)


class Process:
    """A program in a process group of its own, so that what it starts ends with it.

    Its output goes to a file: a pipe that nobody reads would stop it when full. As a context manager it is
    killed at the end if it still runs. `cold` is for starts that matter in themselves; others are warm.
    """

    def __init__(
        self, command: Sequence[str], *, folder: Path, env: Mapping[str, str] | None = None, cold: bool = False
    ) -> None:
        self.cold = cold
        self.command = list(command)
        self.folder = folder
        self.env = clean_environment(env)
        self.log = folder / f"process-{time.monotonic_ns()}.log"
        self._process: subprocess.Popen[bytes] | warm.WarmProcess | None = None

    def start(self) -> None:
        assert self._process is None or self._process.poll() is not None, "it is running already"
        with self.log.open("ab") as log, open(os.devnull, "rb") as nothing:
            self._process = start(
                self.command, folder=self.folder, env=self.env, stdin=nothing, stdout=log, stderr=log, cold=self.cold
            )

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was not started"
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        return None if self._process is None else self._process.poll()

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def signal(self, number: int) -> None:
        """Send a signal to the whole group."""
        if self.returncode is not None and _is_running(self.pid):
            # The number is somebody else's by now.
            return
        # Nothing is left of the group when it ended before.
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            if self.returncode is None:
                raise

    def pause(self) -> None:
        """Freeze it, as a long garbage collection or a suspended machine would, and wait until it stands still."""
        self.signal(signal.SIGSTOP)
        # A thread that is on a processor goes on until it is interrupted, and could take a lock until then.
        while not all(_is_stopped(task) for task in Path(f"/proc/{self.pid}/task").glob("*/stat")):
            time.sleep(0.001)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, with everything it started, and wait until it is gone."""
        if self._process is None:
            return
        self.signal(signal.SIGKILL)
        self._process.wait()

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """Wait for it to end by itself, and return its exit code."""
        assert self._process is not None, "it was not started"
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self.failure(f"still runs after {seconds:g} s") from None

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """Ask it to end, as an operator would (SIGTERM, to it alone), and return its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        try:
            return self.wait(seconds)
        finally:
            self.kill()

    def failure(self, what: str) -> ProcessFailed:
        tail = "\n".join(self.output().splitlines()[-40:])
        return ProcessFailed(f"{' '.join(self.command)}: {what}; the end of its log:\n{tail}")

    def __enter__(self) -> Process:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if error is not None and not isinstance(error, ProcessFailed):
            error.add_note(str(self.failure("was running as this failed")))


class ServerProcess(Process):
    """`swarmkeep serve` on a port of its own, ready for requests once started.

    It offers the offline model unless `offline` is false; then `env` says which model to use. After `kill` or `stop`,
    `start` brings it back on the same port and database.
    """

    def __init__(
        self,
        folder: Path,
        *,
        database_url: str | None = None,
        agents: Sequence[str] = (),
        offline: bool = True,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        start_seconds: float = START_SECONDS,
        cold: bool = False,
    ) -> None:
        self.port = port or free_port()
        self.database_url = database_url or f"sqlite:///{folder / 'swarmkeep.db'}"
        self.start_seconds = start_seconds
        command = [sys.executable, "-m", "swarmkeep", "serve", "--port", str(self.port)]
        command += ["--database-url", self.database_url]
        for agent in agents:
            command += ["--agents", agent]
        command += ["--offline"] if offline else []
        super().__init__([*command, *arguments], folder=folder, env=env, cold=cold)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        super().start()
        try:
            self.wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.start_seconds
        while self.health("ready") != 200:
            if self.returncode is not None:
                raise self.failure(f"ended with exit code {self.returncode} before it was ready")
            if time.monotonic() > deadline:
                raise self.failure(f"not ready after {self.start_seconds:g} s")
            time.sleep(POLL_SECONDS)

    def health(self, what: str) -> int | None:
        """The status of GET /health/`what` ("live" or "ready"), or None where nobody answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", f"/health/{what}")
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def __enter__(self) -> ServerProcess:
        self.start()
        return self


def _is_running(pid: int) -> bool:
    """Whether there is such a process, and it is more than a number that nobody has asked about yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
