"""The demo's server: a process of its own, to be killed and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from swarmkeep.cli.configure import EXAMPLE_AGENTS
from swarmkeep.cli.terminal import Refused

START_SECONDS = 45.0
STOP_SECONDS = 15.0
POLL_SECONDS = 0.05
LOG_LINES = 30

# A killed server's runs are taken over when its lease is over, so the demo makes it short; the pause between the
# pieces of an answer is there to be watched, and leaves time to kill the server in the middle of one.
LEASE_SECONDS = 2
PIECE_SECONDS = 0.05


class DemoServer:
    """`swarmkeep serve` on the offline model, with its database and its log in `folder`."""

    def __init__(self, folder: Path, port: int | None) -> None:
        self.database_url = f"sqlite:///{folder / 'swarmkeep.db'}"
        self.log = folder / "server.log"
        self._folder = folder
        self._port = _find_free_port() if port is None else _take_port(port)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        return self._running.pid

    def start(self) -> None:
        """Start it, and wait until it takes requests."""
        command = [sys.executable, "-m", "swarmkeep", "serve", "--offline", "--agents", EXAMPLE_AGENTS]
        command += ["--host", "127.0.0.1", "--port", str(self._port), "--database-url", self.database_url]
        # In the demo's folder, and without the settings around it: it shows what everybody gets.
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("SWARMKEEP_", "OPENAI_"))}
        ours |= {"SWARMKEEP_LEASE_SECONDS": str(LEASE_SECONDS), "SWARMKEEP_OFFLINE_DELAY": str(PIECE_SECONDS)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=ours, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        self._wait_until_ready()

    def kill(self) -> None:
        """End it as a crash would: at once, without a chance to tidy up."""
        self._running.send_signal(signal.SIGKILL)
        self._running.wait()

    def stop(self) -> None:
        """Ask it to end, and make sure that it does."""
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def wait(self) -> int:
        """Wait until it ends by itself; its exit code."""
        return self._running.wait()

    def read_log_tail(self) -> str:
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-LOG_LINES:])

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise Refused("the demo's server was not started")
        return self._process

    def _wait_until_ready(self) -> None:
        from swarmkeep_client import Client, SwarmkeepError

        deadline = time.monotonic() + START_SECONDS
        with Client(self.url, timeout=5.0, max_retries=0) as client:
            while True:
                code = self._running.poll()
                if code is not None:
                    raise Refused(f"the demo's server ended with exit code {code} before it was ready")
                try:
                    if client.health().ready:
                        return
                except SwarmkeepError:
                    # Not listening yet.
                    pass
                if time.monotonic() > deadline:
                    raise Refused(f"the demo's server was not ready within {START_SECONDS:g} s")
                time.sleep(POLL_SECONDS)


def _take_port(port: int) -> int:
    """The port, if nobody listens there: the server would say so in its own log only."""
    with socket.socket() as probe:
        if sys.platform != "win32":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            said = f"cannot listen on 127.0.0.1:{port}: {error.strerror or error}"
            raise Refused(f"{said}; choose another --port, or leave the option out") from None
    return port


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
