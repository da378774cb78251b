"""When a request is sent again, and after how long."""

from __future__ import annotations

import random
from collections.abc import Callable

from swarmkeep_client._wire import Answer, Outcome, Request

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 8.0
LONGEST_RETRY_AFTER_SECONDS = 60.0
_TEMPORARY = frozenset({429, 502, 503, 504})


class Retries:
    """Counts the failures of one call against `limit`."""

    def __init__(self, limit: int, *, chance: Callable[[], float] = random.random) -> None:
        self._limit = limit
        self._chance = chance
        self.failures = 0

    def pause_after(self, request: Request, outcome: Outcome) -> float | None:
        """The seconds to wait before `request` is sent again, or None if `outcome` is final.

        The pause doubles from one failure to the next, halved at random so that many clients do not come back at
        once. It is never shorter than what the server asks for; if that is more than a minute, the caller decides.
        """
        wanted = (outcome.retry_after or 0.0) if isinstance(outcome, Answer) else 0.0
        if (
            self.failures >= self._limit
            or not request.is_repeatable
            or not _is_temporary(request, outcome)
            or wanted > LONGEST_RETRY_AFTER_SECONDS
        ):
            return None
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0**self.failures)
        self.failures += 1
        return max(wanted, pause * (0.5 + self._chance() / 2))

    def reset(self) -> None:
        """It works again: forget what failed before."""
        self.failures = 0


def _is_temporary(request: Request, outcome: Outcome) -> bool:
    if isinstance(outcome, Answer):
        return outcome.status in _TEMPORARY and not request.is_settled_by(outcome)
    return outcome.temporary
