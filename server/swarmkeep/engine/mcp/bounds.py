"""How much is read of what a server sends, and how long is waited for it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from swarmkeep.domain.checking.files import FileLimits
from swarmkeep.domain.codec import ValueCounter


class MessageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a server. `message_values`: about as many values as one message may have, because each takes
    time. Of a flood of messages, of lines of event streams, or of bytes, so much is read in `window_seconds`; then the
    connection is closed."""

    message_bytes: int = 4_000_000
    message_values: int = 50_000
    window_messages: int = 5_000
    window_lines: int = 100_000
    window_bytes: int = 64_000_000
    window_seconds: float = 10.0


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds. `list_seconds`: after how long a server is asked again for its tools, if it does not say by
    itself that they have changed. `probe_seconds`: how long one may take to answer when a call was in vain.
    `session_connections`: how many there may be that are for one session each; most are processes. `files`: which are
    worth decoding."""

    messages: MessageLimits = MessageLimits()
    list_seconds: float = 60.0
    probe_seconds: float = 5.0
    first_pause_seconds: float = 0.5
    longest_pause_seconds: float = 60.0
    session_connections: int = 100
    files: FileLimits = FileLimits()


class ServerFlooded(Exception):
    """The server sends more than is read."""


class Bound:
    """Counts what comes from one server. Raises ServerFlooded."""

    def __init__(self, limits: MessageLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._clock = clock
        self._since = clock()
        self._messages = self._lines = self._bytes = 0

    def count(self, size: int, messages: int, lines: int = 0) -> None:
        now, limits = self._clock(), self.limits
        if now - self._since > limits.window_seconds:
            self._since, self._messages, self._lines, self._bytes = now, 0, 0, 0
        self._messages += messages
        self._lines += lines
        self._bytes += size
        if (
            self._messages > limits.window_messages
            or self._lines > limits.window_lines
            or self._bytes > limits.window_bytes
        ):
            raise ServerFlooded("it sends too much at once")


class MessageSize:
    """How large one message is that comes in pieces, before anything of it is read."""

    def __init__(self, limits: MessageLimits) -> None:
        self._limits = limits
        self._bytes = 0
        self._values = ValueCounter()

    def find_excess(self, piece: bytes) -> str | None:
        """Why the message is not read, if it is not, with this piece of it."""
        self._bytes += len(piece)
        if self._bytes > self._limits.message_bytes:
            return f"it is larger than {self._limits.message_bytes:,} bytes"
        self._values.feed(piece)
        if self._values.count > self._limits.message_values:
            return f"it has more than {self._limits.message_values:,} values"
        return None


def describe_excess(why: str) -> str:
    return f"its answer is not read, because {why}. It may or may not have taken effect"
