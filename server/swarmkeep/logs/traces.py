"""Which trace the code that runs just now belongs to. Loads nothing: where nobody makes traces, there is none."""

from __future__ import annotations

import sys
from typing import NamedTuple


class TraceIds(NamedTuple):
    """In hex, as traces are searched for: 32 and 16 digits."""

    trace_id: str
    span_id: str


def current_trace_ids() -> TraceIds | None:
    """The current trace and span, for a log line; None outside of every trace."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return TraceIds(f"{context.trace_id:032x}", f"{context.span_id:016x}")
