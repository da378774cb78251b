"""Take a snapshot of the work of a server or a database."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from itertools import islice
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import msgspec

from swarmkeep.events.codec import parse_timestamp, to_timestamp
from swarmkeep.events.usage import UsageQuery

if TYPE_CHECKING:
    from swarmkeep.cli.sources import Source
    from swarmkeep_client import ActiveRun, UsageRow


# Read the counts of one server: the few of its metrics that a person watches.

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


# More than a person looks through, and what one reading costs at most.
MOST_RUNS = 500
MOST_FAILURES = 100
FAILURES_WITHIN = timedelta(hours=1)
FAILURES_EVERY_SECONDS = 15.0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A run that goes on, or waits for an answer."""

    id: str
    session_id: str
    title: str | None
    status: str
    agent: str
    since: str
    age_seconds: float
    seq: int
    server: str | None
    lease_seconds: float | None
    lease_epoch: int
    queued_runs: int
    model_calls: int
    tool_calls: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    running: int
    waiting: int
    queued: int


class Today(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of this day's calls (UTC), over all servers; seconds are of one call, as a mean."""

    model_calls: int
    tool_calls: int
    total_tokens: int
    model_seconds: float | None
    tool_seconds: float | None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All of it: those that wait come first, then the oldest. `is_cut`: there are more runs than are listed.

    `failed_last_hour` are sessions whose last run has failed since, counted up to 100. `server` is what the one that
    was asked counts; None of a database, and where it does not say.
    """

    at: str
    counts: Counts
    runs: list[Row]
    is_cut: bool
    today: Today
    failed_last_hour: int
    server: ServerCounts | None


class Reading(msgspec.Struct, frozen=True):
    """A snapshot, with the sums that rates come of, and when it was taken."""

    snapshot: Snapshot
    usage: UsageRow
    taken: float


class Reader:
    """Takes snapshots."""

    def __init__(self, source: Source, url: str | None) -> None:
        self._source = source
        self._url = url
        self._failures: tuple[float, int] | None = None

    def read(self) -> Reading:
        now = datetime.now(UTC)
        usage = self._sum_usage(now)
        running, is_cut = self._list("running", now)
        waiting, is_cut_too = self._list("waiting", now)
        runs = [*waiting, *running]
        snapshot = Snapshot(
            at=to_timestamp(now),
            counts=Counts(running=len(running), waiting=len(waiting), queued=sum(one.queued_runs for one in runs)),
            runs=runs,
            is_cut=is_cut or is_cut_too,
            today=_describe_day(usage),
            failed_last_hour=self._count_failures(now),
            server=None if self._url is None else read_counts(self._url),
        )
        return Reading(snapshot, usage, time.monotonic())

    def _list(self, status: str, now: datetime) -> tuple[list[Row], bool]:
        found = self._source.active_runs("waiting" if status == "waiting" else "running")
        rows = [_make_row(run, now) for run in islice(found, MOST_RUNS)]
        return sorted(rows, key=lambda row: (row.since, row.id)), next(found, None) is not None

    def _sum_usage(self, now: datetime) -> UsageRow:
        day = now.date().isoformat()
        return next(iter(self._source.usage(UsageQuery(by=(), first_day=day, last_day=day))))

    def _count_failures(self, now: datetime) -> int:
        """Counted now and then only: of many sessions it takes a while."""
        if self._failures is None or time.monotonic() - self._failures[0] > FAILURES_EVERY_SECONDS:
            since = to_timestamp(now - FAILURES_WITHIN)
            failed = self._source.sessions(last_run="failed", order="activity", active_after=since, children=True)
            self._failures = time.monotonic(), _count(islice(failed, MOST_FAILURES))
        return self._failures[1]


def _count(items: Iterable[object]) -> int:
    return sum(1 for _ in items)


def _make_row(run: ActiveRun, now: datetime) -> Row:
    age = max(0.0, (now - (parse_timestamp(run.since) or now)).total_seconds())
    given = {name: getattr(run, name) for name in Row.__struct_fields__ if name != "age_seconds"}
    return Row(**given, age_seconds=round(age, 1))


def _describe_day(usage: UsageRow) -> Today:
    return Today(
        model_calls=usage.model_calls,
        tool_calls=usage.tool_calls,
        total_tokens=usage.total_tokens,
        model_seconds=mean_seconds(usage.model_ms, usage.model_calls),
        tool_seconds=mean_seconds(usage.tool_ms, usage.tool_calls),
    )


def mean_seconds(milliseconds: float, calls: int) -> float | None:
    return round(milliseconds / calls / 1000, 3) if calls > 0 else None


# Rates: how two readings differ.

WITHIN_SECONDS = 60.0


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Per minute, and the mean seconds of a call, over the last minute or as long as it has been watched."""

    turns: float
    tokens: float
    model_seconds: float | None
    tool_seconds: float | None


class RecentReadings:
    """The readings of the last minute."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque()

    def add(self, reading: Reading) -> None:
        if self._readings and self._readings[-1].usage.model_calls > reading.usage.model_calls:
            # A new day has begun, or sessions were deleted: the sums begin again.
            self._readings.clear()
        self._readings.append(reading)
        # One that is older stays, so that the whole minute lies between it and the last.
        while len(self._readings) > 2 and reading.taken - self._readings[1].taken >= WITHIN_SECONDS:
            self._readings.popleft()

    def compute_rates(self) -> Rates | None:
        """None until there are two readings to compare."""
        if len(self._readings) < 2:
            return None
        first, last = self._readings[0], self._readings[-1]
        minutes = max(last.taken - first.taken, 0.001) / 60
        was, now = first.usage, last.usage
        return Rates(
            turns=(now.model_calls - was.model_calls) / minutes,
            tokens=max(now.total_tokens - was.total_tokens, 0) / minutes,
            model_seconds=mean_seconds(now.model_ms - was.model_ms, now.model_calls - was.model_calls),
            tool_seconds=mean_seconds(now.tool_ms - was.tool_ms, now.tool_calls - was.tool_calls),
        )
