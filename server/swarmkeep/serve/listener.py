"""A listening socket that several processes share."""

from __future__ import annotations

import asyncio
import logging
import mmap
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger(__name__)

BACKLOG = 2048
# How long a process leaves a connection to one that has fewer.
_YIELD_SECONDS = 0.002
_COUNT_BYTES = 4
# Without file descriptors left, accepting would fail again at once.
_PAUSE_SECONDS = 1.0


class ConnectionCounts:
    """The number of connections of each worker, as each has set it last, in memory that they share.

    The count of a dead worker stays until another one takes its place. That delays others for a moment only.
    """

    def __init__(self, workers: int) -> None:
        self._counts = memoryview(mmap.mmap(-1, workers * _COUNT_BYTES)).cast("I")

    def set(self, number: int, count: int) -> None:
        """Set a worker's count; workers are numbered from 1."""
        self._counts[number - 1] = count

    def has_fewest(self, number: int) -> bool:
        return self._counts[number - 1] <= min(self._counts)


class SharedListener:
    """Accepts one connection at a time, and leaves each to the process that has the fewest.

    An event loop's own server accepts all that wait, in one go: the first process that wakes up would get a whole
    burst, and keep it, because clients keep their connections. A socket of its own for each process (SO_REUSEPORT)
    spreads them by chance instead, leaves those of a process that stands still waiting, and resets those of one that
    died. Here one that has more than another waits a moment; if the other is busy or gone, it takes the connection.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        has_fewest: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._make_protocol = make_protocol
        self._has_fewest = has_fewest
        self._opening: set[asyncio.Task[object]] = set()
        self._is_closed = False
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._listen()

    @property
    def opening_count(self) -> int:
        """The number of connections that are accepted and not yet made."""
        return len(self._opening)

    def close(self) -> None:
        """Accept no more. As uvicorn's servers have it."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._listener.fileno())

    async def wait_closed(self) -> None:
        """As uvicorn's servers have it."""

    def _listen(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listener.fileno(), self._on_connection)

    def _on_connection(self) -> None:
        if self._has_fewest():
            self._accept()
        else:
            self._loop.remove_reader(self._listener.fileno())
            self._loop.call_later(_YIELD_SECONDS, self._accept_late)

    def _accept_late(self) -> None:
        if not self._is_closed:
            self._listen()
            self._accept()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            # Another process was quicker.
            return
        except OSError as error:
            log.error("cannot accept connections: %s", error)
            self._loop.remove_reader(self._listener.fileno())
            self._loop.call_later(_PAUSE_SECONDS, self._listen)
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._open(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> object:
        try:
            return await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError as error:
            log.debug("a connection ended before it could be used: %s", error)
            connection.close()
            return None


# Limit the number of files and connections a process may have open.

# Two for each of 32,000 runs: its caller's connection, and the one to the model.
_MAX_OPEN_FILES = 65_536
# What connections of clients leave, at most a quarter: runs need files, too, for the database and their models.
_MAX_KEPT_FILES = 1_000
_REMINDER_SECONDS = 60.0

_REFUSAL = (
    b'{"type":"urn:swarmkeep:problem:overloaded","title":"The server does not keep up","status":503,'
    b'"detail":"the server has no room for more connections; try again","code":"overloaded"}'
)
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_REFUSAL), _REFUSAL)
)


class FileReserve:
    """Keeps some of the files that this process may open from its clients: idle connections must not stop runs."""

    def __init__(self) -> None:
        self._refused = 0
        self._told_at = -_REMINDER_SECONDS

    def has_room(self, transport: asyncio.Transport) -> bool:
        """Tell if a new connection may stay. The system gives each the lowest number that is free."""
        file, most = transport.get_extra_info("socket").fileno(), count_open_files()
        if file < most - min(most // 4, _MAX_KEPT_FILES):
            return True
        self._refused += 1
        if time.monotonic() - self._told_at >= _REMINDER_SECONDS:
            self._told_at = time.monotonic()
            log.error(
                "connections refused, because this process may open %d files only: %d so far", most, self._refused
            )
        return False


def count_open_files() -> int:
    """Return how many files this process may open."""
    if sys.platform == "win32":
        return _MAX_OPEN_FILES
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def raise_open_files() -> int:
    """Let this process and its children open as many files as the system allows, and return that number.

    Shells begin with 1,024, for the sake of programs that use `select`. Some five hundred runs use that up, and then
    the next one cannot reach its model.
    """
    if sys.platform == "win32":
        return _MAX_OPEN_FILES
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(_MAX_OPEN_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    # It may be refused even below the limit that the system names.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return count_open_files()
