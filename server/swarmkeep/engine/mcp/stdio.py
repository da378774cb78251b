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
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp.types import CONNECTION_CLOSED, INTERNAL_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from swarmkeep.agent import MCPServer
from swarmkeep.engine.mcp.bounds import Bound, MessageLimits, MessageSize, ServerFlooded, describe_excess

log = logging.getLogger(__name__)

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]

_PIECE_BYTES = 64 * 1024
# Where an answer names its request: before what it says, or behind it. What it says may have ids, too.
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
# A request of the server's own has an id, too: only what is followed by a result answers one of ours.
_FIRST_ID = re.compile(
    rb'\s*\{\s*(?:%s\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*,\s*(?:%s\s*,\s*)?"(?:result|error)"\s*:' % (_VERSION, _VERSION)
)
_LAST_ID_FOLLOWS = re.compile(rb'\s*\{\s*(?:%s\s*,\s*)?"(?:result|error)"\s*:' % _VERSION)
_LAST_ID = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*(?:,\s*%s\s*)?\}$' % _VERSION)
# Only where it is the message's own method: an answer's text may say the same.
_IDLE_TALK = re.compile(rb'\s*\{\s*(?:%s\s*,\s*)?"method"\s*:\s*"notifications/(?:message|progress)"' % _VERSION)
_EDGE_BYTES = 200
_STOP_SECONDS = 2.0
_EXIT_SECONDS = 0.5
_EXIT_POLL_SECONDS = 0.01
_KEPT_LINES = 20
_LINE_CHARACTERS = 200


class LineReader:
    """Messages out of pieces of a server's output. Of a message that is too large its request is answered so."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        # A line of no more bytes has no more values, either: it need not be measured.
        self._small_bytes = min(bound.limits.message_bytes, bound.limits.message_values)
        self._begin_line()

    def feed(self, data: bytes) -> Iterator[SessionMessage]:
        self._bound.count(len(data), 0)
        *ending, last = data.split(b"\n")
        for piece in ending:
            if not self._line and len(piece) <= self._small_bytes:
                yield from self._read(piece)
                continue
            yield from self._take(piece)
            yield from self._end_line()
        yield from self._take(last)

    def _begin_line(self) -> None:
        self._line = bytearray()
        self._size = MessageSize(self._bound.limits)
        self._excess: str | None = None
        self._is_refused = False

    def _take(self, piece: bytes) -> Iterator[SessionMessage]:
        self._line += piece
        if self._excess is None:
            self._excess = self._size.find_excess(piece)
            if self._excess is None:
                return
            yield from self._refuse_by_beginning(self._excess)
        # No more is kept of it than its end.
        del self._line[:-_EDGE_BYTES]

    def _refuse_by_beginning(self, why: str) -> Iterator[SessionMessage]:
        found = _FIRST_ID.match(self._line[:_EDGE_BYTES])
        if found is not None:
            yield _refuse(int(found[1]), why)
            self._is_refused = True
        elif not _LAST_ID_FOLLOWS.match(self._line[:_EDGE_BYTES]):
            raise ServerFlooded(f"a message of it is not read, because {why}")

    def _end_line(self) -> Iterator[SessionMessage]:
        line, excess, is_refused = bytes(self._line), self._excess, self._is_refused
        self._begin_line()
        if excess is None:
            yield from self._read(line)
        elif not is_refused:
            found = _LAST_ID.search(line.strip())
            if found is None:
                raise ServerFlooded(f"a message of it is not read, because {excess}")
            yield _refuse(int(found[1]), excess)

    def _read(self, line: bytes) -> Sequence[SessionMessage]:
        """The message of a whole line, if it is one."""
        line = line.strip()
        if _is_idle_talk(line):
            return ()
        self._bound.count(0, 1)
        if not line:
            return ()
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            # Many programs print a word or two to where they should not.
            log.debug("a line of an MCP server's output is not a message")
            return ()
        if isinstance(message, JSONRPCError) and message.error.code == CONNECTION_CLOSED:
            # The client's own code for a connection that is lost. Servers have it for whatever went wrong.
            message.error.code = INTERNAL_ERROR
        return (SessionMessage(message),)


def _refuse(request_id: int, why: str) -> SessionMessage:
    error = ErrorData(code=INTERNAL_ERROR, message=describe_excess(why))
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))


def _is_idle_talk(line: bytes) -> bool:
    """Whether it is a line for a log, or about progress: nobody here looks at them, and they may be many."""
    return _IDLE_TALK.match(line[:_EDGE_BYTES]) is not None


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
