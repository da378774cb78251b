"""`swarmkeep usage`: what model and tool calls took."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated

import typer

from swarmkeep.cli.completing import complete_agent, complete_session
from swarmkeep.cli.opening import open_source
from swarmkeep.cli.options import Commands, FirstDay, JsonOutput, LastDay, Quiet
from swarmkeep.cli.render import format_milliseconds
from swarmkeep.cli.sources import SourceOptions
from swarmkeep.cli.terminal import can_show, put, put_json, put_table, say, show_progress

if TYPE_CHECKING:
    from swarmkeep_client import UsageRow


_PAGE_SIZE = 200


commands = Commands()


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
    from swarmkeep.events.records import USAGE_GROUPS, UsageGroup, UsageQuery, parse_usage_groups

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
        put_json([_drop_other_groups(row, by) for row in rows])
    elif rows and plot:
        _put_bars(rows, by)
    elif rows:
        cells = [*(_build_cells(row, by) for row in rows), *_sum_rows(rows, len(by))]
        put_table(*_add_costs(_build_headings(by), cells, rows))
    else:
        say("there were no calls")


def _put_bars(rows: list[UsageRow], by: tuple[str, ...]) -> None:
    from swarmkeep.cli.render import fill_days, format_bars

    bars = [("  ".join(_name_groups(row, by)), row.total_tokens) for row in rows]
    if by == ("day",):
        bars = list(fill_days(sorted(bars)))
    for line in format_bars(bars, get_terminal_size().columns, fine=can_show("█▏", sys.stdout)):
        put(line)
    say(f"tokens by {' and '.join(by)}: {sum(row.total_tokens for row in rows):,} in total")


def _name_groups(row: UsageRow, by: tuple[str, ...]) -> Iterator[str]:
    return (str(getattr(row, _name_field(name)) or "-") for name in by)


def _name_field(group: str) -> str:
    return {"session": "session_id", "run": "run_id"}.get(group, group)


def _drop_other_groups(row: UsageRow, by: tuple[str, ...]) -> dict[str, object]:
    """The row with the groups that were asked for."""
    import msgspec

    from swarmkeep.events.records import USAGE_GROUPS

    plain: dict[str, object] = msgspec.to_builtins(row)
    if plain["cost"] is None:
        del plain["cost"]
    others = {_name_field(group) for group in USAGE_GROUPS if group not in by}
    return {name: value for name, value in plain.items() if name not in others}


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
