"""The table of runs that are over: what is asked of it, and the rows and figures that it answers with."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal, get_args

import msgspec

from swarmkeep.events.errors import InvalidRequest
from swarmkeep.events.records import Cost, ModelShare

EndedRunStatus = Literal["completed", "failed", "cancelled", "interrupted"]
RunSort = Literal["created_at", "latency_ms", "first_token_ms", "total_tokens"]
RunGroup = Literal["day", "agent", "model"]
RUN_GROUPS: tuple[RunGroup, ...] = get_args(RunGroup)


class EndedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is over. Times are in milliseconds."""

    id: str
    """The run."""
    session_id: str
    """Its session."""
    agent: str
    """The agent that was active as it ended."""
    model: str | None
    """The model of its last reply; null if it had none."""
    status: EndedRunStatus
    """How it ended."""
    stop_reason: str | None
    """Why it ended."""
    error: str | None
    """The code of what it failed with, or null."""
    created_at: str
    """When it began."""
    finished_at: str
    """When it ended."""
    latency_ms: float
    """How long it was active."""
    waited_ms: float
    """How long it waited besides: for approvals, for results from outside, or after an interruption."""
    first_token_ms: float | None
    """How long its first streamed reply took to begin; null if none was streamed."""
    model_calls: int
    """How many replies models gave."""
    tool_calls: int
    """How many tool calls have a result."""
    tool_errors: int
    """How many of these failed, ran out of time, or have no known outcome."""
    prompt_tokens: int
    """As providers counted them."""
    completion_tokens: int
    """As providers counted them."""
    total_tokens: int
    """As providers counted them."""
    cost: Cost | msgspec.UnsetType = msgspec.UNSET
    """Of its own calls, where a price is known."""


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of runs. Times are as events have them; `created_before` is not included."""

    session: str | None = None
    agent: str | None = None
    model: str | None = None
    status: EndedRunStatus | None = None
    stop_reason: str | None = None
    error: str | None = None
    created_after: str | None = None
    created_before: str | None = None

    def list_given(self) -> list[str]:
        """List the names of the filters that choose some runs."""
        return [name for name, value in msgspec.structs.asdict(self).items() if value is not None]


class RunQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A page of runs: by when they began, the latest first, or by a figure, the greatest first."""

    only: RunFilter = RunFilter()
    sort: RunSort = "created_at"
    limit: int = 50
    cursor: str | None = None
    with_shares: bool = False
    """Whether the part of each model is asked for, too, by which runs are priced."""


class RunPage(msgspec.Struct, frozen=True):
    """`shares`: of each run the parts of its models, where they were asked for."""

    runs: list[EndedRun]
    next_cursor: str | None
    shares: list[list[ModelShare]] = []


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Each is the least value that so many of 100 runs do not exceed; null without any run that has one."""

    p50: float | None
    """Of half of them."""
    p90: float | None
    """Of 90 in 100."""
    p99: float | None
    """Of 99 in 100."""


class RunFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The figures of a group of runs that are over."""

    day: str | msgspec.UnsetType = msgspec.UNSET
    """Of their beginning, in UTC, if they were grouped by day."""
    agent: str | msgspec.UnsetType = msgspec.UNSET
    """If they were grouped by agent."""
    model: str | msgspec.UnsetType | None = msgspec.UNSET
    """If they were grouped by model; null for runs without a reply."""
    runs: int
    """How many there are."""
    completed: int
    """How many were completed."""
    failed: int
    """How many failed."""
    cancelled: int
    """How many were cancelled."""
    interrupted: int
    """How many were interrupted."""
    tool_errors: int
    """How many of their tool calls failed, ran out of time, or have no known outcome."""
    total_tokens: int
    """As providers counted them."""
    latency_ms: Percentiles
    """How long they were active."""
    first_token_ms: Percentiles
    """How long their first streamed reply took to begin."""


class FiguresQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of runs, and how they are grouped; by nothing they are one group."""

    only: RunFilter = RunFilter()
    by: tuple[RunGroup, ...] = ()
    limit: int = 50
    cursor: str | None = None


class FiguresPage(msgspec.Struct, frozen=True):
    rows: list[RunFigures]
    next_cursor: str | None


def parse_run_groups(names: Iterable[str], pointer: str = "/query/group_by") -> tuple[RunGroup, ...]:
    """The groups that are named, each once. Raises InvalidRequest for another word."""
    wanted = set(names)
    unknown = sorted(wanted.difference(RUN_GROUPS))
    if unknown:
        raise InvalidRequest(f"runs cannot be grouped by {unknown[0]!r}; choose from {', '.join(RUN_GROUPS)}", pointer)
    return tuple(group for group in RUN_GROUPS if group in wanted)


MOST_DAYS = 92
_USUAL_DAYS = 7


def read_days(first: date | None, last: date | None, pointer: str = "/from") -> tuple[str, str | None]:
    """The times from which and before which runs began that began on these days: by default on the last 7 up to today.

    Raises InvalidRequest for more days than are looked at together.
    """
    last = last or datetime.now(UTC).date()
    first = first or date.fromordinal(max(1, last.toordinal() - _USUAL_DAYS + 1))
    if (last - first).days >= MOST_DAYS:
        raise InvalidRequest(f"at most {MOST_DAYS} days at once; give days that are closer together", pointer)
    return first.isoformat(), None if last == date.max else (last + timedelta(days=1)).isoformat()


# Runs as lines of CSV.

_PLAIN_COLUMNS = tuple(name for name in EndedRun.__struct_fields__ if name != "cost")
CSV_COLUMNS = (*_PLAIN_COLUMNS, "cost", "currency")
# The wide forms, too, which spreadsheets of East Asia take for the others.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def list_cells(run: Any) -> list[Any]:
    """The cells of a run, or of what has the same attributes. One without a value is empty."""
    cost = run.cost or None
    priced = ["", ""] if cost is None else [cost.amount, cost.currency]
    return [*(_guard(getattr(run, name)) for name in _PLAIN_COLUMNS), *priced]


def _guard(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def write_csv(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    # A lone surrogate is in no encoding.
    return text.getvalue().encode(errors="replace")
