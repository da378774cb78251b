"""The trace that a request belongs to, if the program makes traces with OpenTelemetry. Loads nothing for it."""

from __future__ import annotations

import sys
from typing import Any


def make_trace_headers() -> dict[str, str]:
    """The W3C headers that name the current span; none where there is none."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return {}
    headers = {"traceparent": f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"}
    state: str = span.trace_state.to_header()
    return {**headers, "tracestate": state} if state else headers
