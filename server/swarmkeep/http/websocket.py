"""WebSockets: what all of them share, and a session over one: events are sent, commands are received."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Annotated, Any, cast

import msgspec
from litestar import WebSocket, websocket
from litestar.datastructures import Headers
from litestar.exceptions import WebSocketDisconnect
from litestar.params import FromPath
from litestar.types import Send, WebSocketScope
from litestar.types.asgi_types import WebSocketResponseStartEvent
from msgspec import Meta, structs

from swarmkeep.events.codec import Json, MalformedJson, decode, encode
from swarmkeep.events.errors import InvalidRequest, SessionNotFound, TooLarge
from swarmkeep.events.facts import FeedbackAdded, NoteAdded, RecordedEvent
from swarmkeep.events.views import RunView
from swarmkeep.http import auth
from swarmkeep.http.bodies import UNCOUNTED_BYTES, Body, NewRun, Resume, parse_json
from swarmkeep.http.errors import PROBLEM_JSON, describe_error
from swarmkeep.http.parameters import parse_seq, read_query
from swarmkeep.http.sse import FrameParts, list_frame_parts
from swarmkeep.http.streams import StreamCheck, wait_until_refused
from swarmkeep.http.threads import run_aside
from swarmkeep.runs.hub import Feed, Item
from swarmkeep.runs.runs import IdempotentRequest
from swarmkeep.store.records import SessionKey

# What every WebSocket shares: frames that are received, and refusals, told in the words of each API.

Socket = WebSocket[Any, Any, Any]

# In the registry of RFC 6455: the service restarts, come again.
CLOSE_RESTART = 1012
# A refusal ends the connection with 4000 and the status that HTTP would have answered with.
CLOSE_REFUSED = 4000
# What sending to, or hearing of, a client that has gone raises.
CLIENT_GONE = (WebSocketDisconnect, OSError)


async def receive_frame(socket: Socket) -> bytes:
    """The next frame. Raises WebSocketDisconnect, and TooLarge for one that is larger than a body may be."""
    message = cast(dict[str, Any], await socket.receive())
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(detail="the client has gone", code=message["code"])
    text: str | None = message.get("text")
    sent: bytes = (message.get("bytes") or b"") if text is None else text.encode()
    most = cast(int, socket.app.request_max_body_size)
    if len(sent) > most:
        raise TooLarge(f"the frame has more than {most} bytes (SWARMKEEP_MAX_BODY_BYTES)")
    return sent


class FrameHeader(msgspec.Struct):
    """As much of a frame as can be made out of one that is wrong otherwise."""

    type: Any = None
    ref: Any = None
    previous_response_id: Any = None


def read_header(text: bytes) -> FrameHeader:
    """The header of a frame; an empty one if it is no JSON object."""
    try:
        return decode(text, FrameHeader)
    except (MalformedJson, msgspec.ValidationError):
        return FrameHeader()


async def read_command(socket: Socket, text: bytes, shape: Any, types: Sequence[str]) -> Any:
    """Read a frame as a `shape` that has one of these types, a large one in a thread: no other connection waits for it.

    Raises InvalidRequest and TooLarge.
    """
    most = socket.app.state.body_limits.max_values
    return await run_aside(len(text) > UNCOUNTED_BYTES, _parse_command, text, shape, types, most)


def _parse_command(text: bytes, shape: Any, types: Sequence[str], max_values: int) -> Any:
    try:
        kind = decode(text, FrameHeader).type
    except (MalformedJson, msgspec.ValidationError):
        # Refused with the reason below.
        return parse_json(text, shape, "the frame", max_values)
    if kind not in types:
        choice = types[0] if len(types) == 1 else f"one of {', '.join(types)}"
        raise InvalidRequest(f"a frame's type must be {choice}", "/type")
    return parse_json(text, shape, "the frame", max_values)


class Refusal(msgspec.Struct, frozen=True):
    """An error in the words of one API: `document` answers a handshake, `frame` is the last one of a connection."""

    status: int
    code: str
    document: Json
    headers: Mapping[str, str]
    media_type: str
    frame: bytes


async def _close_refused(socket: Socket, refusal: Refusal) -> None:
    """Tell why, and close. A viewer that takes nothing is not told; the connection ends in any case."""
    with suppress(TimeoutError):
        async with asyncio.timeout(socket.app.state.service.limits.refused_seconds):
            await socket.send_text(refusal.frame)
            await socket.close(CLOSE_REFUSED + refusal.status, refusal.code)


async def close_restarting(socket: Socket) -> None:
    await socket.close(CLOSE_RESTART, "the server is shutting down; connect again")


# The WebSocket handshake: origin, API key, and where the stream starts.

SUBPROTOCOL = "swarmkeep"


# A page cannot send headers with a handshake, but it can offer subprotocols: this one, and one that holds its key.
_BEARER_PREFIX = "bearer."


async def _refuse_other_pages(service: auth.Service, scope: WebSocketScope) -> None:
    """Browsers let any page open a WebSocket anywhere, and only say whose it is. Programs send no `Origin`.

    Raises Forbidden.
    """
    headers = Headers.from_scope(scope)
    await auth.refuse_other_sites(service, headers)
    if not auth.is_allowed_origin(service, headers):
        raise auth.Forbidden(
            "pages of other sites may not open this connection; allow their origin with SWARMKEEP_CORS_ORIGINS"
        )


async def _refuse_handshake(send: Send, refusal: Refusal) -> None:
    """Answer the handshake with a document that says why, instead of a connection."""
    body = encode(refusal.document)
    start: WebSocketResponseStartEvent = {
        "type": "websocket.http.response.start",
        "status": refusal.status,
        "headers": [
            (b"content-type", refusal.media_type.encode()),
            (b"content-length", b"%d" % len(body)),
            *((name.lower().encode(), value.encode()) for name, value in refusal.headers.items()),
        ],
    }
    await send(start)
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


async def _authenticate_handshake(service: auth.Service, scope: WebSocketScope) -> auth.Principal:
    """Return the principal that opens the connection, and may at least watch.

    Raises Unauthenticated, RateLimited, Forbidden, StoreUnavailable.
    """
    shown = Headers.from_scope(scope).getall("authorization", [])
    offered = [name.removeprefix(_BEARER_PREFIX) for name in scope["subprotocols"] if name.startswith(_BEARER_PREFIX)]
    shown += [f"Bearer {secret}" for secret in offered]
    principal = auth.Principal(service, await auth.authenticate(service, shown, auth.get_client_address(scope)))
    auth.note_caller(principal, scope["path_params"])
    principal.require("read")
    return principal


async def authorize_command(principal: auth.Principal, scope: WebSocketScope) -> None:
    """A command is a request of its own: it may come long after the handshake, and be one too many.

    Raises Unauthenticated, RateLimited, Forbidden, StoreUnavailable.
    """
    if not await principal.is_still_allowed():
        raise auth.Unauthenticated(key_given=principal.api_key is not None)
    principal.service.count_request(principal.api_key, auth.get_client_address(scope))
    principal.require("run", "approve")


def parse_after(scope: WebSocketScope) -> int:
    """The last seq that the reader has seen; by default none. Raises InvalidRequest."""
    after = dict(read_query(scope, {"after": False})).get("after", "0")
    return parse_seq(after, "/query/after", "`after` must be the seq of the last event seen")


# Run the concurrent tasks of a connection: tasks of their own, of which the first to end takes the others along.


async def run_until_first(socket: Socket, lock: asyncio.Lock, *work: Coroutine[Any, Any, None]) -> None:
    """Do these until one of them ends, cancel the others, and close the connection. Raises what that one raises.

    What is being done under the lock is done to its end: a run that is recorded has to be set going, too.
    """
    tasks = [asyncio.create_task(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        async with lock:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
    await close_restarting(socket)


async def serve_socket(
    socket: Socket, converse: Callable[[auth.Principal], Awaitable[None]], describe: Callable[[Exception], Refusal]
) -> None:
    """Let a client in, and converse with it until either side closes.

    A client that may not come in gets no connection: until then nothing is read of what it sends, and nothing kept for
    it. All other refusals are told over it: a browser shows its page nothing of an answer to a handshake.
    """
    service, scope = socket.app.state.service, socket.scope
    try:
        await _refuse_other_pages(service, scope)
        principal = await _authenticate_handshake(service, scope)
    except Exception as error:
        await _refuse_handshake(socket.send, describe(error))
        return
    await socket.accept(subprotocols=SUBPROTOCOL if SUBPROTOCOL in scope["subprotocols"] else None)
    try:
        await converse(principal)
    except CLIENT_GONE:
        return
    except Exception as error:
        await _close_refused(socket, describe(error))


# Commands over a WebSocket: create, cancel and resume a run, with the fields of HTTP.

MAX_REF_CHARACTERS = 128
Ref = Annotated[str, Meta(max_length=MAX_REF_CHARACTERS)] | None
IdempotencyKey = Annotated[str, Meta(pattern=r"^[ -~]{1,255}$")] | None


class RunCreate(NewRun, frozen=True, kw_only=True, tag_field="type", tag="run.create"):
    """`stream` and `background` change nothing here: what happens comes over the connection in any case."""

    ref: Ref = None
    idempotency_key: IdempotencyKey = None


class RunResume(Resume, frozen=True, kw_only=True, tag_field="type", tag="run.resume"):
    run_id: str
    ref: Ref = None
    idempotency_key: IdempotencyKey = None


class RunCancel(Body, frozen=True, kw_only=True, tag_field="type", tag="run.cancel"):
    run_id: str
    ref: Ref = None
    idempotency_key: IdempotencyKey = None


SocketCommand = RunCreate | RunCancel | RunResume
COMMAND_TYPES = ("run.create", "run.cancel", "run.resume")


def read_ref(text: bytes) -> str | None:
    """The name by which the sender will know the answer to a frame, which may be a wrong one."""
    ref = read_header(text).ref
    return ref if isinstance(ref, str) and len(ref) <= MAX_REF_CHARACTERS else None


async def execute_command(principal: auth.Principal, key: SessionKey, command: SocketCommand) -> RunView:
    """Do it, and give the run as it is then; returns once it is durable, not once the run has ended.

    Raises what the same request over HTTP would be refused with.
    """
    runs, idempotency = principal.engine.runs, _read_idempotency(key, command)
    match command:
        case RunCreate():
            principal.require("run")
            if command.speaks_as_user:
                principal.refuse_as_user(relayed=command.relayed)
            start = await command.to_command(idempotency, principal.engine.limits.max_messages, by=principal.name)
            position = await runs.start(key, start, idempotency=idempotency)
            # As it began, which is still at hand: another look at the log might come after the end of a quick run.
            return await principal.reader.get_run(key, position.run_id, at=position.seq)
        case RunResume():
            await command.submit(principal, key, command.run_id, idempotency)
            return await principal.reader.get_run(key, command.run_id)
        case RunCancel():
            principal.require("run")
            return await runs.cancel(key, command.run_id, idempotency=idempotency)


def _read_idempotency(key: SessionKey, command: SocketCommand) -> IdempotentRequest | None:
    """The command's idempotency key, with a digest of all that it says, save by what name it is answered."""
    if command.idempotency_key is None:
        return None
    said = encode(structs.replace(command, ref=None))
    return IdempotentRequest(
        command.idempotency_key, hashlib.sha256(b"live " + key.id.encode() + b"\n" + said).hexdigest()
    )


@websocket("/sessions/{session_id:str}/live", opt={auth.OWN_AUTH: True})
async def session_socket(socket: Socket, session_id: FromPath[str]) -> None:
    """Send events from every run of the session, and take commands to it, until either side closes."""

    async def converse(principal: auth.Principal) -> None:
        key, after = principal.session_key(session_id), parse_after(socket.scope)
        await _SessionSocket(socket, principal, key, after).run_until_closed()

    await serve_socket(socket, converse, _describe_refusal)


def _describe_refusal(error: Exception) -> Refusal:
    problem, headers = describe_error(error)
    frame = _frame("error", encode(problem))
    return Refusal(problem["status"], problem["code"], problem, headers, PROBLEM_JSON, frame)


def _frame(event: str, data: bytes, seq: int | None = None, ref: str | None = None) -> bytes:
    number = b"" if seq is None else b',"id":%d' % seq
    name = b"" if ref is None else b',"ref":%b' % encode(ref)
    return b'{"event":%b%b%b,"data":%b}' % (encode(event), number, name, data)


class _SessionSocket:
    """One connection."""

    def __init__(self, socket: Socket, principal: auth.Principal, key: SessionKey, after: int) -> None:
        self._socket = socket
        self._principal = principal
        self._key = key
        self._after = after
        self._command_lock = asyncio.Lock()

    async def run_until_closed(self) -> None:
        """Until the client closes, the server stops, or the session is gone, which raises SessionNotFound."""
        # There before the first command is done: the run that it starts is to be shown as its model speaks.
        feed = self._principal.reader.open_feed(self._key)
        try:
            # Before a command is read, too: the run of the first one may end while this is still looked up.
            joined = (await self._principal.reader.state(self._key)).seq
            work = self._send_events(feed, joined), self._execute_commands(), self._leave_when_refused()
            await run_until_first(self._socket, self._command_lock, *work)
        finally:
            # Also before any reader has begun to read it.
            if feed is not None:
                feed.close()

    async def _send_events(self, feed: Feed | None, joined: int) -> None:
        """Send what happens, and each run that ends after event `joined`.

        A slow reader makes only this wait: what it misses here is in the log.
        """
        principal, key = self._principal, self._key
        last = 0
        check = StreamCheck(principal, key, stop=principal.service.drained)
        async with aclosing(principal.reader.follow(key, after=self._after, feed=feed)) as items:
            async for item in items:
                if not await check.passes(item is not None):
                    break
                if isinstance(item, RecordedEvent):
                    # A session that is recreated begins again, and none of its runs was there before.
                    joined, last = 0 if item.seq <= last else joined, item.seq
                for parts in await self._list_frames(item, joined):
                    await self._socket.send_text(_frame(*parts))
        if not await principal.is_still_allowed():
            raise auth.Unauthenticated(key_given=True)
        if not check.is_stopping:
            raise SessionNotFound(key.id)

    async def _leave_when_refused(self) -> None:
        """End the connection of a viewer that takes nothing, too, when it was to be let in no more."""
        await wait_until_refused(self._principal)
        raise WebSocketDisconnect(detail="the API key is no longer valid")

    async def _list_frames(self, item: Item | None, joined: int) -> list[FrameParts]:
        """List the frames to send for an item; with the last event of a run that ended since the connection began, the
        run."""
        if item is None or (isinstance(item, RecordedEvent) and isinstance(item.fact, NoteAdded | FeedbackAdded)):
            # Those who talk to the agent here are not the colleagues that a note or a remark is for.
            return []
        sent = list_frame_parts(item)
        if isinstance(item, RecordedEvent) and item.seq > joined:
            run = await self._principal.reader.find_ended_run(self._key, item)
            if run is not None:
                sent.append(("done", encode(run), None))
        return sent

    async def _execute_commands(self) -> None:
        """Do what comes in, one after the other. What cannot be done is answered, and the connection goes on."""
        while True:
            text = await self._receive_frame()
            try:
                async with self._command_lock:
                    await authorize_command(self._principal, self._socket.scope)
                    command = await read_command(self._socket, text, SocketCommand, COMMAND_TYPES)
                    run = await execute_command(self._principal, self._key, command)
                answer = "accepted", encode(run)
            except SessionNotFound:
                raise
            except Exception as error:
                answer = "error", encode(describe_error(error)[0])
            await self._socket.send_text(_frame(*answer, ref=read_ref(text)))

    async def _receive_frame(self) -> bytes:
        """The next frame that is not larger than a body may be."""
        while True:
            try:
                return await receive_frame(self._socket)
            except TooLarge as error:
                await self._socket.send_text(_frame("error", encode(describe_error(error)[0])))


ROUTES = [session_socket]
