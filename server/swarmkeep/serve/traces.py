"""Open and close the making of traces; the one module of them that a server without the extra `otel` loads."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, Protocol
from uuid import uuid4

from swarmkeep.models.clients import ModelSettings
from swarmkeep.models.failures import Secrets

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

    from swarmkeep.runs.tracing import Tracing

log = logging.getLogger(__name__)

# A collector that does not answer keeps no server from stopping.
_FLUSH_SECONDS = 5.0
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_MISSING = "traces need one more library: pip install 'swarmkeep[otel]'"


class TracesError(Exception):
    """The reason why no traces can be made, in a sentence for the operator."""


class TraceSettings(ModelSettings, Protocol):
    """`auto`: if the environment names a collector, and the extra is installed."""

    traces: Literal["auto", "on", "off"]


class OpenTracing:
    """Traces while they are made; `close` sends what is not sent yet."""

    def __init__(self, tracing: Tracing, flush: Callable[[], object]) -> None:
        self.tracing = tracing
        self._flush = flush

    def close(self) -> None:
        """Blocks for a few seconds at most."""
        # The library waits for a collector as long as it likes, and asks at exit again: no one waits for this thread.
        flushing = threading.Thread(target=self._flush, name="swarmkeep-traces", daemon=True)
        flushing.start()
        flushing.join(_FLUSH_SECONDS)
        if flushing.is_alive():
            log.warning("the last traces could not be sent within %g s", _FLUSH_SECONDS)


def open_tracing(
    settings: TraceSettings, secrets: Secrets, version: str, environment: Mapping[str, str] = os.environ
) -> OpenTracing | None:
    """Open the maker of traces, if they are wanted; `version` is the server's.

    Raises TracesError where they are asked for and cannot be made.
    """
    if not _is_wanted(settings.traces, environment):
        return None
    try:
        return _open(settings, secrets, version, environment)
    except TracesError as error:
        if settings.traces == "on":
            raise
        # The environment may be set for everything that runs on a machine.
        log.warning("no traces are made, although the environment asks for them: %s", error)
        return None


def _is_wanted(mode: str, environment: Mapping[str, str]) -> bool:
    if mode == "off" or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return False
    return mode == "on" or any(environment.get(name, "").strip() for name in _ENDPOINTS)


def _open(settings: TraceSettings, secrets: Secrets, version: str, environment: Mapping[str, str]) -> OpenTracing:
    try:
        from swarmkeep.runs.genai import is_content_wanted
        from swarmkeep.runs.tracing import SpanSettings, Tracing, describe_provider

        provider = _find_provider(version, environment)
    except ImportError:
        raise TracesError(_MISSING) from None
    except ValueError as error:
        # The standard variables name something that is not there, or a figure that cannot be.
        raise TracesError(f"OpenTelemetry refuses its settings: {error}") from error
    span_settings = SpanSettings(
        tracer=provider.get_tracer("swarmkeep", version),
        provider=describe_provider(settings),
        secrets=secrets,
        has_content=is_content_wanted(environment),
    )
    return OpenTracing(Tracing(span_settings), provider.force_flush)


def _find_provider(version: str, environment: Mapping[str, str]) -> TracerProvider:
    """Return the process's own provider, if one is set (by the agents' code, say); else one for everything in it."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    current = trace.get_tracer_provider()
    if isinstance(current, TracerProvider):
        return current
    provider = _make_provider(version, environment)
    trace.set_tracer_provider(provider)
    return provider


def _make_provider(version: str, environment: Mapping[str, str]) -> TracerProvider:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    exporter: SpanExporter
    if (name := environment.get("OTEL_TRACES_EXPORTER", "").strip().lower() or "otlp") == "console":
        exporter = ConsoleSpanExporter()
    elif name == "otlp":
        exporter = _make_otlp_exporter(environment)
    else:
        raise TracesError(f"OTEL_TRACES_EXPORTER is {name!r}; use otlp, console or none")
    # What the environment says (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES) goes before these.
    defaults = {"service.version": version, "service.instance.id": str(uuid4())}
    found = Resource.create()
    if str(found.attributes.get("service.name", "")).startswith("unknown_service"):
        found = found.merge(Resource({"service.name": "swarmkeep"}))
    provider = TracerProvider(resource=Resource(defaults).merge(found), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _make_otlp_exporter(environment: Mapping[str, str]) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    protocol = next((found for name in _PROTOCOLS if (found := environment.get(name, "").strip())), "http/protobuf")
    if protocol != "http/protobuf":
        raise TracesError(f"traces are sent by http/protobuf only, not by {protocol}: see OTEL_EXPORTER_OTLP_PROTOCOL")
    return OTLPSpanExporter()
