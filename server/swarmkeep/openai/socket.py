"""Responses over one WebSocket: each `response.create` frame is answered with the events of its response.

One response at a time. What is not stored can be gone on with here and nowhere else, and only the last of it: a
continuation changes what it goes on from, and one that fails leaves nothing to go on from.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import Any, Literal

import msgspec
from litestar import websocket
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.events.codec import Json, MalformedJson, decode, encode
from swarmkeep.events.errors import SessionNotFound, TooLarge
from swarmkeep.http.auth import OWN_AUTH, Principal, Unauthenticated
from swarmkeep.http.bodies import UNCOUNTED_BYTES, parse_json
from swarmkeep.http.parameters import read_query
from swarmkeep.http.streams import StreamCheck, wait_until_refused
from swarmkeep.http.threads import run_aside
from swarmkeep.http.websocket import (
    CLIENT_GONE,
    SUBPROTOCOL,
    Socket,
    authenticate_handshake,
    authorize_command,
    close_refused,
    receive_frame,
    refuse_handshake,
    refuse_other_pages,
    run_until_first,
)
from swarmkeep.openai.fields import CreateResponse
from swarmkeep.openai.problems import Refused, make_error, make_not_found
from swarmkeep.openai.submit import FollowedResponse, begin_unstored, find_target, follow_response, read_run_request
from swarmkeep.runs.unstored import UnstoredSession

# Frames of the responses WebSocket: `response.create` comes in, events and errors go out.

CREATE = "response.create"


class CreateFrame(CreateResponse, frozen=True, kw_only=True, tag_field="type", tag=CREATE):
    """A response over a WebSocket is a stream in any case, and one that no other request waits for."""

    stream: Literal[True] | None = None
    background: Literal[False] | None = None
    generate: Literal[True] | None = None
    stream_id: None = None


class FrameHeader(msgspec.Struct):
    """As much of a frame as can be made out of one that is wrong otherwise."""

    type: Any = UNSET
    previous_response_id: Any = None


def read_header(text: bytes) -> FrameHeader | None:
    try:
        return decode(text, FrameHeader)
    except (MalformedJson, msgspec.ValidationError):
        return None


async def read_create(text: bytes, max_values: int) -> CreateFrame:
    """Read a frame, a large one in a thread: no other connection waits for it. Raises Refused, InvalidRequest and
    TooLarge."""
    return await run_aside(len(text) > UNCOUNTED_BYTES, _parse_create, text, max_values)


def _parse_create(text: bytes, max_values: int) -> CreateFrame:
    header = read_header(text)
    if header is not None and header.type != CREATE:
        raise Refused(f"a frame's type must be {CREATE}", "type")
    frame: CreateFrame = parse_json(text, CreateFrame, "the frame", max_values)
    return frame


def make_error_frame(error: Exception) -> tuple[int, str, bytes]:
    """The status, the code and the frame of a refusal."""
    status, body, headers = make_error(error)
    described = {**body, "headers": headers} if headers else body
    return status, str(body["code"]), encode({"type": "error", "status": status, "error": described})


@websocket("/responses", opt={OWN_AUTH: True})
async def responses_socket(socket: Socket) -> None:
    """A client that may not come in gets no connection; all other refusals are told over it."""
    service, scope = socket.app.state.service, socket.scope
    try:
        await refuse_other_pages(service, scope)
        principal = await authenticate_handshake(service, scope)
    except Exception as error:
        status, body, headers = make_error(error)
        await refuse_handshake(socket.send, status, {"error": body}, headers, "application/json")
        return
    await socket.accept(subprotocols=SUBPROTOCOL if SUBPROTOCOL in scope["subprotocols"] else None)
    try:
        read_query(scope, known={})
        await _ResponsesSocket(socket, principal).run_until_closed()
    except CLIENT_GONE:
        return
    except Exception as error:
        status, code, frame = make_error_frame(error)
        await close_refused(socket, frame, status, code)


class _KeptResponse(msgspec.Struct, frozen=True):
    """A response that is in no log, and what a next one goes on from. `size`: the bytes that were said so far."""

    response_id: str
    session: UnstoredSession
    size: int


class _ResponsesSocket:
    """One connection."""

    def __init__(self, socket: Socket, principal: Principal) -> None:
        self._socket = socket
        self._principal = principal
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._idle = asyncio.Event()
        self._idle.set()
        self._begin_lock = asyncio.Lock()
        self._end_lock = asyncio.Lock()
        self._kept: _KeptResponse | None = None

    async def run_until_closed(self) -> None:
        """Until the client closes, the server stops, or the key is valid no more, which raises Unauthenticated."""
        work = self._receive(), self._answer(), self._leave_when_refused(), self._leave_when_drained()
        await run_until_first(self._socket, self._begin_lock, *work)

    async def _receive(self) -> None:
        """Take one frame after the other; refuse what comes while another response is under way."""
        while True:
            try:
                text = await receive_frame(self._socket)
                if not self._idle.is_set():
                    message = "another response is under way on this connection; wait for its end"
                    raise Refused(message, code="response_in_progress", status=409)
            except (TooLarge, Refused) as error:
                await self._tell_error(error)
            else:
                self._idle.clear()
                self._frames.put_nowait(text)

    async def _answer(self) -> None:
        while True:
            text = await self._frames.get()
            try:
                last = await self._respond(text)
            except (*CLIENT_GONE, Unauthenticated):
                raise
            except Exception as error:
                last = make_error_frame(error)[2]
            async with self._end_lock:
                # A client that has the last frame may send the next one at once.
                self._idle.set()
                await self._socket.send_text(last)

    async def _respond(self, text: bytes) -> bytes:
        """Send a response's events, but for the last, which is returned: nothing of it is left to do then."""
        kept = self._take_kept(text)
        size = len(text) + (0 if kept is None else kept.size)
        self._refuse_excess(kept, size)
        async with self._begin_lock:
            await authorize_command(self._principal, self._socket.scope)
            self._principal.require("run")
            frame = await read_create(text, self._socket.app.state.body_limits.max_values)
            response = await self._begin(frame, None if kept is None else kept.session)
        last = await self._send_events(response)
        encoded = encode(last)
        if response.session is not None and response.builder.outcome.status != "failed":
            self._kept = _KeptResponse(last["response"]["id"], response.session, size + len(encoded))
        return encoded

    def _refuse_excess(self, kept: _KeptResponse | None, size: int) -> None:
        """All of it is in memory, for as long as the connection is. What goes on from nothing has limits already."""
        most = self._principal.service.limits.unstored_bytes
        if kept is not None and size > most:
            raise TooLarge(
                f"a response that is not stored, with those that it continues, has more than {most} bytes; begin anew, "
                "or have it stored"
            )

    def _take_kept(self, text: bytes) -> _KeptResponse | None:
        """Return the response that a frame goes on from, if that is kept here; from now on it is not, unless all goes
        well."""
        header, kept = read_header(text), self._kept
        if header is None or kept is None or header.previous_response_id != kept.response_id:
            return None
        self._kept = None
        return kept

    async def _begin(self, frame: CreateFrame, kept: UnstoredSession | None) -> FollowedResponse:
        run_request = await read_run_request(self._principal, replace(frame, stream=True))
        if frame.store is False:
            return await begin_unstored(self._principal, run_request, kept)
        if kept is not None:
            raise Refused(
                "a response that continues one that is not stored cannot be stored either: set `store` to false",
                "store",
            )
        target = await find_target(self._principal, run_request, None)
        return await follow_response(self._principal, target, run_request)

    async def _send_events(self, response: FollowedResponse) -> Json:
        check = StreamCheck(self._principal, response.key, stop=self._principal.service.drained)
        with suppress(SessionNotFound):
            async with aclosing(response.batches) as batches:
                async for batch in batches:
                    if not await check.passes(batch):
                        break
                    events = [event for item in batch for event in response.builder.read(item)]
                    last = events.pop() if events and response.builder.is_over else None
                    for event in events:
                        await self._socket.send_text(encode(event))
                    if last is not None:
                        return last
        if not await self._principal.is_still_allowed():
            raise Unauthenticated(key_given=True)
        if check.is_stopping:
            message = "the server is shutting down; fetch the response later"
            raise Refused(message, code="server_shutting_down", status=503)
        raise make_not_found("response", str(response.builder.snapshot()["id"]))

    async def _tell_error(self, error: Exception) -> None:
        await self._socket.send_text(make_error_frame(error)[2])

    async def _leave_when_refused(self) -> None:
        """End the connection of a client that waits or takes nothing, too, when it was to be let in no more."""
        await wait_until_refused(self._principal)
        raise Unauthenticated(key_given=True)

    async def _leave_when_drained(self) -> None:
        """Once this server's runs have ended, and the last of them was told."""
        await self._principal.service.drained.wait()
        await self._idle.wait()
        async with self._end_lock:
            return


ROUTES = [responses_socket]
