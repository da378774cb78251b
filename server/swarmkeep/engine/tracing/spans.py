"""Spans as this server makes them: values that every exporter can send, and which span is the current one."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

import msgspec
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, Status, StatusCode, TraceFlags

from swarmkeep.domain.codec import replace_surrogates
from swarmkeep.engine.models.secrets import Secrets

T = TypeVar("T")
# Names and ids: what is longer is not one.
_MAX_NAME_CHARACTERS = 256
_MAX_INTEGER = 2**63 - 1
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_RUN_KEY = contexts.create_key("swarmkeep-run")


class RunNames(msgspec.Struct, frozen=True):
    """What the spans of a run have in common."""

    session_id: str
    run_id: str
    agent: str


def clean_attributes(attributes: Mapping[str, Any], secrets: Secrets) -> dict[str, Any]:
    """Those that are not None, as they may be sent.

    One odd value (half a character, a count beyond 64 bits) would cost its whole batch of spans, and models choose
    many of them.
    """
    clean = ((name, clean_value(value, secrets)) for name, value in attributes.items())
    return {name: value for name, value in clean if value is not None}


def set_attributes(span: Span, attributes: Mapping[str, Any], secrets: Secrets) -> None:
    if span.is_recording():
        span.set_attributes(clean_attributes(attributes, secrets))


def clean_value(value: Any, secrets: Secrets) -> Any:
    """The value without secrets, short, and in UTF-8; None for one that cannot be sent."""
    if isinstance(value, str):
        return replace_surrogates(secrets.mask(value)[:_MAX_NAME_CHARACTERS])
    if isinstance(value, list):
        return [clean_value(item, secrets) for item in value]
    if isinstance(value, int) and not -_MAX_INTEGER <= value <= _MAX_INTEGER:
        return None
    return value


def set_error(span: Span, error_type: str) -> None:
    """Mark the span as failed. What the error says may hold content, so it is left to the log of the session."""
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))


class CurrentSpan:
    """A span that is the current one from now until it ends. Both must happen in the same task."""

    def __init__(self, span: Span, context: Context | None = None) -> None:
        self.span = span
        self.context = trace.set_span_in_context(span, context)
        self._token = contexts.attach(self.context)

    def end(self) -> None:
        contexts.detach(self._token)
        self.span.end()


async def await_within(context: Context, work: Awaitable[T]) -> T:
    """Do this much in a context; whoever gets what comes of it is outside again."""
    token = contexts.attach(context)
    try:
        return await work
    finally:
        contexts.detach(token)


def name_run(context: Context | None, names: RunNames) -> Context:
    """The context, by default the current one, in which everything is of this run."""
    return contexts.set_value(_RUN_KEY, names, context)


def get_run_names() -> RunNames | None:
    """The run that the current span is of."""
    found = contexts.get_value(_RUN_KEY)
    return found if isinstance(found, RunNames) else None


def format_traceparent() -> str | None:
    """The current span as a W3C `traceparent`; None outside of every trace."""
    found = trace.get_current_span().get_span_context()
    if not found.is_valid:
        return None
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def read_traceparent(text: object) -> SpanContext | None:
    """The span that a `traceparent` names; None if it is not one."""
    found = _TRACEPARENT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))


def make_parent_context(parent: SpanContext | None) -> Context:
    """The context in which a child of that span begins; without one, a trace of its own."""
    if parent is None:
        return Context()
    current = trace.get_current_span().get_span_context()
    if (current.trace_id, current.span_id) == (parent.trace_id, parent.span_id):
        # It knows more than what is recorded: the caller's trace state.
        return contexts.get_current()
    return trace.set_span_in_context(NonRecordingSpan(parent), Context())
