"""What goes on now: the runs that are active, wait or are queued, with the figures of today and of the last minute."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec.structs import asdict

from swarmkeep.cli.render import format_seconds
from swarmkeep.cli.terminal import put, put_table
from swarmkeep.events.codec import parse_timestamp, to_timestamp
from swarmkeep.events.records import UsageQuery
from swarmkeep.events.wording import pluralize
from swarmkeep_client import ActiveRun, UsageRow

if TYPE_CHECKING:
    from swarmkeep.cli.opening import Source

# More than a person looks through, and what one reading costs at most.
MOST_RUNS, MOST_FAILURES = 500, 100
FAILURES_EVERY_SECONDS, RATES_OVER_SECONDS = 15.0, 60.0


class Snapshot(NamedTuple):
    """The runs, those that wait first, then the oldest. `is_cut`: there are more than are listed.

    `today` are the totals of this day's calls (UTC) over all servers, with the mean seconds of a call, and `rates` a
    text about those of the last minute. `failed_last_hour` are sessions whose last run has failed since. `server` is
    what the one that was asked counts, of all tenants and since its start; None of a database, and where it is silent.
    """

    at: str
    counts: dict[str, int]
    runs: list[ActiveRun]
    is_cut: bool
    today: dict[str, int | float | None]
    failed_last_hour: int
    server: dict[str, int] | None
    rates: Sequence[str] = ()

    def view(self) -> dict[str, object]:
        """Return it as JSON shows it."""
        runs = [{**asdict(run), "age_seconds": self.measure_age(run)} for run in self.runs]
        return {name: value for name, value in self._asdict().items() if name != "rates"} | {"runs": runs}

    def measure_age(self, run: ActiveRun) -> float:
        now, since = parse_timestamp(self.at), parse_timestamp(run.since)
        return 0.0 if now is None or since is None else round(max(0.0, (now - since).total_seconds()), 1)

    def list_counts(self) -> str:
        return ", ".join(f"{count} {status}" for status, count in self.counts.items()) + " and more" * self.is_cut

    def list_server(self) -> list[str]:
        names = {"streams": "streams", "takeovers": "take-overs", "run_errors": "run errors"}
        return [f"{text} {self.server[name]}" for name, text in names.items()] if self.server else []


class Figures:
    """Asks the source for a snapshot, again and again."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._sums: deque[tuple[float, UsageRow]] = deque()
        self._failed, self._counted = 0, -FAILURES_EVERY_SECONDS

    def take_snapshot(self) -> Snapshot:
        now, taken = datetime.now(UTC), time.monotonic()
        day = now.date().isoformat()
        usage = next(iter(self._source.usage(UsageQuery(by=(), first_day=day, last_day=day))))
        (waiting, is_cut), (running, is_cut_too) = self._list("waiting"), self._list("running")
        runs = [*waiting, *running]
        if taken - self._counted >= FAILURES_EVERY_SECONDS:
            # Now and then only: of many sessions it takes a while.
            hour_ago = to_timestamp(now - timedelta(hours=1))
            failed = self._source.sessions(last_run="failed", order="activity", active_after=hour_ago, children=True)
            self._failed, self._counted = sum(1 for _ in islice(failed, MOST_FAILURES)), taken
        queued = sum(run.queued_runs for run in runs)
        return Snapshot(
            at=to_timestamp(now),
            counts={"running": len(running), "waiting": len(waiting), "queued": queued},
            runs=runs,
            is_cut=is_cut or is_cut_too,
            today={
                **{name: getattr(usage, name) for name in ("model_calls", "tool_calls", "total_tokens")},
                "model_seconds": _mean_seconds(usage.model_ms, usage.model_calls),
                "tool_seconds": _mean_seconds(usage.tool_ms, usage.tool_calls),
            },
            failed_last_hour=self._failed,
            server=self._source.read_metrics(),
            rates=describe_rates(self._sums, taken, usage),
        )

    def _list(self, status: Literal["running", "waiting"]) -> tuple[list[ActiveRun], bool]:
        found = self._source.active_runs(status)
        runs = sorted(islice(found, MOST_RUNS), key=lambda run: (run.since, run.id))
        return runs, next(found, None) is not None


def describe_rates(sums: deque[tuple[float, UsageRow]], taken: float, now: UsageRow) -> Sequence[str]:
    """Add the day's sums to those of the last minute; describe turns, tokens and the time of a call between them."""
    if sums and sums[-1][1].model_calls > now.model_calls:
        # A new day has begun, or sessions were deleted: the sums begin again.
        sums.clear()
    sums.append((taken, now))
    # One that is older stays, so that the whole minute lies between it and the last.
    while len(sums) > 2 and taken - sums[1][0] >= RATES_OVER_SECONDS:
        sums.popleft()
    if len(sums) < 2:
        return ()
    (began, was), turns = sums[0], now.model_calls - sums[0][1].model_calls
    minutes, tokens = max(taken - began, 0.001) / 60, max(now.total_tokens - was.total_tokens, 0)
    model = _mean_seconds(now.model_ms - was.model_ms, turns)
    tool = _mean_seconds(now.tool_ms - was.tool_ms, now.tool_calls - was.tool_calls)
    return f"{turns / minutes:.0f} turns/min, {format_count(tokens / minutes)} tokens/min", format_means(model, tool)


def _mean_seconds(milliseconds: float, calls: int) -> float | None:
    return round(milliseconds / calls / 1000, 3) if calls > 0 else None


def format_means(model: float | None, tool: float | None) -> str:
    return f"model {format_seconds(model)}, tool {format_seconds(tool)}"


def format_age(seconds: float) -> str:
    """`9s`, `12m`, `3h`, `2d`: how many of the largest unit have passed."""
    size, unit = next((one for one in ((86400, "d"), (3600, "h"), (60, "m")) if seconds >= one[0]), (1, "s"))
    return f"{seconds // size:.0f}{unit}"


def format_count(count: float) -> str:
    size, unit = next((one for one in ((10**9, "G"), (10**6, "M")) if count >= one[0]), (1000, "k"))
    return f"{count / size:.1f}{unit}" if count >= 10_000 else f"{count:.0f}"


# A run in a table.


class Column(NamedTuple):
    width: int
    side: Literal["left", "right"]
    cell: Callable[[ActiveRun, Snapshot], str]


COLUMNS = {
    "STATUS": Column(10, "left", lambda run, _: f"{run.status} +{run.queued_runs}" if run.queued_runs else run.status),
    "AGE": Column(6, "right", lambda run, shown: format_age(shown.measure_age(run))),
    "AGENT": Column(14, "left", lambda run, _: run.agent),
    "TURNS": Column(5, "right", lambda run, _: str(run.model_calls)),
    "TOKENS": Column(6, "right", lambda run, _: format_count(run.total_tokens)),
    "SERVER": Column(8, "left", lambda run, _: (run.server or "-")[:8]),
    "LEASE": Column(7, "left", lambda run, _: _format_lease(run.lease_seconds)),
}


def _format_lease(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.0f} s" if seconds > 0 else "expired"


def put_snapshot(shown: Snapshot) -> None:
    """Print it for a person."""
    put(shown.list_counts())
    turns, tokens = pluralize(int(shown.today["model_calls"] or 0), "turn"), shown.today["total_tokens"] or 0
    means = format_means(shown.today["model_seconds"], shown.today["tool_seconds"])
    put(f"today {turns}, {format_count(tokens)} tokens; {means}; failed in the last hour {shown.failed_last_hour}")
    if shown.server is not None:
        put(", ".join(shown.list_server()))
    if shown.runs:
        rows = [
            (*(one.cell(run, shown) for one in COLUMNS.values()), run.session_id, run.title or "") for run in shown.runs
        ]
        put_table((*COLUMNS, "SESSION", "TITLE"), rows)
