"""A server that says what the test scripts: real sockets, and answers that may break off after any byte."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.support.prompt_server import PromptServer

SILENCE_SECONDS = 10.0


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as it came in. `headers` are looked up in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def raw_path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def path(self) -> str:
        return unquote(self.raw_path)

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def key(self) -> str | None:
        return self.headers.get("idempotency-key")

    @property
    def last_event_id(self) -> int | None:
        text = self.headers.get("last-event-id")
        return None if text is None else int(text)


@dataclass(frozen=True)
class Reply:
    """Bytes to send, head included, in these pieces. `then` says what follows: the end, or silence till the client
    goes away. No piece at all is a connection that was dropped."""

    pieces: tuple[bytes, ...] = ()
    then: str = "close"
    gone: threading.Event = field(default_factory=threading.Event)


DROPPED = Reply()
Script = Callable[[ReceivedRequest], Reply]


def make_reply(status: int, body: bytes, content_type: str, headers: Mapping[str, str] | None = None) -> Reply:
    length = {"content-length": str(len(body))} if status != 204 else {}
    return Reply((_make_head(status, {"content-type": content_type, **length, **(headers or {})}) + body,))


def make_json_reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    return make_reply(status, json.dumps(value).encode(), "application/json", headers)


def make_problem_reply(status: int, code: str, headers: Mapping[str, str] | None = None, **more: Any) -> Reply:
    value = {"type": f"/problems/{code}", "title": code.replace("_", " "), "status": status, "code": code, **more}
    return make_reply(status, json.dumps(value).encode(), "application/problem+json", headers)


def make_sse_reply(*pieces: bytes, then: str = "close") -> Reply:
    """A stream without a length: where it stops, the client sees nothing but its end."""
    return Reply((_make_head(200, {"content-type": "text/event-stream; charset=utf-8"}), *pieces), then)


def make_chunked_sse_reply(*pieces: bytes, complete: bool = False) -> Reply:
    """A stream in HTTP chunks: without the last one, the client sees that it was cut."""
    head = _make_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
    chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    return Reply((head, *chunks, b"0\r\n\r\n" if complete else b""))


def _make_head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", "connection: close", *(f"{name}: {text}" for name, text in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


class _WaitingServer(ThreadingHTTPServer, PromptServer):
    daemon_threads = False  # closing waits for every connection, so that none outlives its test
    request_queue_size = 128


class StubServer:
    """Answers request by request from `script`, or by `answer` once that is used up; keeps what it received.

    Leaving its `with` block fails on a request that nobody scripted, and on a reply that nobody asked for.
    """

    def __init__(self) -> None:
        self.received: list[ReceivedRequest] = []
        self.answer: Script | None = None
        self._script: deque[Reply] = deque()
        self._unscripted: list[str] = []
        self._lock = threading.Lock()
        self._http = _WaitingServer(("127.0.0.1", 0), self._handler())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def script(self, *replies: Reply) -> None:
        self._script.extend(replies)

    @property
    def last(self) -> ReceivedRequest:
        return self.received[-1]

    @property
    def lines(self) -> list[str]:
        """The request lines so far, as they came."""
        return [f"{request.method} {request.target}" for request in self.received]

    def __enter__(self) -> Self:
        self._http.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._http.end()
        self._http.server_close()
        if kind is None:
            assert not self._unscripted, f"unexpected requests: {self._unscripted}"
            assert not self._script, f"{len(self._script)} replies were not used"

    def next_reply(self, request: ReceivedRequest) -> Reply:
        with self._lock:
            self.received.append(request)
            if self._script:
                return self._script.popleft()
            if self.answer is not None:
                return self.answer(request)
            self._unscripted.append(f"{request.method} {request.target}")
            return make_problem_reply(500, "unscripted")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: object) -> None:
                pass

            def serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): text for name, text in self.headers.items()}
                answer = stub.next_reply(ReceivedRequest(self.command, self.path, headers, body))
                self.close_connection = True
                try:
                    self._send(answer.pieces)
                    if answer.then == "silence":
                        self.connection.settimeout(SILENCE_SECONDS)
                        self.rfile.read(1)
                except OSError:  # the client has gone first, as a test may want
                    pass
                answer.gone.set()

            def _send(self, pieces: Iterable[bytes]) -> None:
                for piece in pieces:
                    self.wfile.write(piece)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = serve

        return Handler
