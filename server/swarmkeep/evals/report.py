"""What became of cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, Self, get_args

import msgspec

from swarmkeep.evals.running import Attempt

Status = Literal["passed", "failed", "skipped"]


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


def count_outcomes(outcomes: Sequence[CaseOutcome]) -> dict[Status, int]:
    counts = Counter(outcome.status for outcome in outcomes)
    return {status: counts[status] for status in get_args(Status)}
