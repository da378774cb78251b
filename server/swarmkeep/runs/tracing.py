"""Traces of what an engine does, as OpenTelemetry spans. Loaded only where they are wanted."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec.structs import replace
from opentelemetry import context as contexts
from opentelemetry import propagate, trace
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

from swarmkeep.agent import Agent, Tool
from swarmkeep.decide.commands import StartRun
from swarmkeep.decide.turns import ToolOutcome
from swarmkeep.events.codec import Json, replace_surrogates
from swarmkeep.events.facts import HandoffMade, RecordedEvent, RunEnded, RunResumed, RunStarted, RunWaiting
from swarmkeep.events.state import State, ToolCall
from swarmkeep.models.clients import ModelSettings
from swarmkeep.models.failures import NO_SECRETS, Secrets
from swarmkeep.models.model import Deltas, Model, Reply, TurnFailed
from swarmkeep.request.request import ModelRequest
from swarmkeep.runs.calls import Perform
from swarmkeep.runs.genai import describe_input, describe_instructions, describe_output, describe_text
from swarmkeep.runs.hub import Item
from swarmkeep.runs.session_log import StoreSessionLog
from swarmkeep.store.records import SessionKey

# Spans as this server makes them: values that every exporter can send, and which span is the current one.

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


# The span of a model call: `chat {model}`. It ends with the answer, or when no caller waits for that any more.


class TracedModel:
    """A model each of whose calls is a span, with all attempts that it took."""

    def __init__(self, model: Model, settings: SpanSettings) -> None:
        self._model = model
        self._settings = settings

    async def ask(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[Deltas | Reply]:
        call = _ChatSpan(request, stream, self._settings)
        try:
            async with aclosing(self._model.ask(request, stream=stream)) as pieces:
                while (piece := await await_within(call.context, anext(pieces, None))) is not None:
                    call.note(piece)
                    yield piece
        except TurnFailed as failure:
            call.fail(failure)
            raise
        except Exception as error:
            set_error(call.span, type(error).__name__)
            raise
        finally:
            call.end()


_SETTINGS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
}


def _read_settings(params: Json) -> dict[str, int | float]:
    """The parameters that the conventions have a name for."""
    found: dict[str, int | float] = {}
    for name, convention in _SETTINGS.items():
        value = params.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63:
            found[f"gen_ai.request.{convention}"] = value
    return found


class _ChatSpan:
    def __init__(self, request: ModelRequest, stream: bool, settings: SpanSettings) -> None:
        self._settings = settings
        model = clean_value(str(request.params.get("model", "")), settings.secrets)
        names = get_run_names()
        attributes = {
            "gen_ai.operation.name": "chat",
            **settings.provider,
            "gen_ai.request.model": model,
            "gen_ai.request.stream": True if stream else None,
            **_read_settings(request.params),
            "gen_ai.conversation.id": None if names is None else names.session_id,
            "gen_ai.agent.name": None if names is None else names.agent,
            "swarmkeep.run.id": None if names is None else names.run_id,
        }
        self.span = settings.start_span(f"chat {model}".strip(), SpanKind.CLIENT, attributes)
        self.context = trace.set_span_in_context(self.span)
        self._is_open = True
        self._is_answered = False
        self._first_at: float | None = None
        self._started = time.perf_counter()
        if settings.has_content and self.span.is_recording():
            self.span.set_attribute(
                "gen_ai.system_instructions", describe_instructions(request.instructions, settings.secrets)
            )
            self.span.set_attribute("gen_ai.input.messages", describe_input(request.entries, settings.secrets))

    def note(self, piece: Deltas | Reply) -> None:
        """Note a piece of the answer: the first piece, or all of it, which ends the span."""
        if self._first_at is None and isinstance(piece, Deltas):
            self._first_at = time.perf_counter() - self._started
        if isinstance(piece, Reply):
            self._describe_reply(piece)
            self._is_answered = True
            self.end()

    def _describe_reply(self, reply: Reply) -> None:
        found = reply.completion
        usage = found.usage or {}
        self._set(
            {
                "gen_ai.response.id": found.id,
                "gen_ai.response.model": found.model,
                "gen_ai.response.finish_reasons": None if found.finish_reason is None else [found.finish_reason],
                "gen_ai.response.time_to_first_chunk": self._first_at,
                "gen_ai.usage.input_tokens": _read_count(usage.get("prompt_tokens")),
                "gen_ai.usage.output_tokens": _read_count(usage.get("completion_tokens")),
            }
        )
        if self._settings.has_content and self.span.is_recording():
            text = describe_output(reply.message, found.finish_reason, self._settings.secrets)
            self.span.set_attribute("gen_ai.output.messages", text)

    def fail(self, failure: TurnFailed) -> None:
        self._is_answered = True
        self._set({"http.response.status_code": failure.error.provider_status})
        set_error(self.span, failure.error.code)

    def end(self) -> None:
        if self._is_open:
            self._is_open = False
            if not self._is_answered:
                self._set({"swarmkeep.stop_reason": "abandoned", "gen_ai.response.time_to_first_chunk": self._first_at})
            self.span.end()

    def _set(self, attributes: dict[str, Any]) -> None:
        set_attributes(self.span, attributes, self._settings.secrets)


def _read_count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


# The spans of runs: `invoke_agent {agent}` for each stretch that one process advances a run without a wait.


class RunSpans:
    """The spans of the runs that one task advances, one after the other. To be used in that task alone."""

    def __init__(self, key: SessionKey, settings: SpanSettings) -> None:
        self.run_id: str | None = None
        """The run whose span is open."""
        self.key = key
        self._settings = settings
        self._run: CurrentSpan | None = None
        self._delegate: CurrentSpan | None = None
        self._is_end_described = False

    def note(self, event: RecordedEvent, state: State) -> None:
        """Begin and end what an event begins and ends; `state` is that after its commit."""
        match event.fact:
            case RunStarted(traceparent=traceparent):
                parent = make_parent_context(read_traceparent(traceparent))
                self._begin(event, state.agent, parent, None)
            case RunResumed():
                run = state.run
                first = None if run is None or run.id != event.run_id else read_traceparent(run.traceparent)
                self._begin(event, state.agent, None, first)
            case HandoffMade(to_agent=agent) if event.run_id == self.run_id:
                self._hand_over(agent)
            case RunEnded() | RunWaiting() if event.run_id == self.run_id:
                self.describe_end(event)
                self.end()

    def _begin(self, event: RecordedEvent, agent: str, parent: Context | None, first: SpanContext | None) -> None:
        self.end()
        self.run_id = event.run_id or ""
        links = [] if first is None else [Link(first, {"swarmkeep.link": "first_trace"})]
        self._run = self._invoke(agent, parent, links)
        if isinstance(event.fact, RunResumed):
            self._set(self._run.span, {"swarmkeep.run.resumed": event.fact.reason})

    def _hand_over(self, agent: str) -> None:
        if self._delegate is not None:
            self._delegate.end()
        self._delegate = self._invoke(agent, None, [])

    def _invoke(self, agent: str, parent: Context | None, links: list[Link]) -> CurrentSpan:
        name = f"invoke_agent {clean_value(agent, self._settings.secrets)}"
        names = RunNames(self.key.id, self.run_id or "", agent)
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": self._settings.provider.get("gen_ai.provider.name"),
            "gen_ai.agent.name": agent,
            "gen_ai.conversation.id": names.session_id,
            "swarmkeep.run.id": names.run_id,
            "swarmkeep.tenant": self.key.tenant,
        }
        span = self._settings.start_span(name, SpanKind.INTERNAL, attributes, parent, links)
        return CurrentSpan(span, name_run(parent, names))

    def describe_end(self, event: RecordedEvent) -> None:
        """Say on the run's span how the run has ended, or what it waits for."""
        if self._run is None or event.run_id != self.run_id:
            return
        self._is_end_described = True
        span = self._run.span
        match event.fact:
            case RunWaiting(pending=pending):
                reasons = {call.reason for call in pending}
                reason = next((each for each in ("person", "approval") if each in reasons), "tool_calls")
                self._set(span, {"swarmkeep.stop_reason": reason})
            case RunEnded(stop_reason=reason, usage=usage, error=error):
                tokens = {
                    "gen_ai.usage.input_tokens": usage.prompt_tokens,
                    "gen_ai.usage.output_tokens": usage.completion_tokens,
                }
                self._set(span, {"swarmkeep.stop_reason": reason, **(tokens if usage.model_calls else {})})
                if error is not None:
                    set_error(span, error.code)

    def fail(self, error: Exception) -> None:
        """The task cannot go on."""
        if self._run is not None and not self._is_end_described:
            self._is_end_described = True
            set_error(self._run.span, getattr(error, "code", None) or type(error).__name__)

    def end(self) -> None:
        """End what is open. If the end of the run is not known by then, it goes on elsewhere, or later."""
        if self._run is not None and not self._is_end_described:
            self._set(self._run.span, {"swarmkeep.stop_reason": "abandoned"})
        for current in (self._delegate, self._run):
            if current is not None:
                current.end()
        self._delegate = self._run = self.run_id = None
        self._is_end_described = False

    def _set(self, span: Span, attributes: dict[str, object]) -> None:
        set_attributes(span, attributes, self._settings.secrets)


# The span of an HTTP request, or of a WebSocket: `{method} {route}`, a child of the caller's if it names one.

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


# The span of a tool call: `execute_tool {tool}`. It is the current one in the tool, in threads, too.


def trace_calls(perform: Perform, settings: SpanSettings) -> Perform:
    """The same, and each call a span."""

    async def perform_traced(state: State, agent: Agent | None, tool: Tool | None, call: ToolCall) -> ToolOutcome:
        current = _start_span(tool, call, settings)
        try:
            outcome = await perform(state, agent, tool, call)
            _describe_outcome(current, tool, outcome, settings)
            return outcome
        except Exception as error:
            set_error(current.span, type(error).__name__)
            raise
        except BaseException:
            current.span.set_attribute("swarmkeep.stop_reason", "abandoned")
            raise
        finally:
            current.end()

    return perform_traced


def _start_span(tool: Tool | None, call: ToolCall, settings: SpanSettings) -> CurrentSpan:
    # The name of a function that there is not is the model's invention: no name for a span.
    name = "execute_tool" if tool is None else f"execute_tool {clean_value(call.name, settings.secrets)}"
    names = get_run_names()
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call.id,
        "gen_ai.conversation.id": None if names is None else names.session_id,
        "gen_ai.agent.name": call.agent or None,
        "swarmkeep.run.id": None if names is None else names.run_id,
        "swarmkeep.tool.attempt": call.attempts,
    }
    span = settings.start_span(name, SpanKind.INTERNAL, attributes)
    if settings.has_content and span.is_recording():
        span.set_attribute("gen_ai.tool.call.arguments", describe_text(call.arguments, settings.secrets))
    return CurrentSpan(span)


def _describe_outcome(current: CurrentSpan, tool: Tool | None, outcome: ToolOutcome, settings: SpanSettings) -> None:
    if outcome.status != "ok":
        failed = "tool_error" if outcome.status == "error" else outcome.status
        set_error(current.span, "unknown_tool" if tool is None else failed)
    if settings.has_content and current.span.is_recording():
        current.span.set_attribute("gen_ai.tool.call.result", describe_text(outcome.content, settings.secrets))


class Tracing:
    """Makes the spans of one engine."""

    def __init__(self, settings: SpanSettings) -> None:
        self._settings = settings
        # By session, too: a fork may go on with the run that its original is at.
        self._open: dict[tuple[str, str], RunSpans] = {}

    def trace_model(self, model: Model) -> Model:
        return TracedModel(model, self._settings)

    def trace_calls(self, perform: Perform) -> Perform:
        return trace_calls(perform, self._settings)

    def trace_requests(self, handler: Handler) -> Handler:
        return trace_requests(handler, self._settings)

    def mark_command(self, command: StartRun) -> StartRun:
        """The command, with where it stands in the trace of the request."""
        found = format_traceparent()
        return command if found is None else replace(command, traceparent=found)

    async def follow_runs(
        self, session_log: StoreSessionLog, begun: Sequence[RecordedEvent], parts: AsyncGenerator[Sequence[Item]]
    ) -> AsyncGenerator[Sequence[Item]]:
        """The same parts, while each run that they are of is the current span of the task that asks for them."""
        spans = RunSpans(session_log.key, self._settings)
        try:
            for event in begun:
                self._note(spans, event, session_log)
            async with aclosing(parts):
                async for items in parts:
                    for item in items:
                        if isinstance(item, RecordedEvent):
                            self._note(spans, item, session_log)
                    yield items
        except Exception as error:
            spans.fail(error)
            raise
        finally:
            self._forget(spans)
            spans.end()

    def _note(self, spans: RunSpans, event: RecordedEvent, session_log: StoreSessionLog) -> None:
        self._forget(spans)
        spans.note(event, session_log.state)
        if spans.run_id is not None:
            self._open[spans.key.id, spans.run_id] = spans

    def _forget(self, spans: RunSpans) -> None:
        if spans.run_id is not None and self._open.get((spans.key.id, spans.run_id)) is spans:
            del self._open[spans.key.id, spans.run_id]

    def observe_event(self, event: RecordedEvent) -> None:
        """Note how a run has ended by a command: its task is told only that it is to stop."""
        spans = self._open.get((event.session_id, event.run_id or ""))
        if spans is not None and isinstance(event.fact, RunEnded):
            spans.describe_end(event)
