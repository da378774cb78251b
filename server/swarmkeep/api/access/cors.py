"""CORS: which pages of other origins may call the API, what their requests may carry, and what they may read.

Here and not the framework's, which knows allowed headers by whole names only: OpenAI's clients send a dozen
`x-stainless-*` headers, and each release may add some. It also leaves out answers that do not come from a route.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from swarmkeep.api.access.asgi import Application, Message, Receive, Scope, Send

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wish = _find_header(scope, b"access-control-request-method") if scope.get("method") == "OPTIONS" else None
        if wish is None or not self._is_allowed(_find_header(scope, b"origin")):
            return await self._app(scope, receive, send)
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
        return await send({"type": "http.response.body", "body": b"", "more_body": False})

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
