"""`swarmkeep runs`, `usage`: the runs that are over, one by one or counted, and what calls took."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from itertools import islice, pairwise
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from swarmkeep.cli.completing import complete_agent, complete_session
from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import Commands, FirstDay, JsonOutput, LastDay, Limit, Quiet
from swarmkeep.cli.render import format_milliseconds
from swarmkeep.cli.sources import SourceOptions
from swarmkeep.cli.terminal import can_encode, put, put_bytes, put_json, put_rows, put_table, say, show_progress
from swarmkeep.events.errors import InvalidRequest
from swarmkeep.events.records import USAGE_GROUPS, UsageGroup, UsageQuery, parse_usage_groups
from swarmkeep.events.run_table import (
    CSV_COLUMNS,
    RUN_GROUPS,
    FiguresQuery,
    RunFilter,
    RunGroup,
    RunQuery,
    list_cells,
    parse_run_groups,
    read_days,
    write_csv,
)

if TYPE_CHECKING:
    from swarmkeep_client import EndedRun, Percentiles, RunFigures, UsageRow

_PAGE_SIZE = 200


commands = Commands()


@commands.add("""
    swarmkeep runs --status failed
    swarmkeep runs --sort latency_ms --from 2026-11-01 --agent "Sales Agent"
    swarmkeep runs --by day --by agent
    swarmkeep runs --limit 0 --csv > runs.csv
""")
def runs(
    where: SourceOptions,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="Only runs of this session.", autocompletion=complete_session)
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only runs that ended with this agent.", autocompletion=complete_agent),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only runs whose last reply is this model's.")
    ] = None,
    status: Annotated[
        Literal["completed", "failed", "cancelled", "interrupted"] | None,
        typer.Option(help="Only runs that ended like this."),
    ] = None,
    stop_reason: Annotated[str | None, typer.Option(metavar="REASON", help="Only runs that ended for this.")] = None,
    error: Annotated[str | None, typer.Option(metavar="CODE", help="Only runs that failed with this code.")] = None,
    first_day: FirstDay = None,
    last_day: LastDay = None,
    sort: Annotated[
        Literal["created_at", "latency_ms", "first_token_ms", "total_tokens"],
        typer.Option(help="The latest first, or the greatest figure."),
    ] = "created_at",
    limit: Limit = 50,
    group_by: Annotated[
        list[str] | None,
        typer.Option(
            "--by", metavar="GROUP", help="Count them by day, agent or model, with percentiles; may be given again."
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: JsonOutput = False,
    quiet: Quiet = False,
) -> None:
    """Show the runs that are over; with --by, how many they are and how long they took.

    `swarmkeep top` shows those that go on.
    """
    if as_csv and (as_json or group_by):
        other = "--json" if as_json else "--by"
        raise typer.BadParameter(f"it cannot be combined with {other}", param_hint="'--csv'")
    for name in group_by or ():
        if name not in RUN_GROUPS:
            raise typer.BadParameter(f"it must be one of {', '.join(RUN_GROUPS)}", param_hint="'--by'")
    only = RunFilter(
        session=session, agent=agent, model=model, status=status, stop_reason=stop_reason, error=error,
    )  # fmt: skip
    if group_by:
        _show_figures(where, only, parse_run_groups(group_by), first_day, last_day, as_json=as_json, quiet=quiet)
        return
    asked = RunQuery(
        only=_limit_to_days(only, first_day, last_day), sort=sort, limit=min(limit or _PAGE_SIZE, _PAGE_SIZE)
    )
    with open_source(where) as source, show_progress("reading", "run", quiet=quiet) as progress:
        found = source.runs(asked)
        shown = list(progress.track(islice(found, limit or None)))
        more = limit > 0 and next(found, None) is not None
    if as_json:
        put_json(shown)
    elif as_csv:
        put_bytes(_write_csv(shown))
    else:
        put_rows(_HEADINGS, [*map(_list_cells, shown)], none="there are no such runs that are over")
    if more:
        say("there are more runs; --limit 0 shows all")


def _limit_to_days(only: RunFilter, first_day: datetime | None, last_day: datetime | None) -> RunFilter:
    after = None if first_day is None else f"{first_day.date().isoformat()}T00:00:00.000000Z"
    before = None
    if last_day is not None and last_day.date() != datetime.max.date():
        before = f"{(last_day.date() + timedelta(days=1)).isoformat()}T00:00:00.000000Z"
    return msgspec.structs.replace(only, created_after=after, created_before=before)


def _write_csv(found: Iterable[EndedRun]) -> Iterator[bytes]:
    yield write_csv([CSV_COLUMNS])
    yield write_csv(map(list_cells, found))


_HEADINGS = ("BEGAN", "STATUS", "TIME", "FIRST TOKEN", "TOKENS", "COST", "AGENT", "MODEL", "SESSION", "RUN")


def _list_cells(run: EndedRun) -> tuple[str, ...]:
    status = run.status if run.error is None else f"{run.status}: {run.error}"
    cost = "-" if run.cost is None else f"{run.cost.amount:.4f} {run.cost.currency}"
    return (
        run.created_at[:19], status, format_milliseconds(run.latency_ms), format_milliseconds(run.first_token_ms),
        str(run.total_tokens), cost, run.agent, run.model or "-", run.session_id, run.id,
    )  # fmt: skip


def _show_figures(
    where: SourceOptions,
    only: RunFilter,
    by: tuple[RunGroup, ...],
    first_day: datetime | None,
    last_day: datetime | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    try:
        first, end = read_days(first_day and first_day.date(), last_day and last_day.date())
    except InvalidRequest as error:
        raise typer.BadParameter(str(error), param_hint="'--from'") from None
    asked = FiguresQuery(
        only=msgspec.structs.replace(only, created_after=first, created_before=end), by=by, limit=_PAGE_SIZE
    )
    with open_source(where) as source, show_progress("adding up", "row", quiet=quiet) as progress:
        rows = list(progress.track(source.run_figures(asked)))
    if as_json:
        put_json([_drop_other_groups(row, by, RUN_GROUPS) for row in rows])
    else:
        headings = (*(name.upper() for name in by), *_FIGURES)
        put_rows(headings, [_list_figures(row, by) for row in rows], none="there were no such runs")


_FIGURES = (
    "RUNS",
    "FAILED",
    "CANCELLED",
    "INTERRUPTED",
    "TOKENS",
    "TIME P50 / P90 / P99",
    "FIRST TOKEN P50 / P90 / P99",
)


def _list_figures(row: RunFigures, by: tuple[RunGroup, ...]) -> tuple[str, ...]:
    counts = (row.runs, row.failed, row.cancelled, row.interrupted, row.total_tokens)
    times = (_format_percentiles(row.latency_ms), _format_percentiles(row.first_token_ms))
    return (*(str(getattr(row, name) or "-") for name in by), *map(str, counts), *times)


def _format_percentiles(found: Percentiles) -> str:
    return " / ".join(format_milliseconds(value) for value in (found.p50, found.p90, found.p99))


def _drop_other_groups(row: msgspec.Struct, by: tuple[str, ...], groups: Iterable[str]) -> dict[str, object]:
    """The row with the groups that were asked for, and its cost where one is known."""
    plain: dict[str, object] = msgspec.to_builtins(row)
    others = {_name_field(group) for group in groups if group not in by}
    return {name: value for name, value in plain.items() if name not in others and (name, value) != ("cost", None)}


# `swarmkeep usage`: what model and tool calls took.


@commands.add("""
    swarmkeep usage
    swarmkeep usage --by day --by model --from 2026-11-01
    swarmkeep usage --by day --plot
    swarmkeep usage --by session --agent "Sales Agent" --json
""")
def usage(
    where: SourceOptions,
    group_by: Annotated[
        list[str] | None,
        typer.Option("--by", metavar="GROUP", help="day, agent, model, session or run; may be given again."),
    ] = None,
    first_day: FirstDay = None,
    last_day: LastDay = None,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only calls of this agent.", autocompletion=complete_agent)
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Only calls of this model.")] = None,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="Only calls of this session.", autocompletion=complete_session)
    ] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the tokens as bars.")] = False,
    as_json: JsonOutput = False,
    quiet: Quiet = False,
) -> None:
    """Show tokens, calls and time, by default per day."""
    if plot and as_json:
        raise typer.BadParameter("it cannot be combined with --json", param_hint="'--plot'")
    for name in group_by or ():
        if name not in USAGE_GROUPS:
            raise typer.BadParameter(f"it must be one of {', '.join(USAGE_GROUPS)}", param_hint="'--by'")
    by = parse_usage_groups(group_by or ["day"])
    only: dict[UsageGroup, str | None] = {"agent": agent, "model": model, "session": session}
    asked = UsageQuery(
        by=by,
        first_day=None if first_day is None else first_day.date().isoformat(),
        last_day=None if last_day is None else last_day.date().isoformat(),
        only={name: value for name, value in only.items() if value is not None},
        limit=_PAGE_SIZE,
    )
    with open_source(where) as source, show_progress("adding up", "row", quiet=quiet) as progress:
        rows = list(progress.track(source.usage(asked)))
    if as_json:
        put_json([_drop_other_groups(row, by, USAGE_GROUPS) for row in rows])
    elif rows and plot:
        _put_bars(rows, by)
    elif rows:
        cells = [*(_build_cells(row, by) for row in rows), *_sum_rows(rows, len(by))]
        put_table(*_add_costs(_build_headings(by), cells, rows))
    else:
        say("there were no calls")


def _put_bars(rows: list[UsageRow], by: tuple[str, ...]) -> None:
    bars = [("  ".join(_name_groups(row, by)), row.total_tokens) for row in rows]
    if by == ("day",):
        bars = list(fill_days(sorted(bars)))
    for line in format_bars(bars, get_terminal_size().columns, fine=can_encode("█▏", sys.stdout.encoding or "ascii")):
        put(line)
    say(f"tokens by {' and '.join(by)}: {sum(row.total_tokens for row in rows):,} in total")


def _name_groups(row: UsageRow, by: tuple[str, ...]) -> Iterator[str]:
    return (str(getattr(row, _name_field(name)) or "-") for name in by)


def _name_field(group: str) -> str:
    return {"session": "session_id", "run": "run_id"}.get(group, group)


def _build_headings(by: tuple[str, ...]) -> tuple[str, ...]:
    return (*(name.upper() for name in by), "MODEL CALLS", "TOOL CALLS", "TOKENS", "IN", "CACHED", "OUT", "REASONING",
            "MODEL TIME", "TOOL TIME")  # fmt: skip


def _build_cells(row: UsageRow, by: tuple[str, ...]) -> tuple[str, ...]:
    groups = _name_groups(row, by)
    counts = (
        row.model_calls, row.tool_calls, row.total_tokens, row.prompt_tokens, row.cached_tokens,
        row.completion_tokens, row.reasoning_tokens,
    )  # fmt: skip
    return (*groups, *map(str, counts), format_milliseconds(row.model_ms), format_milliseconds(row.tool_ms))


def _add_costs(
    headings: tuple[str, ...], cells: list[tuple[str, ...]], rows: list[UsageRow]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The table with a column for what the calls cost, if anything is known of that. `+` stands for calls without a
    price."""
    known = [row.cost for row in rows if row.cost is not None]
    if not known:
        return headings, cells
    shown = ["-" if row.cost is None else _format_cost(row.cost.amount, row.cost.unpriced_calls > 0) for row in rows]
    if len(cells) > len(rows):
        is_part = any(row.model_calls and (row.cost is None or row.cost.unpriced_calls) for row in rows)
        shown.append(_format_cost(sum(cost.amount for cost in known), is_part))
    return (*headings, known[0].currency), [(*line, cost) for line, cost in zip(cells, shown, strict=True)]


def _format_cost(amount: float, is_part: bool) -> str:
    return f"{amount:.4f}{'+' if is_part else ''}"


def _sum_rows(rows: list[UsageRow], groups: int) -> list[tuple[str, ...]]:
    if len(rows) == 1:
        return []
    names = (
        "model_calls", "tool_calls", "total_tokens", "prompt_tokens", "cached_tokens", "completion_tokens",
        "reasoning_tokens",
    )  # fmt: skip
    counts = (str(sum(getattr(row, name) for row in rows)) for name in names)
    times = (format_milliseconds(sum(getattr(row, name) for row in rows)) for name in ("model_ms", "tool_ms"))
    return [("total", *[""] * (groups - 1), *counts, *times)]


# Bars for a terminal: a line for each value, as long as the value is large.

# A cell is filled by eighths, so that small differences show.
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_MIN_BAR = 10
_MAX_GAP_DAYS = 31


def format_bars(rows: Sequence[tuple[str, int]], width: int, *, fine: bool) -> Iterator[str]:
    """A line for each label and its value, none longer than `width` as long as there is room for short bars.

    `fine` draws eighths of a character, for terminals that have them; without it bars are of `#`.
    """
    values = [f"{value:,}" for _, value in rows]
    label_width = max((len(label) for label, _ in rows), default=0)
    value_width = max(map(len, values), default=0)
    room = max(_MIN_BAR, width - label_width - value_width - 4)
    largest = max((value for _, value in rows), default=0)
    for (label, value), text in zip(rows, values, strict=True):
        bar = _draw_bar(value, largest, room, fine=fine)
        yield f"{label.ljust(label_width)}  {text.rjust(value_width)}  {bar}".rstrip()


def fill_days(rows: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Days without a call between those with one, so that the bars are a calendar; a long time is one line.

    `rows` are by day, oldest first.
    """
    for (day, value), (following, _) in pairwise([*rows, ("", 0)]):
        yield day, value
        if following:
            start = date.fromisoformat(day)
            missing = (date.fromisoformat(following) - start).days
            if missing > _MAX_GAP_DAYS:
                yield "…", 0
                continue
            yield from (((start + timedelta(days=number)).isoformat(), 0) for number in range(1, missing))


def _draw_bar(value: int, largest: int, room: int, *, fine: bool) -> str:
    if not largest:
        return ""
    if not fine:
        return "#" * max(round(room * value / largest), value > 0)
    eighths = max(round(8 * room * value / largest), value > 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
