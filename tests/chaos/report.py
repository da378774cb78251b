"""The figures of the random runs, as a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Row:
    """What one random run came to. `taken_over` holds the seconds of each take-over."""

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


class Report:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def markdown(self) -> str:
        lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
        lines += [_line(_cells(row)) for row in self.rows]
        if len(self.rows) > 1:
            lines.append(_line(_cells(self.total())))
        return "\n".join(lines)

    def total(self) -> Row:
        total = Row("all", max(row.servers for row in self.rows))
        for row in self.rows:
            for name in COUNTED:
                setattr(total, name, getattr(total, name) + getattr(row, name))
            total.taken_over += row.taken_over
        return total

    def write(self) -> None:
        """To the file that CHAOS_REPORT names, if it does."""
        if path := os.environ.get("CHAOS_REPORT"):
            Path(path).write_text(self.markdown() + "\n")


def _cells(row: Row) -> list[str]:
    times = sorted(row.taken_over)
    figures = [row.servers, *(getattr(row, name) for name in COUNTED), len(times)]
    shown = [f"{value:.1f}" for value in (percentile(times, 50), percentile(times, 95), percentile(times, 100))]
    return [row.database, *map(str, figures), *(shown if times else ["", "", ""])]


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that this percentage of all does not exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0.0


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
