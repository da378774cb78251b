"""The scripted model: its script, and what it was asked."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from swarmkeep.models.offline.server import find_request_problems
from tests.support.scripted.exchange import MODEL, Exchange, Json, ServerClosing
from tests.support.scripted.replies import (
    Call,
    Chunks,
    Completion,
    HalfStream,
    Raw,
    Reply,
    split_pieces,
    to_call,
    to_reply,
)
from tests.support.scripted.server import Server

Default = Callable[[Json], "Reply | Call | str | Json"]

# Without this header the openai client would ask again, and each complaint would be made three times.
NO_RETRY = {"x-should-retry": "false"}


class ScriptedModel:
    """The server, its script, and what it was asked.

    Replies are used in order; one with `when` is passed over until a request comes that it accepts. `default` makes the
    reply when the script has none: text, a Call, a Reply, or the JSON of a whole completion. `strict` refuses, and
    remembers, requests that a strict provider would refuse. Without `remember`, for load tests, requests are
    counted but not kept.
    """

    def __init__(
        self,
        *,
        default: Default | None = None,
        strict: bool = True,
        remember: bool = True,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.request_count = 0
        self.requests: list[Json] = []
        self.raw_requests: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.complaints: list[str] = []
        self.disconnects = 0
        self.closing = threading.Event()
        self._default = default
        self._strict = strict
        self._remember = remember
        self._address = (host, port)
        self._replies: list[Reply] = []
        self._hanging: list[threading.Event] = []
        self._changed = threading.Condition()
        self._server: Server | None = None

    # The script.

    def add(self, reply: Reply) -> None:
        """Put a reply at the end of the script; the other verbs are short forms of this."""
        with self._changed:
            self._replies.append(reply)

    def say(self, text: str | Sequence[str], *, finish_reason: str | None = None, **options: Any) -> None:
        """Answer with a text; a list of texts is streamed in exactly these pieces. `usage=` replaces the usual one."""
        self.add(Completion(pieces=split_pieces(text), finish_reason=finish_reason, **options))

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        id: str | None = None,
        text: str = "",
        **options: Any,
    ) -> None:
        """Call one function, perhaps with some words; a string as arguments is sent as it stands."""
        self.calls([Call(name, {} if arguments is None else arguments, id)], text=text, **options)

    def calls(
        self, calls: Iterable[Call | Sequence[Any] | Mapping[str, Any]], *, text: str = "", **options: Any
    ) -> None:
        """Call several functions in one completion: `[("f", {...}, "call_1"), ("g", {...})]`."""
        pieces = split_pieces(text) if text else ()
        self.add(Completion(pieces=pieces, calls=[to_call(call) for call in calls], **options))

    def raw(
        self,
        body: Json | bytes | str,
        *,
        status: int = 200,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Answer with exactly this body, streaming or not."""
        data = body.encode() if isinstance(body, str) else body
        encoded = data if isinstance(data, bytes) else msgspec.json.encode(data)
        self.add(Raw(body=encoded, status=status, headers={"content-type": content_type, **(headers or {})}, **options))

    def fail(
        self,
        status: int = 500,
        *,
        code: str | None = None,
        message: str = "scripted failure",
        type: str = "scripted_error",
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Answer with an error in the provider's form. The openai client may ask again: script what it then gets."""
        error = {"message": message, "type": type, "param": None, "code": code}
        self.raw({"error": error}, status=status, headers=headers, **options)

    def hang(self, text: str = "", *, then: str = "released", **options: Any) -> None:
        """Say nothing, or in a stream only `text`, until `release()`; then the rest."""
        event = threading.Event()
        with self._changed:
            self._hanging.append(event)
        if text:
            self.add(Completion(pieces=[text, then], pause=event, **options))
        else:
            self.add(Completion(pieces=split_pieces(then), gate=event, **options))

    def release(self) -> None:
        """Let everything that hangs by now go on."""
        with self._changed:
            hanging, self._hanging = self._hanging, []
        for event in hanging:
            event.set()

    def half_stream(self, text: str | Sequence[str], **options: Any) -> None:
        """Begin to answer, then break the connection."""
        self.add(HalfStream(pieces=split_pieces(text), **options))

    def chunks(
        self, events: Iterable[Json | bytes | str], *, done: bool = True, drop: bool = False, **options: Any
    ) -> None:
        """Stream exactly these chunks, then `[DONE]` unless told otherwise; bytes and text are sent unframed."""
        self.add(Chunks(events=list(events), done=done, drop=drop, **options))

    # What happened.

    @property
    def url(self) -> str:
        """The base URL for clients."""
        assert self._server is not None, "the scripted model has not been started"
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/v1"

    @property
    def unused(self) -> int:
        with self._changed:
            return len(self._replies)

    def wait_for_requests(self, count: int, timeout: float = 10) -> None:
        """Return once `count` requests have come in all; fail after `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.request_count >= count, timeout):
                raise AssertionError(f"{self.request_count} of {count} requests came within {timeout} s")

    async def wait_for_requests_async(self, count: int, within: float = 10) -> None:
        """`wait_for_requests` for tests whose program runs in the same event loop."""
        await asyncio.to_thread(self.wait_for_requests, count, within)

    def wait_for_disconnects(self, count: int, timeout: float = 10) -> None:
        """Return once `count` clients in all have gone away before they had their whole reply."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.disconnects >= count, timeout):
                raise AssertionError(f"{self.disconnects} of {count} clients went away within {timeout} s")

    async def wait_for_disconnects_async(self, count: int, within: float = 10) -> None:
        await asyncio.to_thread(self.wait_for_disconnects, count, within)

    def problems(self) -> list[str]:
        """Why `assert_done` would raise."""
        with self._changed:
            return [*self.complaints, *(f"this reply was not used: {reply}" for reply in self._replies)]

    def assert_done(self) -> None:
        """Raise unless every reply was used and every request was expected and valid.

        What is told is told once: the failure of one test is not that of the next ones."""
        if found := self.problems():
            with self._changed:
                self.complaints.clear()
                self._replies.clear()
            raise AssertionError("the scripted model is not content:\n- " + "\n- ".join(found))

    # The server.

    def start(self) -> Self:
        self._server = Server(self._address, self)
        self._server.start()
        return self

    def close(self) -> None:
        """Stop; replies that are still held back are dropped with their connections."""
        self.closing.set()
        if self._server is not None:
            self._server.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None:
            self.assert_done()

    def complain(self, complaint: str) -> None:
        with self._changed:
            self.complaints.append(complaint)

    def answer(self, connection: socket.socket, method: str, target: str, headers: dict[str, str], body: bytes) -> bool:
        """Answer one HTTP request; False if its connection is to be closed."""
        path = target.partition("?")[0].rstrip("/")
        exchange = Exchange(connection, self.closing, {}, 0)
        match method, path:
            case "POST", "/v1/chat/completions":
                return self._complete(connection, headers, body)
            case "GET", "/v1/models":
                model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "tests"}
                exchange.send_json(200, {"object": "list", "data": [model]})
            case "GET", "/scripted/report":
                exchange.send_json(200, self._report())
            case "POST", "/scripted/release":
                self.release()
                exchange.send_json(200, {})
            case _:
                self._refuse(exchange, 404, "unknown_path", f"there is no {method} {target}")
        return True

    def _report(self) -> Json:
        with self._changed:
            return {
                "request_count": self.request_count,
                "requests": list(self.requests),
                "unused": len(self._replies),
                "complaints": list(self.complaints),
            }

    def _refuse(self, exchange: Exchange, status: int, code: str, message: str) -> None:
        self.complain(message)
        error = {"message": message, "type": "scripted_error", "param": None, "code": code}
        exchange.send_json(status, {"error": error}, NO_RETRY)

    def _complete(self, connection: socket.socket, headers: dict[str, str], body: bytes) -> bool:
        request, found = self._decode_request(body)
        number = self._record(request, headers, body)
        exchange = Exchange(connection, self.closing, request, number)
        if found:
            self._refuse(exchange, 400, "invalid_request", f"request {number} is not valid: {'; '.join(found)}")
            return True
        reply = self._next_reply(request, number)
        if reply is None:
            last = (request.get("messages") or [None])[-1]
            message = f"request {number} was not expected; its last message: {json.dumps(last)[:500]}"
            self._refuse(exchange, 500, "unexpected_call", message)
            return True
        return self._perform(reply, exchange)

    def _decode_request(self, body: bytes) -> tuple[Json, list[str]]:
        try:
            request = msgspec.json.decode(body)
        except (ValueError, RecursionError) as problem:
            return {}, [f"the body is not JSON: {problem}"]
        if not isinstance(request, dict):
            return {}, ["the body is not an object"]
        return request, find_request_problems(request) if self._strict else []

    def _record(self, request: Json, headers: dict[str, str], body: bytes) -> int:
        with self._changed:
            if self._remember:
                self.requests.append(request)
                self.raw_requests.append(body)
                self.headers.append(headers)
            self.request_count += 1
            self._changed.notify_all()
            return self.request_count

    def _next_reply(self, request: Json, number: int) -> Reply | None:
        try:
            with self._changed:
                for reply in self._replies:
                    if reply.when is None or reply.when(request):
                        # By identity: two replies may be equal.
                        self._replies = [other for other in self._replies if other is not reply]
                        return reply
            return to_reply(self._default(request)) if self._default else None
        except Exception as problem:
            self.complain(f"choosing the reply to request {number} failed: {problem!r}")
            return None

    def _perform(self, reply: Reply, exchange: Exchange) -> bool:
        try:
            if reply.gate:
                exchange.wait(reply.gate)
            if reply.delay:
                exchange.pause(reply.delay)
            reply.write(exchange)
        except ServerClosing:
            raise
        except ConnectionError:
            with self._changed:
                self.disconnects += 1
                self._changed.notify_all()
            raise
        return not exchange.dropped
