"""The lines of the screen: as many and as long as there is room for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.text import Text

from swarmkeep.cli.top.rates import Rates
from swarmkeep.cli.top.snapshot import Row, Snapshot
from swarmkeep.cli.top.view import View
from swarmkeep.domain.wording import escape_line

_WIDE = 110
_TALL = 16
_CUT = "…and more: the session's events have all of it (n, then Enter)"
_KEYS = {
    "list": "up/down choose  Enter events  c cancel  a approve  d deny  / filter  q quit",
    "filter": "type to filter   Enter keep   Esc clear",
    "confirm": "y yes   any other key no",
    "events": "up/down scroll   q or Esc back",
}


@dataclass(frozen=True)
class Room:
    """How large the screen is, and which characters it knows."""

    width: int
    height: int
    encoding: str = "utf-8"

    def fit(self, text: str, width: int) -> str:
        """Text on one line that is exactly so wide."""
        shown = escape_line(text).encode(self.encoding, "replace").decode(self.encoding)
        return set_cell_size(shown, max(width, 0))


@dataclass(frozen=True)
class _Column:
    heading: str
    width: int
    cell: Callable[[Row, float], str]
    is_number: bool = False


def draw(view: View, where: str, room: Room, now: float) -> Text:
    """The whole screen."""
    # On a low screen, what is chosen and asked counts more.
    head = _draw_head(view, where, room.width if room.height >= _TALL else sys.maxsize)
    # The last line is for the keys.
    space = max(room.height - len(head) - 1, 1)
    if view.mode == "events":
        body = _draw_events(view, space)
    elif view.mode == "confirm" and cell_len(_ask(view)) > room.width:
        body = _draw_question(view, room.width, space)
    else:
        body = _draw_list(view, room, space, passed=max(now - view.taken, 0.0))
    lines = [*head, *body]
    lines = lines[: max(room.height - 1, 0)]
    lines += [("", "")] * (room.height - 1 - len(lines)) + [(_KEYS[view.mode], "dim")]
    return Text("\n").join(Text(room.fit(text, room.width), style=style) for text, style in lines)


def _draw_head(view: View, where: str, width: int) -> list[tuple[str, str]]:
    shown = view.snapshot
    return [
        (f"swarmkeep top   {where}   {shown.at[11:19]} UTC", "bold"),
        *((line, "") for line in _fill_lines([describe_counts(shown), *_describe_rates(view.rates)], width)),
        *((line, "") for line in _fill_lines(_describe_troubles(view), width)),
        _describe_state(view),
    ]


def _fill_lines(parts: Sequence[str], width: int) -> list[str]:
    """The parts side by side, on as many lines as it takes for none to be cut."""
    lines = [parts[0]]
    for part in parts[1:]:
        longer = f"{lines[-1]}   {part}"
        lines[-1:] = [longer] if cell_len(longer) <= width else [lines[-1], part]
    return lines


def describe_counts(shown: Snapshot) -> str:
    more = " and more" if shown.is_cut else ""
    return f"{shown.counts.running} running, {shown.counts.waiting} waiting, {shown.counts.queued} queued{more}"


def _describe_rates(rates: Rates | None) -> list[str]:
    if rates is None:
        return []
    return [
        f"{rates.turns:.0f} turns/min, {format_count(rates.tokens)} tokens/min",
        f"model {format_seconds(rates.model_seconds)}, tool {format_seconds(rates.tool_seconds)}",
    ]


def _describe_troubles(view: View) -> list[str]:
    shown = view.snapshot
    parts = [f"failed in the last hour {shown.failed_last_hour}", f"leases moved {view.moved}"]
    if shown.server is not None:
        counts = shown.server
        parts += [f"streams {counts.streams}", f"take-overs {counts.takeovers}", f"run errors {counts.run_errors}"]
    return parts


def _describe_state(view: View) -> tuple[str, str]:
    if view.mode == "confirm":
        return _ask(view), "bold yellow"
    if view.mode == "filter":
        return f"filter: {view.filter}_", "bold"
    if view.trouble:
        return view.trouble, "bold red"
    if view.notice:
        return view.notice, "yellow"
    return (f"filter: {view.filter}", "") if view.filter else ("", "")


def _ask(view: View) -> str:
    return escape_line(f"{view.question} y/n")


def _draw_question(view: View, width: int, space: int) -> list[tuple[str, str]]:
    """All of what is asked, in the place of the list: nobody should say yes to what they have not seen."""
    lines = [("", ""), *((line, "bold yellow") for line in chop_cells(_ask(view), max(width, 2)))]
    return lines if len(lines) <= space else [*lines[: space - 1], (_CUT, "bold red")]


def _draw_list(view: View, room: Room, space: int, *, passed: float) -> list[tuple[str, str]]:
    columns = choose_columns(room.width)
    rows, chosen = view.list_rows(), view.find_chosen()
    space = max(space - 1, 1)
    place = rows.index(chosen) if chosen is not None else 0
    first = max(0, place - space + 1)
    head = "  " + " ".join(_fit_cell(room, one, one.heading) for one in columns)
    lines = [(head, "bold")]
    for row in rows[first : first + space]:
        cells = " ".join(_fit_cell(room, one, one.cell(row, passed)) for one in columns)
        lines.append((f"{'>' if row is chosen else ' '} {cells}", _find_style(row, is_chosen=row is chosen)))
    if not rows:
        lines.append(
            ("  no run is active, waiting or queued" if not view.filter else "  no run matches the filter", "dim")
        )
    return lines


def _fit_cell(room: Room, column: _Column, text: str) -> str:
    if column.is_number:
        return text[: column.width].rjust(column.width)
    return room.fit(text, column.width)


def _find_style(row: Row, *, is_chosen: bool) -> str:
    colour = "yellow" if row.status == "waiting" else ""
    return f"reverse {colour}".strip() if is_chosen else colour


def _draw_events(view: View, space: int) -> list[tuple[str, str]]:
    opened = view.opened
    name = "" if opened is None else f"{opened.session_id}  {opened.title or ''}"
    space = max(space - 1, 1)
    end = max(len(view.lines) - view.scrolled, 1)
    return [(name, "bold"), *((line, "") for line in view.lines[max(end - space, 0) : end])]


def choose_columns(width: int) -> Sequence[_Column]:
    """The last takes what is left."""
    wide = width >= _WIDE
    columns = [
        _Column("STATUS", 10, lambda row, _: describe_status(row)),
        _Column("AGE", 6, lambda row, passed: format_age(row.age_seconds + passed), is_number=True),
        _Column("AGENT", 24 if wide else 14, lambda row, _: row.agent),
        _Column("TURNS", 5, lambda row, _: str(row.model_calls), is_number=True),
        _Column("TOKENS", 6, lambda row, _: format_count(row.total_tokens), is_number=True),
        _Column("SERVER", 8, lambda row, _: (row.server or "-")[:8]),
        _Column("LEASE", 7, lambda row, passed: format_lease(row, passed)),
    ]
    if wide:
        columns.append(_Column("SESSION", 28, lambda row, _: row.session_id))
        columns.append(_Column("TITLE", 0, lambda row, _: row.title or ""))
    else:
        columns.append(_Column("SESSION", 0, lambda row, _: row.title or row.session_id))
    taken = 2 + sum(one.width for one in columns) + len(columns) - 1
    last = columns[-1]
    return [*columns[:-1], _Column(last.heading, max(width - taken, 8), last.cell)]


def describe_status(row: Row) -> str:
    return f"{row.status} +{row.queued_runs}" if row.queued_runs else row.status


def format_lease(row: Row, passed: float = 0.0) -> str:
    if row.lease_seconds is None:
        return "-"
    left = row.lease_seconds - passed
    return "expired" if left <= 0 else f"{left:.0f} s"


def format_age(seconds: float) -> str:
    """`9s`, `12m`, `3h`, `2d`: how many of the largest unit have passed."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds // 1:.0f}s"


def format_count(count: float) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if count >= size:
            return f"{count / (1000 if unit == 'k' else size):.1f}{unit}"
    return f"{count:.0f}"


def format_seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"
