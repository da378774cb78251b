"""Report the outcomes of cases: a table for people, one object for programs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, Self

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from swarmkeep.evals.running import Attempt

MOST_PROBLEMS = 3
WIDTH = 160
Status = Literal["passed", "failed", "skipped"]
_STYLES: dict[Status, str] = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


class CaseOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A case and its attempts; `reason` says why there are none."""

    file: str
    case: str
    status: Status
    passed: int = 0
    tried: int = 0
    seconds: float = 0.0
    problems: list[str] = []
    reason: str | None = None

    @classmethod
    def from_attempts(
        cls, file: str, case: str, attempts: Sequence[Attempt], *, reason: str | None, pass_rate: float
    ) -> Self:
        if reason is not None:
            return cls(file=file, case=case, status="skipped", reason=reason)
        passed = sum(attempt.passed for attempt in attempts)
        return cls(
            file=file,
            case=case,
            status="passed" if passed >= pass_rate * len(attempts) else "failed",
            passed=passed,
            tried=len(attempts),
            seconds=round(sum(attempt.seconds for attempt in attempts), 3),
            problems=list(dict.fromkeys(problem for attempt in attempts for problem in attempt.problems)),
        )


def summarize(outcomes: Sequence[CaseOutcome]) -> dict[str, Any]:
    counts = Counter(outcome.status for outcome in outcomes)
    return {**{status: counts[status] for status in _STYLES}, "cases": list(outcomes)}


def print_report(outcomes: Sequence[CaseOutcome]) -> None:
    """A table on standard output, and a line that sums it up."""
    # A file or another program has no width; there, few cells need a second line.
    width = None if sys.stdout.isatty() else WIDTH
    console = Console(highlight=False, markup=False, emoji=False, width=width)
    table = Table(box=None, pad_edge=False)
    for heading in ("CASE", "RESULT", "PASSED", "SECONDS", "WHY"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("RESULT", "PASSED", "SECONDS"))
    for outcome in outcomes:
        table.add_row(
            Text(_escape_unprintable(outcome.case)),
            Text(outcome.status, style=_STYLES[outcome.status]),
            Text(f"{outcome.passed}/{outcome.tried}" if outcome.tried else "-"),
            Text(f"{outcome.seconds:.2f}" if outcome.tried else "-"),
            Text(_escape_unprintable(_explain_outcome(outcome))),
        )
    console.print(table)
    counts = Counter(outcome.status for outcome in outcomes)
    console.print(Text(", ".join(f"{counts[status]} {status}" for status in _STYLES)))


def _explain_outcome(outcome: CaseOutcome) -> str:
    more = len(outcome.problems) - MOST_PROBLEMS
    lines = [*outcome.problems[:MOST_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]
    return outcome.reason or "\n".join(lines)


def _escape_unprintable(text: str) -> str:
    """Escape characters that a terminal would obey rather than show."""
    return "".join(char if char.isprintable() or char == "\n" else f"\\x{ord(char):02x}" for char in text)
