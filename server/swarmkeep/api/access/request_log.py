"""Gives every answer the id of its request, and writes a log line for every request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from swarmkeep.api.access.asgi import Application, Message, Receive, Scope, Send
from swarmkeep.api.access.request_ids import HEADER, find_request_id
from swarmkeep.logs.context import only_log_fields

log = logging.getLogger(__name__)

SEND_PART = "swarmkeep.send_part"
"""The key of a scope under which the server's own `send` is: for parts of a body, which no layer around looks at."""

NoteBeginning = Callable[[Message, Scope], None]
Refuse = Callable[[Scope], Application | None]

_MAX_PATH_CHARACTERS = 200
# What asks for these does so every few seconds.
_PROBES = ("/health/", "/metrics")
# The messages that begin an answer, whichever part of the application or the framework sends it.
_BEGINNINGS = ("http.response.start", "websocket.http.response.start", "websocket.accept")
_NO_BODY = (b"content-length", b"0")


class RequestLog:
    """An ASGI application around another. What is logged inside of a request has the request's id.

    `note_beginning` is shown the message that begins an answer, whoever sends it, and may add to its headers.
    `refuse_cut_off` answers a request that is cancelled before its answer has begun; with none it is not answered.
    """

    def __init__(
        self, app: Application, note_beginning: NoteBeginning, refuse_cut_off: Refuse, *, writes_lines: bool = True
    ) -> None:
        self._app = app
        self._note_beginning = note_beginning
        self._refuse_cut_off = refuse_cut_off
        self._writes_lines = writes_lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = find_request_id(scope)
        answer = _Answer(scope, send, request_id, self._note_beginning)
        scope[SEND_PART] = send
        started = time.perf_counter()
        with only_log_fields(request_id=request_id):
            try:
                await self._app(scope, receive, answer.send)
            except asyncio.CancelledError:
                refusal = self._refuse_cut_off(scope) if answer.status is None else None
                if refusal is None:
                    raise
                await refusal(scope, receive, answer.send)
            finally:
                if self._writes_lines:
                    _log_request(scope, answer.status, time.perf_counter() - started)


def _log_request(scope: Scope, status: int | None, seconds: float) -> None:
    """The line of a request that has been answered; without a status its caller has gone before."""
    is_probe = scope["path"].startswith(_PROBES) and status == 200
    fields = {
        "method": scope.get("method", "WebSocket"),
        "path": scope["path"][:_MAX_PATH_CHARACTERS],
        "status": status,
        "duration_ms": round(seconds * 1000, 1),
    }
    log.log(
        logging.DEBUG if is_probe else logging.INFO,
        "%s %s %s in %s ms",
        fields["method"],
        fields["path"],
        status or "unanswered",
        fields["duration_ms"],
        extra=fields,
    )


class _Answer:
    """Sends an answer on, with the request's id in its head."""

    def __init__(self, scope: Scope, send: Send, request_id: str, note_beginning: NoteBeginning) -> None:
        self.status: int | None = None
        self._scope = scope
        self._note_beginning = note_beginning
        self._may_refuse = "websocket.http.response" in (scope.get("extensions") or {})
        self._send = send
        self._header = (HEADER, request_id.encode("ascii"))

    async def send(self, message: Message) -> None:
        if message["type"] == "websocket.close" and self.status is None and self._may_refuse:
            return await self._refuse_handshake()
        if message["type"] in _BEGINNINGS:
            self.status = message.get("status", 101)
            message = {**message, "headers": [*(message.get("headers") or ()), self._header]}
            self._note_beginning(message, self._scope)
        await self._send(message)
        return None

    async def _refuse_handshake(self) -> None:
        """Answer as the server would when a WebSocket is closed before it is open, which would leave the id out."""
        self.status = 403
        start = {"type": "websocket.http.response.start", "status": 403, "headers": [self._header, _NO_BODY]}
        self._note_beginning(start, self._scope)
        await self._send(start)
        await self._send({"type": "websocket.http.response.body", "body": b"", "more_body": False})
