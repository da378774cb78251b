"""The sockets of the scripted server: a thread for each connection, and none left at the end."""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
from typing import Any, Protocol

from tests.support.prompt_server import PromptServer


class Script(Protocol):
    """What the server needs of a script."""

    def answer(
        self, connection: socket.socket, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> bool: ...

    def complain(self, complaint: str) -> None: ...


class _Connection(socketserver.StreamRequestHandler):
    """Just enough HTTP/1.1 for clients that speak it well; several times faster than http.server."""

    disable_nagle_algorithm = True
    server: Server

    def handle(self) -> None:
        try:
            while self._serve_one():
                pass
        except ConnectionError:
            pass

    def _serve_one(self) -> bool:
        """Read a request and answer it; False once the connection is of no more use."""
        start = self.rfile.readline(65_536).split()
        if len(start) != 3:
            return False
        method, target = start[0].decode("latin-1"), start[1].decode("latin-1")
        headers: dict[str, str] = {}
        while (line := self.rfile.readline(65_536)) not in (b"\r\n", b"\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        if headers.get("expect", "").lower() == "100-continue":
            self.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = self._body(headers)
        kept = self.server.script.answer(self.connection, method, target, headers, body)
        return kept and headers.get("connection", "").lower() != "close"

    def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            length = int(headers.get("content-length", 0))
            body = self.rfile.read(length)
            if len(body) < length:
                raise ConnectionError("the client went away before its request was complete")
            return body
        parts: list[bytes] = []
        while size := int(self.rfile.readline(1024).split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline(8)
        while self.rfile.readline(65_536) not in (b"\r\n", b"\n", b""):
            pass
        return b"".join(parts)


class Server(socketserver.ThreadingMixIn, PromptServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], script: Script) -> None:
        super().__init__(address, _Connection)
        self.script = script
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._handlers: list[threading.Thread] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
            self._handlers = [thread for thread in self._handlers if thread.is_alive()]
            thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
            self._handlers.append(thread)
            thread.start()

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        self.script.complain(f"the scripted server itself failed: {sys.exception()!r}")

    def close(self) -> None:
        self.end()
        with self._lock:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:  # the other side was first
                    continue
            handlers = list(self._handlers)
        for thread in handlers:
            thread.join(5)
        self.server_close()
