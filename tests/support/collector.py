"""A collector of traces: takes what exporters send by OTLP over HTTP, and keeps it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.prompt_server import PromptServer


class _Server(ThreadingHTTPServer, PromptServer):
    daemon_threads = True


class ReceivedSpan:
    """A span as it was sent. `server` is which process sent it."""

    def __init__(self, span: Any, resource: dict[str, str]) -> None:
        self.name: str = span.name
        self.trace_id: str = span.trace_id.hex()
        self.span_id: str = span.span_id.hex()
        self.parent_id: str = span.parent_span_id.hex()
        self.links = [(link.trace_id.hex(), link.span_id.hex()) for link in span.links]
        self.attributes = {pair.key: pair.value for pair in span.attributes}
        self.resource = resource
        self.server = resource["service.instance.id"]


class Collector:
    """Listens on a port of its own while it is a context."""

    def __init__(self) -> None:
        self._spans: list[ReceivedSpan] = []
        self._changed = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                collector._keep(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: the test's output is for its own."""

        self._server = _Server(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def _keep(self, request: Any) -> None:
        with self._changed:
            for group in request.resource_spans:
                resource = {pair.key: pair.value.string_value for pair in group.resource.attributes}
                found = (span for scope in group.scope_spans for span in scope.spans)
                self._spans += [ReceivedSpan(span, resource) for span in found]
            self._changed.notify_all()

    def wait_for(self, holds: Callable[[ReceivedSpan], bool], seconds: float = 60) -> ReceivedSpan:
        """The first span of which that holds, once it has come."""
        with self._changed:
            found = self._changed.wait_for(lambda: [span for span in self._spans if holds(span)], seconds)
            assert found, f"it has not come; these have: {[span.name for span in self._spans]}"
            return found[0]

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.end()
        self._server.server_close()
