"""The warm parent itself: loads what servers and commands load, and forks one for each request.

`python -m tests.support.warm.parent LISTENER [loaded]`; it ends, with all its children, when its standard input does.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import pkgutil
import selectors
import shutil
import signal
import socket
import sys
from functools import cache
from pathlib import Path
from typing import NoReturn

from tests.support.warm import child, requests

PACKAGES = ("swarmkeep", "swarmkeep_client")
# What is imported only when it is first needed, by them or by what they use.
LATE = (
    "alembic.command",
    "alembic.config",
    "alembic.context",
    "alembic.op",
    "anyio._backends._asyncio",
    "asyncpg",
    "encodings.idna",
    "markdown_it",
    "mcp.server.mcpserver",
    "openai.resources.chat",
    "prompt_toolkit",
    "psutil",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.sqlite",
    "swarmkeep_migrations",
    "typer._adapters",
    "uvicorn.lifespan.off",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
    "yaml",
)


class Parent:
    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, socket.socket] = {}
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> requests.Request:
        """Fork a child for each request; returns in each child, which has become what was asked for."""
        signal.set_wakeup_fd(self._wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for source in (self._listener, self._woken, sys.stdin.fileno()):
            self._selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    if (request := self._fork()) is not None:
                        return request
                elif key.fileobj == self._woken:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._woken, 4096)
                    self._report_ended()
                elif isinstance(key.fileobj, socket.socket):
                    self._hang_up(key.fileobj)
                else:
                    self._end()

    def _fork(self) -> requests.Request | None:
        connection, _ = self._listener.accept()
        request, files = requests.receive(connection)
        pid = os.fork()
        if pid == 0:
            self._close()
            child.become(request, files)
            requests.say(connection, os.getpid())
            connection.close()
            return request
        for file in files:
            os.close(file)
        self._children[pid] = connection
        self._selector.register(connection, selectors.EVENT_READ)
        return None

    def _report_ended(self) -> None:
        """Say how the children ended that have. Only then are they reaped: a pid that is gone is known to be."""
        for pid, connection in list(self._children.items()):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                continue
            code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            with contextlib.suppress(OSError):
                requests.say(connection, code)
            os.waitpid(pid, 0)
            self._forget(pid)

    def _hang_up(self, connection: socket.socket) -> None:
        """Kill the child that nobody is there for any more, with everything it started."""
        for pid, lifeline in list(self._children.items()):
            if lifeline is connection:
                _kill(pid)
                self._selector.unregister(connection)

    def _forget(self, pid: int) -> None:
        connection = self._children.pop(pid)
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection)
        connection.close()

    def _end(self) -> NoReturn:
        for pid in self._children:
            _kill(pid)
            os.waitpid(pid, 0)
        # Whoever made it may have had no time to remove it.
        shutil.rmtree(Path(self._listener.getsockname()).parent)
        sys.exit()

    def _close(self) -> None:
        """Close in a child what is the parent's."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._listener.close()
        for connection in self._children.values():
            connection.close()
        os.close(self._woken)
        os.close(self._wake)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    # A child that has only just been forked is in its parent's group yet.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def load() -> None:
    """Import what servers and commands import, and put an application and the commands together.

    That opens nothing, but loads more. The commands are kept: to build them takes longer than most of them take.
    """
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    for name in LATE:
        importlib.import_module(name)
    import typer.main

    from swarmkeep.cli.app import app
    from swarmkeep.serve.app import create_app
    from swarmkeep.serve.settings import Settings

    typer.main.get_command = built = cache(typer.main.get_command)
    # Each command is built when it is looked up.
    list(built(app).commands.values())  # type: ignore[attr-defined]
    create_app(Settings(_env_file=None, offline=True, database_url="sqlite:///never.db"))  # type: ignore[call-arg]
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    atexit.register(child.leave)
    if "loaded" in sys.argv:
        load()
    # Locks that other threads hold would stay held in every child.
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "something that was imported has started a thread"
    child.run(Parent(socket.socket(fileno=int(sys.argv[1]))).serve().arguments)
