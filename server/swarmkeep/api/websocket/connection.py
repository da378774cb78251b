"""A session over one WebSocket: events are sent, commands are received."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from litestar import websocket
from litestar.exceptions import WebSocketDisconnect
from litestar.params import FromPath

from swarmkeep.api.auth.context import Principal
from swarmkeep.api.auth.guards import OWN_AUTH
from swarmkeep.api.errors import describe_error
from swarmkeep.api.http_errors import Unauthenticated
from swarmkeep.api.sse import FrameParts, list_frame_parts
from swarmkeep.api.streams import StreamCheck, wait_until_refused
from swarmkeep.api.websocket.commands import execute_command, read_command, read_ref
from swarmkeep.api.websocket.frames import CLIENT_GONE, Socket, close_refused, receive_frame
from swarmkeep.api.websocket.handshake import (
    SUBPROTOCOL,
    authenticate_handshake,
    authorize_command,
    parse_after,
    refuse_handshake,
    refuse_other_pages,
)
from swarmkeep.api.websocket.tasks import run_until_first
from swarmkeep.domain.codec import encode
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import SessionNotFound, TooLarge
from swarmkeep.engine.streams.feed import Feed
from swarmkeep.engine.streams.items import Item
from swarmkeep.store.ports import SessionKey


@websocket("/sessions/{session_id:str}/live", opt={OWN_AUTH: True})
async def session_socket(socket: Socket, session_id: FromPath[str]) -> None:
    """Events from every run of the session, and commands to it, until somebody closes.

    Who may not come in gets no connection: until then nothing is read of what they send, and nothing kept for them.
    All other refusals are told over it: a browser shows its page nothing of an answer to a handshake.
    """
    service, scope = socket.app.state.service, socket.scope
    try:
        await refuse_other_pages(service, scope)
        principal = await authenticate_handshake(service, scope)
    except Exception as error:
        problem, headers = describe_error(error)
        await refuse_handshake(socket.send, problem["status"], problem, headers)
        return
    await socket.accept(subprotocols=SUBPROTOCOL if SUBPROTOCOL in scope["subprotocols"] else None)
    try:
        key, after = principal.session_key(session_id), parse_after(scope)
        await _SessionSocket(socket, principal, key, after).run_until_closed()
    except CLIENT_GONE:
        return
    except Exception as error:
        problem, _ = describe_error(error)
        await close_refused(socket, _frame("error", encode(problem)), problem["status"], problem["code"])


def _frame(event: str, data: bytes, seq: int | None = None, ref: str | None = None) -> bytes:
    number = b"" if seq is None else b',"id":%d' % seq
    name = b"" if ref is None else b',"ref":%b' % encode(ref)
    return b'{"event":%b%b%b,"data":%b}' % (encode(event), number, name, data)


class _SessionSocket:
    """One connection."""

    def __init__(self, socket: Socket, principal: Principal, key: SessionKey, after: int) -> None:
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
            # Also where nobody has begun to read it.
            if feed is not None:
                feed.close()

    async def _send_events(self, feed: Feed | None, joined: int) -> None:
        """Send what happens, and each run that ends after event `joined`.

        A slow reader makes this wait, and nobody else: what it misses here is in the log.
        """
        principal, key = self._principal, self._key
        last = 0
        check = StreamCheck(principal, key, stop=principal.service.drained)
        async with aclosing(principal.reader.follow(key, after=self._after, feed=feed)) as items:
            async for item in items:
                if not await check.passes(item is not None):
                    break
                if isinstance(item, RecordedEvent):
                    # A session that is made anew begins again, and none of its runs was there before.
                    joined, last = 0 if item.seq <= last else joined, item.seq
                for parts in await self._list_frames(item, joined):
                    await self._socket.send_text(_frame(*parts))
        if not await principal.is_still_allowed():
            raise Unauthenticated(key_given=True)
        if not check.is_stopping:
            raise SessionNotFound(key.id)

    async def _leave_when_refused(self) -> None:
        """End the connection of a viewer that takes nothing, too, when it was to be let in no more."""
        await wait_until_refused(self._principal)
        raise WebSocketDisconnect(detail="the API key is no longer valid")

    async def _list_frames(self, item: Item | None, joined: int) -> list[FrameParts]:
        """What is sent of an item; with the last event of a run that ended since the connection began, the run."""
        if item is None:
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
                    command = await read_command(text, self._socket.app.state.body_limits.max_values)
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
