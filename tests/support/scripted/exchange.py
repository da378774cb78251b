"""One request to the scripted server, and the ways in which bytes can be sent back, or not."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Mapping

import msgspec

from swarmkeep.events.codec import Json

MODEL = "scripted-model"
POLL_SECONDS = 0.05


class ClientGone(ConnectionError):
    """The client closed its connection while its reply was held back."""


class ServerClosing(ConnectionError):
    """The test is over while a reply was held back."""


class Exchange:
    """One request and the socket its reply goes to."""

    def __init__(self, connection: socket.socket, closing: threading.Event, request: Json, number: int) -> None:
        self.request = request
        self.number = number
        self.dropped = False
        self._connection = connection
        self._closing = closing

    def frame(self, kind: str) -> Json:
        return {"id": f"chatcmpl-{self.number}", "object": kind, "created": int(time.time()), "model": MODEL}

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.write(f"HTTP/1.1 {status} Scripted\r\n{lines}\r\n".encode("latin-1"))

    def write(self, data: bytes) -> None:
        self._connection.sendall(data)

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {status} Scripted\r\n{lines}content-length: {len(body)}\r\n\r\n"
        self.write(head.encode("latin-1") + body)

    def send_json(self, status: int, body: Json, headers: Mapping[str, str] | None = None) -> None:
        self.send(status, {"content-type": "application/json", **(headers or {})}, msgspec.json.encode(body))

    def begin_stream(self) -> None:
        self.begin(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})

    def send_delta(self, delta: Json, *, finish_reason: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        self.send_event({**self.frame("chat.completion.chunk"), "choices": [choice]})

    def send_event(self, event: Json | bytes | str) -> None:
        """A chunk as a stream event; bytes and text go out as they are."""
        if isinstance(event, str):
            event = event.encode()
        data = event if isinstance(event, bytes) else b"data: " + msgspec.json.encode(event) + b"\n\n"
        self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self, *, done: bool = True) -> None:
        if done:
            self.send_event(b"data: [DONE]\n\n")
        self.write(b"0\r\n\r\n")

    def drop(self) -> None:
        self.dropped = True

    def wait(self, event: threading.Event) -> None:
        """Hold the reply back until the event; less long if the client goes away or the test ends."""
        while not event.wait(POLL_SECONDS):
            self._check_connection()

    def pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise ServerClosing

    def _check_connection(self) -> None:
        if self._closing.is_set():
            raise ServerClosing
        if select.select([self._connection], [], [], 0)[0] and not self._connection.recv(1, socket.MSG_PEEK):
            raise ClientGone
