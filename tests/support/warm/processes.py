"""The tests' side: asks the warm parent for processes. It is started when the first one is wanted."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO

from tests.support.source import ROOT
from tests.support.warm import requests

# Generous: the first child waits until everything is loaded.
START_SECONDS = 120.0
RUN_SECONDS = 120.0
# What a child takes from its environment after its start; all others that Python looks at, it only looks at then.
LATER = {"PYTHONIOENCODING", "PYTHONPATH", "PYTHONUNBUFFERED"}


class Parent:
    """Forks processes as long as this one lives. Unless it is `loaded` they are no warmer than others."""

    def __init__(self, *, loaded: bool = True) -> None:
        folder = Path(tempfile.mkdtemp(prefix="swarmkeep-warm-"))
        self.address = str(folder / "socket")
        self._log = folder / "log"
        with socket.socket(socket.AF_UNIX) as listener, self._log.open("wb") as log:
            listener.bind(self.address)
            listener.listen(128)
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.support.warm.parent",
                    str(listener.fileno()),
                    *(["loaded"] if loaded else []),
                ],
                # `-m` looks for modules here first.
                cwd=ROOT,
                pass_fds=[listener.fileno()],
                # Its end is the parent's end, however this process ends.
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        atexit.register(self.close)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


class WarmProcess:
    """A process that the parent forked: what is used of subprocess.Popen."""

    def __init__(self, parent: Parent, request: requests.Request, files: Sequence[int]) -> None:
        self.returncode: int | None = None
        self._said = b""
        self._reading = threading.Lock()
        self._connection = socket.socket(socket.AF_UNIX)
        try:
            self._connection.connect(parent.address)
            requests.send(self._connection, request, files)
            self.pid = self._next_number(START_SECONDS)
        except BaseException as error:
            self._connection.close()
            error.add_note(f"the warm parent said:\n{parent.log()}")
            raise

    def poll(self) -> int | None:
        # Whoever is waiting for it in another thread reads on.
        if self._reading.acquire(blocking=False):
            try:
                self._read_code(0)
            except subprocess.TimeoutExpired:
                pass
            finally:
                self._reading.release()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._reading:
            return self._read_code(timeout)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _read_code(self, timeout: float | None) -> int:
        if self.returncode is None:
            self.returncode = self._next_number(timeout)
            # It is closed when the process is reaped: until then there is one of this number.
            self._connection.settimeout(START_SECONDS)
            self._connection.recv(1)
            self._connection.close()
        return self.returncode

    def _next_number(self, timeout: float | None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._said:
            self._connection.settimeout(None if deadline is None else max(0.0, deadline - time.monotonic()))
            try:
                said = self._connection.recv(64)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("a warm process", timeout or 0.0) from None
            if not said:
                raise AssertionError("the warm parent has ended")
            self._said += said
        number, _, self._said = self._said.partition(b"\n")
        return int(number)


def suits(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether the command is this interpreter's, with nothing in its environment that only a cold start looks at."""
    runs = command[0] == sys.executable and (command[1] in ("-m", "-c") or not command[1].startswith("-"))
    return runs and _of_the_start(env) == _of_the_start(os.environ)


def start(
    command: Sequence[str], *, folder: Path, env: Mapping[str, str], files: Sequence[int], terminal: bool = False
) -> WarmProcess:
    """Start a command that `suits`, in a session of its own, with these files as its standard ones."""
    assert suits(command, env), f"it takes a cold start: {command}"
    return WarmProcess(_parent(), requests.Request(command[1:], str(folder), dict(env), terminal), files)


def run(
    command: Sequence[str],
    *,
    folder: Path,
    env: Mapping[str, str],
    text: str = "",
    stdout: int | None = None,
    timeout: float = RUN_SECONDS,
) -> subprocess.CompletedProcess[str]:
    """As subprocess.run, with `text` as the input; its outputs are captured, in UTF-8, unless it has a `stdout`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with _pipe_with(text) as into:
            files = [into, out.fileno() if stdout is None else stdout, err.fileno()]
            process = start(command, folder=folder, env=env, files=files)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        return subprocess.CompletedProcess(list(command), code, _text_of(out), _text_of(err))


def shell_command(folder: Path, name: str = "swarmkeep", script: Path | None = None) -> Path:
    """Put a command into the folder that is the installed one or runs the script, warm: for whoever starts processes
    by themselves, as shells do."""
    script = script or Path(sys.executable).with_name(name)
    module = "tests.support.warm.command"
    code = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom {module} import main\n"
    command = folder / name
    command.write_text(f"#!{sys.executable} -IS\n{code}main({_parent().address!r}, {str(script)!r})\n")
    command.chmod(0o755)
    return command


@cache
def _parent_of(pid: int) -> Parent:
    return Parent()


_starting = threading.Lock()


def _parent() -> Parent:
    with _starting:
        return _parent_of(os.getpid())


def _of_the_start(env: Mapping[str, str]) -> dict[str, str]:
    looked_at = (name for name in env if name.startswith(("PYTHON", "LC_")) or name == "LANG")
    return {name: env[name] for name in looked_at if name not in LATER}


@contextlib.contextmanager
def _pipe_with(text: str) -> Iterator[int]:
    """The end to read from of a pipe that gives the text."""
    into, out = os.pipe()
    writer = threading.Thread(target=_write, args=(out, text.encode()), daemon=True)
    writer.start()
    try:
        yield into
    finally:
        os.close(into)


def _write(out: int, data: bytes) -> None:
    # Nobody has to read it to its end.
    with contextlib.suppress(BrokenPipeError), open(out, "wb") as pipe:
        pipe.write(data)


def _text_of(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode()
