"""What a server or a database is doing at one moment."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from swarmkeep.cli.top.metrics import ServerCounts, read_counts
from swarmkeep.domain.timestamps import parse_timestamp, to_timestamp
from swarmkeep.domain.usage import UsageQuery

if TYPE_CHECKING:
    from swarmkeep.cli.sources.source import Source
    from swarmkeep_client import ActiveRun, UsageRow

# More than a person looks through, and what one reading costs at most.
MOST_RUNS = 500
MOST_FAILURES = 100
FAILURES_WITHIN = timedelta(hours=1)
FAILURES_EVERY_SECONDS = 15.0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A run that goes on, or waits for somebody."""

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
    """What the calls of this day (UTC) took, over all servers; seconds are of one call, as a mean."""

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
