"""Spans as this server makes them: values that every exporter can send, and which span is the current one."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
)

from swarmkeep.events.codec import replace_surrogates
from swarmkeep.models.clients import ModelSettings
from swarmkeep.models.failures import NO_SECRETS, Secrets

T = TypeVar("T")
# Names and ids: what is longer is not one.
_MAX_NAME_CHARACTERS = 256
_MAX_INTEGER = 2**63 - 1
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_RUN_KEY = contexts.create_key("swarmkeep-run")


class RunNames(msgspec.Struct, frozen=True):
    """The names that the spans of a run share."""

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
    """Await this much in a context; the caller of its result is outside again."""
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


# The settings that all spans are made with.


_DEFAULT_PORTS = {"https": 443, "http": 80}
# The names that the GenAI conventions give to the services whose hosts end like this.
_PROVIDERS = {
    "openai.azure.com": "azure.ai.openai",
    "inference.ai.azure.com": "azure.ai.inference",
    "anthropic.com": "anthropic",
    "groq.com": "groq",
    "mistral.ai": "mistral_ai",
    "deepseek.com": "deepseek",
    "perplexity.ai": "perplexity",
    "x.ai": "x_ai",
    "cohere.ai": "cohere",
    "cohere.com": "cohere",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "amazonaws.com": "aws.bedrock",
}


class SpanSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`provider`: the attributes that tell who is asked. `has_content`: whether spans say what was said."""

    tracer: Tracer
    provider: Mapping[str, Any] = {}
    secrets: Secrets = NO_SECRETS
    has_content: bool = False

    def start_span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        parent: Context | None = None,
        links: Sequence[Link] = (),
    ) -> Span:
        """A span that has these attributes from its beginning: samplers decide by them."""
        clean = clean_attributes(attributes, self.secrets)
        return self.tracer.start_span(name, parent, kind, clean, links)


def describe_provider(settings: ModelSettings) -> dict[str, Any]:
    """Describe the provider that is asked. A server that is none of those with a name counts as `openai`, whose
    language it speaks."""
    if settings.offline:
        return {"gen_ai.provider.name": "swarmkeep.offline"}
    address = urlsplit(settings.openai_base_url or "https://api.openai.com/v1")
    host = (address.hostname or "").rstrip(".")
    names = (name for end, name in _PROVIDERS.items() if host == end or host.endswith("." + end))
    return {
        "gen_ai.provider.name": next(names, "openai"),
        "server.address": host or None,
        "server.port": _read_port(address),
    }


def _read_port(address: SplitResult) -> int | None:
    try:
        return address.port or _DEFAULT_PORTS.get(address.scheme)
    except ValueError:
        # The client of the model says that it is none, at the first call.
        return None
