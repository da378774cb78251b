"""What one server counts: the few of its metrics that a person watches."""

from __future__ import annotations

import os
import re
from http.client import HTTPException
from urllib.request import Request, urlopen

import msgspec

TIMEOUT_SECONDS = 5.0
_MOST_BYTES = 4_000_000
_SAMPLE = re.compile(r"^(swarmkeep_[a-z_]+)(?:\{[^\n]*\})? ([0-9.e+]+)$", re.ASCII | re.MULTILINE)


class ServerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Of all tenants, and of all workers of the port; counters are since the server's start.

    `takeovers` are runs that it took up after another process, or tried again.
    """

    streams: int
    sessions_driven: int
    writes_waiting: int
    takeovers: int
    run_errors: int


_METRICS = {
    "swarmkeep_stream_readers": "streams",
    "swarmkeep_sessions_driven": "sessions_driven",
    "swarmkeep_writes_waiting": "writes_waiting",
    "swarmkeep_takeovers_total": "takeovers",
    "swarmkeep_run_errors_total": "run_errors",
}


def read_counts(url: str) -> ServerCounts | None:
    """None where the server does not say: once it has API keys, it asks for SWARMKEEP_METRICS_TOKEN."""
    token = os.environ.get("SWARMKEEP_METRICS_TOKEN")
    asked = Request(f"{url.rstrip('/')}/metrics", headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urlopen(asked, timeout=TIMEOUT_SECONDS) as answer:
            return parse_counts(answer.read(_MOST_BYTES).decode(errors="replace"))
    except (OSError, HTTPException, ValueError):
        # The other questions say what is the matter.
        return None


def parse_counts(text: str) -> ServerCounts | None:
    """Sums over labels. None of what is no text of such metrics."""
    sums: dict[str, float] = {}
    try:
        for name, value in _SAMPLE.findall(text):
            if name in _METRICS:
                sums[_METRICS[name]] = sums.get(_METRICS[name], 0.0) + float(value)
        if not sums:
            return None
        return ServerCounts(**{name: int(sums.get(name, 0)) for name in _METRICS.values()})
    except (ValueError, OverflowError):
        return None
