"""Spans that tests have caught, in the form in which they are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, Tracer


class CaughtSpans:
    """Every span that its tracer has made and ended, in memory."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = provider or TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer: Tracer = self.provider.get_tracer("tests")

    def clear(self) -> None:
        self._exporter.clear()

    @property
    def all(self) -> Sequence[ReadableSpan]:
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    @property
    def names(self) -> list[str]:
        """In the order in which they began."""
        return [span.name for span in self.all]

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found

    def tree(self) -> list[Any]:
        """The names as nested lists: each span's name, then what is below it."""
        ids = {get_id(span) for span in self.all}
        return [self._branch(span) for span in self.all if span.parent is None or span.parent.span_id not in ids]

    def _branch(self, span: ReadableSpan) -> Any:
        below = [self._branch(child) for child in self.all if child.parent and child.parent.span_id == get_id(span)]
        return [span.name, *below] if below else span.name

    def read_texts(self) -> str:
        """All that the spans hold, as one text."""
        return "\n".join(span.to_json() for span in self.all)


def get_context(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def get_id(span: ReadableSpan) -> int:
    return get_context(span).span_id


def get_attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def get_trace_id(span: ReadableSpan) -> int:
    return get_context(span).trace_id


def list_links(span: ReadableSpan) -> list[tuple[int, int]]:
    """Trace and span of each link."""
    return [(link.context.trace_id, link.context.span_id) for link in span.links]
