"""A server that is started here, and spoken to over its standard input and output: no line of it is read past a bound.

The official client's own way keeps a line until it ends, however long it gets.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp.types import INTERNAL_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from swarmkeep.agent import MCPServer

log = logging.getLogger(__name__)

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]

_PIECE_BYTES = 64 * 1024
# What an answer begins with, where its request is named before what it says.
_ANSWER_ID = re.compile(rb'"id"\s*:\s*(\d{1,15})\b')
_HEAD_BYTES = 200
_STOP_SECONDS = 2.0
_EXIT_SECONDS = 0.5
_EXIT_POLL_SECONDS = 0.01
_KEPT_LINES = 20
_LINE_CHARACTERS = 200


class MessageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a server. `message_values`: about as many values as one message may have, because each takes
    time. Of a flood of messages or bytes, so much is read in `window_seconds`; then the connection is closed."""

    message_bytes: int = 4_000_000
    message_values: int = 50_000
    window_messages: int = 5_000
    window_bytes: int = 64_000_000
    window_seconds: float = 10.0


class ServerFlooded(Exception):
    """The server sends more than is read."""


class Bound:
    """Counts what comes from one server. Raises ServerFlooded."""

    def __init__(self, limits: MessageLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._since = clock()
        self._messages = self._bytes = 0

    def count(self, size: int, messages: int) -> None:
        now = self._clock()
        if now - self._since > self._limits.window_seconds:
            self._since, self._messages, self._bytes = now, 0, 0
        self._messages += messages
        self._bytes += size
        if self._messages > self._limits.window_messages or self._bytes > self._limits.window_bytes:
            raise ServerFlooded("it sends too much at once")

    def find_excess(self, data: bytes | bytearray) -> str | None:
        """Why a message is not read, if it is not."""
        if len(data) > self._limits.message_bytes:
            return f"it is larger than {self._limits.message_bytes:,} bytes"
        if count_values(data) > self._limits.message_values:
            return f"it has more than {self._limits.message_values:,} values"
        return None


def count_values(data: bytes | bytearray) -> int:
    """About how many values of JSON it has, empty lists and objects included: what reading it costs."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


class LineReader:
    """Messages out of pieces of a server's output. Of a message that is too large its request is answered so."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._line = bytearray()
        self._skips = False

    def feed(self, data: bytes) -> Iterator[SessionMessage]:
        lines = data.split(b"\n")
        self._bound.count(len(data), 0)
        for place, piece in enumerate(lines):
            if not self._skips:
                self._line += piece
            ends = place < len(lines) - 1
            excess = None if self._skips else self._bound.find_excess(self._line)
            if excess is not None:
                yield _refuse(bytes(self._line[:_HEAD_BYTES]), excess)
                self._line.clear()
                self._skips = True
            if ends:
                line, self._line = bytes(self._line).strip(), bytearray()
                if line and not self._skips and not _is_idle_talk(line) and (message := self._parse(line)) is not None:
                    yield message
                self._skips = False

    def _parse(self, line: bytes) -> SessionMessage | None:
        self._bound.count(0, 1)
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError:
            # Many programs print a word or two to where they should not.
            log.debug("a line of an MCP server's output is no message")
            return None


def _refuse(head: bytes, why: str) -> SessionMessage:
    found = _ANSWER_ID.search(head)
    if found is None:
        raise ServerFlooded(f"a message of it is not read, because {why}")
    error = ErrorData(code=INTERNAL_ERROR, message=f"its answer is not read, because {why}")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=int(found[1]), error=error))


def _is_idle_talk(line: bytes) -> bool:
    """Whether it is a line for a log, or about progress: nobody here looks at them, and they may be many."""
    head = line[:_HEAD_BYTES]
    return b'"notifications/message"' in head or b'"notifications/progress"' in head


class LastWords:
    """The last lines that a server wrote to its standard error, and the end of its process."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.exit_code: int | None = None
        self.refusal = ""

    @property
    def reason(self) -> str:
        """Why it says nothing any more, as far as that is known here."""
        ended = "" if self.exit_code is None else f"its process ended with code {self.exit_code}"
        return self.refusal or ended

    @property
    def text(self) -> str:
        """What it said last. It may be about anybody's call."""
        return " / ".join(list(self.lines)[-3:])


@asynccontextmanager
async def open_stdio(
    server: MCPServer, limits: MessageLimits, words: LastWords, on_end: Callable[[], None]
) -> AsyncGenerator[Streams]:
    """Start the server, and stop it at the end. `on_end` is called once it says nothing any more."""
    with anyio.CancelScope(shield=True):
        # Cut off in here, it would leave behind what it has started.
        process = await _start(server)
    received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, to_send = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read_output, process, Bound(limits, asyncio.get_running_loop().time), received, words, on_end)
        tasks.start_soon(_read_errors, process, words)
        tasks.start_soon(_write_input, process, to_send)
        try:
            yield incoming, outgoing
        finally:
            incoming.close()
            outgoing.close()
            with anyio.CancelScope(shield=True):
                await _stop(process)
            tasks.cancel_scope.cancel()


async def _start(server: MCPServer) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *server.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**get_default_environment(), **server.env},
        # What stops this process at a terminal is not for it.
        start_new_session=os.name == "posix",
    )


async def _read_output(
    process: asyncio.subprocess.Process,
    bound: Bound,
    received: MemoryObjectSendStream[SessionMessage | Exception],
    words: LastWords,
    on_end: Callable[[], None],
) -> None:
    assert process.stdout is not None
    reader = LineReader(bound)
    try:
        async with received:
            try:
                while data := await process.stdout.read(_PIECE_BYTES):
                    for message in reader.feed(data):
                        await received.send(message)
            except ServerFlooded as error:
                words.refusal = str(error)
                return
            # Of a server that has ended, the code says why; one that has only closed its output lives on.
            if await _wait_for_exit(process, _EXIT_SECONDS):
                words.exit_code = process.returncode
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        pass
    finally:
        on_end()


async def _read_errors(process: asyncio.subprocess.Process, words: LastWords) -> None:
    assert process.stderr is not None
    rest = b""
    while data := await process.stderr.read(_PIECE_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        rest = rest[-_LINE_CHARACTERS:]
        for line in lines[-_KEPT_LINES:]:
            if line.strip():
                words.lines.append(line.decode("utf-8", "replace").strip()[:_LINE_CHARACTERS])


async def _write_input(process: asyncio.subprocess.Process, to_send: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None
    # Its end is what `_read_output` notices.
    with suppress(OSError, RuntimeError):
        async with to_send:
            async for message in to_send:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode("utf-8", "replace") + b"\n")
                await process.stdin.drain()


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Close its input, which tells a server to end; then tell it more plainly, with all that it has started."""
    assert process.stdin is not None
    with suppress(OSError, RuntimeError):
        process.stdin.close()
    for number in (None, signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        if number is not None:
            _send_signal(process, number)
        if await _wait_for_exit(process, _STOP_SECONDS):
            break
    # What it has started may still hold its output open.
    _send_signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))
    transport = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()


async def _wait_for_exit(process: asyncio.subprocess.Process, seconds: float) -> bool:
    """Whether it ends in time. Looks again and again: `wait` waits for the ends of its pipes, too, which whatever it
    has started may hold."""
    for _ in range(max(1, round(seconds / _EXIT_POLL_SECONDS))):
        if process.returncode is not None:
            return True
        await asyncio.sleep(_EXIT_POLL_SECONDS)
    return process.returncode is not None


def _send_signal(process: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if os.name == "posix":
            os.killpg(process.pid, number)
        elif process.returncode is None:
            process.send_signal(number)
