"""The span of an HTTP request, or of a WebSocket: `{method} {route}`, a child of the caller's if it names one.

The framework's own instrumentation would bring three more packages, and spans for each piece that is sent; this is
what an operator reads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from opentelemetry import propagate
from opentelemetry.trace import SpanKind

from swarmkeep.engine.tracing.settings import SpanSettings
from swarmkeep.engine.tracing.spans import CurrentSpan, set_attributes, set_error

Message = dict[str, Any]
Send = Callable[[Any], Awaitable[None]]
Handler = Callable[[Any, Any, Any], Awaitable[None]]

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY"})
# Asked for every few seconds, by machines.
_UNTRACED = ("/health/", "/metrics")
_UNEXPECTED = 500


def trace_requests(handler: Handler, settings: SpanSettings) -> Handler:
    """The same ASGI application, and each request a span."""

    async def handle_traced(scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or scope["path"].startswith(_UNTRACED):
            return await handler(scope, receive, send)
        request = _RequestSpan(scope, settings)

        async def send_noted(message: Any) -> None:
            request.note(message)
            await send(message)

        try:
            await handler(scope, receive, send_noted)
        except Exception as error:
            set_error(request.span, type(error).__name__)
            raise
        finally:
            request.end()

    return handle_traced


class _RequestSpan:
    def __init__(self, scope: Any, settings: SpanSettings) -> None:
        self._scope = scope
        self._settings = settings
        # A WebSocket begins as a GET.
        method = scope.get("method", "GET")
        self._method = method if method in _METHODS else "HTTP"
        caller = propagate.extract(_read_headers(scope["headers"]))
        server = scope.get("server") or (None, None)
        attributes = {
            "http.request.method": method if method in _METHODS else "_OTHER",
            "url.scheme": scope.get("scheme"),
            "url.path": scope["path"],
            "server.address": server[0],
            "server.port": server[1],
            "network.protocol.version": scope.get("http_version"),
        }
        self.span = settings.start_span(self._method, SpanKind.SERVER, attributes, caller)
        self._current = CurrentSpan(self.span, caller)

    def note(self, message: Message) -> None:
        """Note the status of an answer that begins."""
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            status = message["status"]
            self.span.set_attribute("http.response.status_code", status)
            if status >= _UNEXPECTED:
                set_error(self.span, str(status))
        elif message["type"] == "websocket.accept":
            self.span.set_attribute("http.response.status_code", 101)

    def end(self) -> None:
        # Which route it is has been found meanwhile.
        route = self._scope.get("path_template")
        if route:
            self.span.update_name(f"{self._method} {route}")
            set_attributes(self.span, {"http.route": route}, self._settings.secrets)
        self._current.end()


def _read_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str | list[str]]:
    """By name, as propagators read them: a header that comes twice is a list."""
    found: dict[str, str | list[str]] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        before = found.get(name, [])
        found[name] = [*([before] if isinstance(before, str) else before), value] if name in found else value
    return found
