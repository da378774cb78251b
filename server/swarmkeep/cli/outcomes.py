"""Show the outcomes of cases as a table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from swarmkeep.cli.terminal import has_colours
from swarmkeep.evals.running import CaseOutcome, Status, count_outcomes
from swarmkeep.events.wording import escape_controls, escape_line

# Standard output as rich writes to it.


def make_console(**options: Any) -> Console:
    """Colours where they may be used; nothing that a text holds is markup."""
    options["color_system"] = "auto" if has_colours(sys.stdout) else None
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False, **options)


_MOST_PROBLEMS = 3
# A file or another program has no width; there, few cells need a second line.
_WIDTH = 160
_STYLES: dict[Status, str] = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


def print_outcomes(outcomes: Sequence[CaseOutcome]) -> None:
    """A line for each, or several, and one that sums them up."""
    console = make_console(width=None if sys.stdout.isatty() else _WIDTH)
    table = Table(box=None, pad_edge=False)
    for heading in ("CASE", "RESULT", "PASSED", "SECONDS", "WHY"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("RESULT", "PASSED", "SECONDS"))
    for outcome in outcomes:
        table.add_row(
            Text(escape_line(outcome.case)),
            Text(outcome.status, style=_STYLES[outcome.status]),
            Text(f"{outcome.passed}/{outcome.tried}" if outcome.tried else "-"),
            Text(f"{outcome.seconds:.2f}" if outcome.tried else "-"),
            Text(escape_controls(_explain_outcome(outcome))),
        )
    console.print(table)
    console.print(Text(", ".join(f"{count} {status}" for status, count in count_outcomes(outcomes).items())))


def _explain_outcome(outcome: CaseOutcome) -> str:
    more = len(outcome.problems) - _MOST_PROBLEMS
    lines = [*outcome.problems[:_MOST_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]
    return outcome.reason or "\n".join(lines)
