"""The built-in offline model at an address: what a page's reader has in place of a provider."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2

from swarmkeep.models.offline.server import OfflineTransport
from tests.support.prompt_server import PromptServer


class _Handler(BaseHTTPRequestHandler):
    transport = OfflineTransport()

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("content-length", 0))))

    def _answer(self, body: bytes) -> None:
        request = httpx2.Request(self.command, f"http://offline.invalid{self.path}", content=body)
        response = self.transport.handle_request(request)
        content = response.read()
        self.send_response(response.status_code)
        self.send_header("content-type", response.headers["content-type"])
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


class _Server(ThreadingHTTPServer, PromptServer):
    daemon_threads = True


@contextmanager
def offline_endpoint() -> Iterator[str]:
    """HOST:PORT of a Chat Completions server, under any path, that the offline model answers."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.end()
