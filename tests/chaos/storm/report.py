"""The figures of the random runs, as a table."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path


@dataclass
class Row:
    """The outcome of one random run. `taken_over` holds the seconds of each take-over."""

    database: str
    servers: int
    kills: int = 0
    posted: int = 0
    sent_again: int = 0
    acknowledged: int = 0
    lost: int = 0
    tool_calls: int = 0
    double_starts: int = 0
    stuck: int = 0
    taken_over: list[float] = field(default_factory=list)


COUNTED = ("kills", "posted", "sent_again", "acknowledged", "lost", "tool_calls", "double_starts", "stuck")
COLUMNS = (
    "database",
    "servers",
    *(name.replace("_", " ") for name in COUNTED),
    "take-overs",
    "p50 s",
    "p95 s",
    "max s",
)


BEGIN = "<!-- report -->"
END = "<!-- /report -->"


class Report:
    def __init__(self, lease_seconds: float) -> None:
        self.rows: list[Row] = []
        self.lease_seconds = lease_seconds
        self._began = time.monotonic()

    def format_table(self) -> str:
        lines = [_format_line(COLUMNS), _format_line(["---"] * len(COLUMNS))]
        lines += [_format_line(_format_cells(row)) for row in self.rows]
        if len(self.rows) > 1:
            lines.append(_format_line(_format_cells(self.add_up())))
        return "\n".join(lines)

    def add_up(self) -> Row:
        total = Row("all", max(row.servers for row in self.rows))
        for row in self.rows:
            for name in COUNTED:
                setattr(total, name, getattr(total, name) + getattr(row, name))
            total.taken_over += row.taken_over
        return total

    def text(self) -> str:
        """The table, and what it was measured on."""
        total = self.add_up()
        minutes = (time.monotonic() - self._began) / 60
        sentence = (
            f"{date.today():%d %B %Y}: {total.kills} kills in {minutes:.0f} minutes, with a "
            f"lease of {self.lease_seconds:g} s, on {os.cpu_count()} processors; {platform.system()} "
            f"{platform.machine()}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}."
        )
        return f"{sentence}\n\n{self.format_table()}"

    def write(self) -> None:
        """To the file that CHAOS_REPORT names, if it does: between the marks for it, if there are any."""
        name = os.environ.get("CHAOS_REPORT")
        if not name:
            return
        path = Path(name)
        page = path.read_text() if path.exists() else ""
        before, mark, rest = page.partition(BEGIN)
        _, _, after = rest.partition(END)
        path.write_text(f"{before}{BEGIN}\n{self.text()}\n{END}{after}" if mark else f"{self.text()}\n")


def _format_cells(row: Row) -> list[str]:
    times = sorted(row.taken_over)
    figures = [row.servers, *(getattr(row, name) for name in COUNTED), len(times)]
    shown = [
        f"{value:.1f}"
        for value in (find_percentile(times, 50), find_percentile(times, 95), find_percentile(times, 100))
    ]
    return [row.database, *map(str, figures), *(shown if times else ["", "", ""])]


def find_percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that this percentage of all does not exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0.0


def _format_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
