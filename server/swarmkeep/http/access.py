"""ASGI applications around the framework's: request ids, log lines, CORS, compression, HEAD, headers of answers."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from importlib import import_module
from operator import attrgetter
from typing import Any

from litestar import Litestar

from swarmkeep.http.metrics import Application, Message, Receive, Scope, Send
from swarmkeep.http.parameters import takes_gzip
from swarmkeep.http.threads import run_aside
from swarmkeep.logs import only_log_fields

# Request ids: a caller's own, or one that is made.

HEADER = b"x-request-id"
_MAX_CHARACTERS = 128


def find_request_id(scope: Scope) -> str:
    """The id that the request came with, if it can stand in a header and a log line; else a new one."""
    sent = [value for name, value in scope["headers"] if name == HEADER]
    shown = sent[0].decode("latin-1") if len(sent) == 1 else ""
    return shown if _is_usable(shown) else f"req_{os.urandom(16).hex()}"


def _is_usable(text: str) -> bool:
    return 0 < len(text) <= _MAX_CHARACTERS and text.isascii() and text.isprintable()


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

    `note_beginning` is shown the message that begins an answer, from any sender, and may add to its headers.
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


# CORS: which pages of other origins may call the API, what their requests may carry, and what they may read.

_METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE"
# What the API reads, and what OpenAI's clients send beside it. Not `X-Forwarded-For` and the like: a page on the
# machine of a proxy would be believed.
_REQUEST_HEADERS = (
    "accept",
    "accept-language",
    "authorization",
    "cache-control",
    "content-language",
    "content-type",
    "idempotency-key",
    "if-match",
    "if-none-match",
    "last-event-id",
    "openai-beta",
    "openai-organization",
    "openai-project",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-client-request-id",
    "x-openwebui-chat-id",
    "x-request-id",
    "x-session-id",
)
# OpenAI's clients read `X-Should-Retry`: without it they repeat what was refused for good.
_ANSWER_HEADERS = b"ETag, Location, Retry-After, WWW-Authenticate, X-Request-Id, X-Session-Id, X-Should-Retry"
_STAINLESS = re.compile(r"x-stainless-[a-z0-9-]{1,64}")
_MAX_STAINLESS = 100
_MAX_AGE_SECONDS = b"600"


class Cors:
    """An ASGI application around another: it answers the preflights of allowed origins itself.

    `session_headers` are the headers that name a session by the server's settings.
    """

    def __init__(self, app: Application, origins: Sequence[str], session_headers: Sequence[str] = ()) -> None:
        self._app = app
        self._origins = frozenset(origin.encode() for origin in origins)
        self._headers = sorted({*_REQUEST_HEADERS, *(name.lower() for name in session_headers)})

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        wish = _find_header(scope, b"access-control-request-method") if scope.get("method") == "OPTIONS" else None
        if wish is None or not self._is_allowed(_find_header(scope, b"origin")):
            return self._app(scope, receive, send)
        return self._answer_preflight(scope, send)

    async def _answer_preflight(self, scope: Scope, send: Send) -> None:
        headers = [*self._headers, *_iterate_stainless(_find_header(scope, b"access-control-request-headers") or b"")]
        start = {
            "type": "http.response.start",
            "status": 204,
            "headers": [
                (b"access-control-allow-methods", _METHODS),
                (b"access-control-allow-headers", ", ".join(headers).encode()),
                (b"access-control-max-age", _MAX_AGE_SECONDS),
            ],
        }
        await send(start)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def add_headers(self, message: Message, scope: Scope) -> None:
        """Add to the beginning of an answer what lets the page of an allowed origin read it, also a refusal."""
        if message["type"] != "http.response.start":
            return
        origin = _find_header(scope, b"origin")
        if origin is None or not self._is_allowed(origin):
            return
        any_origin = b"*" in self._origins
        message["headers"] += [
            (b"access-control-allow-origin", b"*" if any_origin else origin),
            (b"access-control-expose-headers", _ANSWER_HEADERS),
            *([] if any_origin else [(b"vary", b"Origin")]),
        ]

    def _is_allowed(self, origin: bytes | None) -> bool:
        return origin is not None and bool(self._origins & {origin, b"*"})


def _find_header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for given, value in scope["headers"] if given == name), None)


def _iterate_stainless(asked: bytes) -> Iterator[str]:
    names = dict.fromkeys(name.strip().lower() for name in asked.decode("latin-1").split(",", 1000))
    return (name for name, _ in zip(filter(_STAINLESS.fullmatch, names), range(_MAX_STAINLESS), strict=False))


# Compresses answers that come in one piece, for clients that accept it; a large one in a thread.

SMALLEST_BYTES = 1_000
"""What is smaller takes one packet either way."""

_LEVEL = 5
_MAX_BYTES_ON_LOOP = 32_000
_TYPES = (b"application/json", b"application/problem+json", b"application/vnd.oai.openapi+json", b"text/")


class Compression:
    """An ASGI application around another."""

    def __init__(self, app: Application) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and scope["method"] != "HEAD" and takes_gzip(scope["headers"]):
            send = _CompressedAnswer(send).send
        return self._app(scope, receive, send)


class _CompressedAnswer:
    """Sends an answer on. The start of one that is to be compressed is held back until its body is there."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_compressible(message["headers"]):
            self._start = message
            return
        if self._start is not None:
            start, self._start = self._start, None
            # A body that has a length is one piece; should one not be, it goes on as it is.
            if message["type"] == "http.response.body" and not message.get("more_body"):
                start, message = await _compress(start, message)
            await self._send(start)
        await self._send(message)


def _is_compressible(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    named = {name.lower(): value for name, value in headers}
    # Streams have no length.
    length, kind = named.get(b"content-length", b"0"), named.get(b"content-type", b"")
    return int(length) >= SMALLEST_BYTES and kind.startswith(_TYPES) and b"content-encoding" not in named


async def _compress(start: Message, body: Message) -> tuple[Message, Message]:
    whole = body.get("body", b"")
    small = await run_aside(len(whole) > _MAX_BYTES_ON_LOOP, _gzip, whole)
    headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
    headers += [
        (b"content-encoding", b"gzip"),
        (b"vary", b"Accept-Encoding"),
        (b"content-length", str(len(small)).encode()),
    ]
    return {**start, "headers": headers}, {**body, "body": small}


def _gzip(whole: bytes) -> bytes:
    # Without a time, the same answer has the same bytes.
    return gzip.compress(whole, _LEVEL, mtime=0)


# Forgets long addresses. The framework keeps what it has read of the last 1,024, however long they are, for as long
# as the process lives; of paths before anybody has shown a key.

# Longer than any that this server's own client and page send, but for the ids of an export.
_LONG_BYTES = 1_000
# Functions of the framework that keep what they were called with; some have private names.
_CACHES = (
    ("litestar._parsers", "parse_query_string"),
    ("litestar._kwargs.extractors", "create_query_default_dict"),
    ("litestar._asgi.routing_trie.traversal", "parse_path_params"),
    ("litestar.datastructures", "URL._new"),
    ("litestar.datastructures", "URL.from_components"),
)


def find_address_caches(app: Litestar) -> list[Callable[[], None]]:
    """List the functions that empty the caches of addresses; not of those that a later release of the framework names
    otherwise."""
    found: list[Any] = [app.asgi_router.handle_routing]
    for module, name in _CACHES:
        try:
            found.append(attrgetter(name)(import_module(module)))
        except (ImportError, AttributeError):
            continue
    return [cached.cache_clear for cached in found if hasattr(cached, "cache_clear")]


class LongAddresses:
    """An ASGI application around another, whose caches of addresses are emptied by `clears` after a long one."""

    def __init__(
        self, app: Application, clears: Iterable[Callable[[], None]], *, long_bytes: int = _LONG_BYTES
    ) -> None:
        self._app = app
        self._clears = tuple(clears)
        self._long_bytes = long_bytes

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        size = len(_find_header(scope, b"host") or b"") + len(scope["path"]) + len(scope["query_string"])
        return self._app(scope, receive, send) if size <= self._long_bytes else self._forget(scope, receive, send)

    async def _forget(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            for clear in self._clears:
                clear()


# Asks for a key where no route does it: for paths that are not there, and methods that a path does not have.

# Gives the answer to a caller who may not come in; None lets them in.
RefuseUnrouted = Callable[[Scope], Awaitable[Application | None]]

_MISSING = (404, 405)


class Unrouted:
    """Below `prefixes` no caller is told which paths exist before `refuse` has let them in."""

    def __init__(self, within: Application, prefixes: tuple[str, ...], refuse: RefuseUnrouted) -> None:
        self._within = within
        self._prefixes = prefixes
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not f"{scope['path']}/".startswith(self._prefixes):
            await self._within(scope, receive, send)
            return
        refusal: Application | None = None

        async def pass_on(message: Message) -> None:
            nonlocal refusal
            # A caller who came to a route was asked there, which the scope tells.
            if message["type"] == "http.response.start" and message["status"] in _MISSING and "auth" not in scope:
                refusal = await self._refuse(scope)
            if refusal is None:
                await send(message)

        await self._within(scope, receive, pass_on)
        if refusal is not None:
            await refusal(scope, receive, send)


# Answers HEAD as GET, without the body.

# Where the framework writes which route it is: metrics and traces look there.
_ROUTE = "path_template"


class HeadRequests:
    """An ASGI application around another."""

    def __init__(self, app: Application) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return self._app(scope, receive, send)

        async def send_start(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope[_ROUTE] = get_scope.get(_ROUTE)
                await send(message)
                # The answer is over: to a stream that is as if its reader had left, so it ends, too.
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        get_scope = {name: value for name, value in scope.items() if name != SEND_PART} | {"method": "GET"}
        return self._app(get_scope, receive, send_start)


# Headers that tell browsers what not to do with an answer. The pages have their own, which go before these.


_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    # Other sites' pages may not load it as a picture or a script, and read from that whether it is there.
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    # Sessions' texts are kept by no cache on the way.
    (b"cache-control", b"no-store"),
)


def add_security_headers(message: Message) -> None:
    """Add what the beginning of an answer does not say itself."""
    if message["type"] == "http.response.start":
        named = {name.lower() for name, _ in message["headers"]}
        message["headers"] += [header for header in _ALWAYS if header[0] not in named]
