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
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from http.cookiejar import Cookie, CookieJar
from typing import Any, Self

import anyio
import httpx2
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import ReadStream, TransportStreams
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)

from swarmkeep.agent import MCPServer
from swarmkeep.decide.checks import FileLimits
from swarmkeep.events.codec import ValueCounter, encode
from swarmkeep.models.failures import is_event_stream

# Bound the amount that is read of a server, and the time that is waited for it.


class MessageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of reading from a server. `message_values`: about as many values as one message may have, because each
    takes time; `checked_values`: how many of them the protocol has a type for, which take far longer. Of a flood of
    messages, of lines of event streams, or of bytes, so much is read in `window_seconds`; then the connection is
    closed."""

    message_bytes: int = 4_000_000
    message_values: int = 50_000
    checked_values: int = 6_000
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
    """The size of one message that comes in pieces, before anything of it is read."""

    def __init__(self, limits: MessageLimits) -> None:
        self._limits = limits
        self._bytes = 0
        self._values = ValueCounter()

    def find_excess(self, piece: bytes) -> str | None:
        """Return the reason why the message is not read, if it is not, with this piece of it."""
        self._bytes += len(piece)
        if self._bytes > self._limits.message_bytes:
            return f"it is larger than {self._limits.message_bytes:,} bytes"
        self._values.feed(piece)
        if self._values.count > self._limits.message_values:
            return f"it has more than {self._limits.message_values:,} values"
        return None


def describe_excess(why: str) -> str:
    return f"its answer is not read, because {why}. It may or may not have taken effect"


class CheckedStream:
    """Messages of a server on the way to the official client, which checks each value of them several times.

    An answer with too many is replaced by an error; of what the server asks or tells, nothing is left.
    """

    def __init__(self, inner: ReadStream[SessionMessage | Exception], limits: MessageLimits) -> None:
        self._inner = inner
        self._most = limits.checked_values

    async def receive(self) -> SessionMessage | Exception:
        item = await self._inner.receive()
        if isinstance(item, Exception):
            return item
        match item.message:
            case JSONRPCResponse(id=request_id, result=result) if count_checked(result, self._most) > self._most:
                why = f"it has more than {self._most:,} values outside of schemas and structured content"
                return _refuse(request_id, why)
            case JSONRPCRequest() | JSONRPCNotification() as message if (
                count_checked(message.params, self._most) > self._most
            ):
                message.params = {}
        return item

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *ended: Any) -> bool | None:
        return await self._inner.__aexit__(*ended)


# What stands under these names the client takes as it is.
_UNCHECKED = frozenset({"_meta", "inputSchema", "outputSchema", "structuredContent"})


def count_checked(message: Any, most: int) -> int:
    """Count the values that the protocol has a type for, until there are more than `most`."""
    count, left = 0, [message]
    while left and count <= most:
        match left.pop():
            case dict() as named:
                left += [value for name, value in named.items() if name not in _UNCHECKED]
                count += len(named)
            case list() as values:
                left += values
                count += len(values)
    return count


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
            # The client's own code for a connection that is lost. Servers have it for any failure.
            message.error.code = INTERNAL_ERROR
        return (SessionMessage(message),)


def _refuse(request_id: RequestId, why: str) -> SessionMessage:
    error = ErrorData(code=INTERNAL_ERROR, message=describe_excess(why))
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))


def _is_idle_talk(line: bytes) -> bool:
    """Tell if it is a line for a log, or about progress: these are ignored here, and they may be many."""
    return _IDLE_TALK.match(line[:_EDGE_BYTES]) is not None


class LastWords:
    """The last lines that a server wrote to its standard error, and the end of its process."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.exit_code: int | None = None
        self.refusal = ""

    @property
    def reason(self) -> str:
        """The reason why it says nothing any more, as far as that is known here."""
        ended = "" if self.exit_code is None else f"its process ended with code {self.exit_code}"
        return self.refusal or ended

    @property
    def text(self) -> str:
        """The last text that it said. It may be about anybody's call."""
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
    """Tell if it ends in time. Looks again and again: `wait` waits for the ends of its pipes, too, which any process
    it has started may hold."""
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


# A server that is spoken to over streamable HTTP: no answer of it is read past a bound, and no redirect followed.

# A stream of events may be silent for long; a caller who waits for an answer has a limit of their own.
_READ_SECONDS = 900.0
# No server's code: what a server answers that does not know the session is told by it.
SESSION_GONE = -39_404
# As many and as long as a browser keeps at least.
_MOST_COOKIES = 50
_COOKIE_CHARACTERS = 4096
_SESSION_HEADER = "mcp-session-id"
_PHRASES = {int(status): status.phrase for status in HTTPStatus}
_SEPARATOR = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")


@asynccontextmanager
async def open_http(server: MCPServer, limits: MessageLimits) -> AsyncGenerator[TransportStreams]:
    """A connection with the server's headers. Its bodies come as they are: what is packed small is not unpacked."""
    timeout = httpx2.Timeout(server.connect_timeout, read=_READ_SECONDS)
    bound = Bound(limits, asyncio.get_running_loop().time)
    client = httpx2.AsyncClient(
        headers={**server.headers, "Accept-Encoding": "identity"},
        timeout=timeout,
        follow_redirects=False,
        cookies=BoundedCookieJar(),
        event_hooks={"response": [partial(_bound_response, bound=bound)]},
    )
    async with (
        client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=limits.message_bytes) as streams,
    ):
        yield streams


class BoundedCookieJar(CookieJar):
    """The first cookies of a connection: what spreads requests over several servers may know them by one. More would be
    kept, and sent, for as long as the connection lasts."""

    def set_cookie(self, cookie: Cookie) -> None:
        is_short = len(cookie.name) + len(cookie.value or "") <= _COOKIE_CHARACTERS
        is_known = any((one.domain, one.path, one.name) == (cookie.domain, cookie.path, cookie.name) for one in self)
        if is_short and (is_known or len(self) < _MOST_COOKIES):
            super().set_cookie(cookie)


async def _bound_response(response: httpx2.Response, bound: Bound) -> None:
    """A hook of the HTTP client, called before anything of an answer's body is read."""
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    media_type = response.headers.get("content-type", "").lower()
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.StreamError("the server compresses its answers, which it was not asked to")
    response.stream = body = BoundedBody(response.stream, bound, is_event_stream(media_type))
    status = response.status_code
    is_of_session = _SESSION_HEADER in response.request.headers
    # What 404 means without a session, the client says.
    if response.request.method == "POST" and status >= 400 and (status != 404 or is_of_session):
        is_explained = media_type.startswith("application/json") and status not in (401, 403)
        response.stream = _Refusal(body, status, is_explained)
        response.headers["content-type"] = "application/json"


class BoundedBody(httpx2.AsyncByteStream):
    """The part of a body that is read: up to a bound; of a stream of events, each of them."""

    def __init__(self, inner: httpx2.AsyncByteStream, bound: Bound, is_streamed: bool) -> None:
        self._inner = inner
        self._bound = bound
        self._is_streamed = is_streamed
        self._size = MessageSize(bound.limits)
        self._line_end = b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._inner:
            excess = self._find_excess(data)
            # Of each of these errors the client passes on what it says. It then takes a stream for lost.
            if excess is not None and self._is_streamed:
                raise httpx2.SSEError(f"a message of it is not read, because {excess}")
            if excess is not None:
                raise httpx2.StreamError(describe_excess(excess))
            yield data

    def _find_excess(self, data: bytes) -> str | None:
        messages = self._split(data) if self._is_streamed else [data]
        lines = data.count(b"\n") + data.count(b"\r") if self._is_streamed else 0
        try:
            self._bound.count(len(data), len(messages) - 1, lines)
        except ServerFlooded as error:
            return str(error)
        for place, piece in enumerate(messages):
            if place:
                self._size = MessageSize(self._bound.limits)
            excess = self._size.find_excess(piece)
            if excess is not None:
                return excess
        return None

    def _split(self, data: bytes) -> list[bytes]:
        """The rest of an event, those that follow, and the beginning of one. What ends it may be cut in two."""
        *whole, last = _SEPARATOR.split(self._line_end + data)
        begun = last.rstrip(b"\r\n")
        self._line_end = last[len(begun) :]
        return [*whole, begun]

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Refusal(httpx2.AsyncByteStream):
    """The protocol's error that came with an HTTP status, or one that names the status: of anything else the client
    says that it is an error, and no more."""

    def __init__(self, body: BoundedBody, status: int, is_explained: bool) -> None:
        self._body = body
        self._status = status
        self._is_explained = is_explained

    async def __aiter__(self) -> AsyncIterator[bytes]:
        said = await self._read_error() if self._is_explained else None
        yield encode({"jsonrpc": "2.0", "id": None, "error": self._choose_error(said)})

    async def _read_error(self) -> ErrorData | None:
        try:
            body = b"".join([data async for data in self._body])
            message = jsonrpc_message_adapter.validate_json(body, by_name=False)
        except (httpx2.StreamError, ValueError):
            return None
        return message.error if isinstance(message, JSONRPCError) else None

    def _choose_error(self, said: ErrorData | None) -> dict[str, int | str]:
        if self._status == 404 and (said is None or said.code != METHOD_NOT_FOUND):
            return {"code": SESSION_GONE, "message": "it does not know the session any more"}
        if said is not None:
            # The client's own code for a connection that is lost.
            return {"code": INTERNAL_ERROR if said.code == CONNECTION_CLOSED else said.code, "message": said.message}
        phrase = _PHRASES.get(self._status, "")
        return {"code": INTERNAL_ERROR, "message": f"it answered with HTTP status {self._status} {phrase}".rstrip()}

    async def aclose(self) -> None:
        await self._body.aclose()
