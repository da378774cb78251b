"""Retries: which requests are sent again, and after how long."""

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
        self._paused_seconds = 0.0

    def pause_after(self, request: Request, outcome: Outcome, *, outlive_seconds: float = 0.0) -> float | None:
        """The seconds to wait before `request` is sent again, or None if `outcome` is final.

        The pause doubles from one failure to the next, halved at random so that many clients do not come back at
        once. It is never shorter than what the server asks for; if that is more than a minute, the caller decides.
        Beyond the limit it goes on until the pauses add up to `outlive_seconds`, unless nothing is to be sent again.
        """
        wanted = (outcome.retry_after or 0.0) if isinstance(outcome, Answer) else 0.0
        if (
            self._is_used_up(outlive_seconds)
            or not request.is_repeatable
            or not _is_temporary(request, outcome)
            or wanted > LONGEST_RETRY_AFTER_SECONDS
        ):
            return None
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0**self.failures)
        self.failures += 1
        pause = max(wanted, pause * (0.5 + self._chance() / 2))
        self._paused_seconds += pause
        return pause

    def reset(self) -> None:
        """It works again: forget what failed before."""
        self.failures = 0
        self._paused_seconds = 0.0

    def _is_used_up(self, outlive_seconds: float) -> bool:
        is_patient = self._limit > 0 and self._paused_seconds < outlive_seconds
        return self.failures >= self._limit and not is_patient


def _is_temporary(request: Request, outcome: Outcome) -> bool:
    if isinstance(outcome, Answer):
        return outcome.status in _TEMPORARY and not request.is_settled_by(outcome)
    return outcome.temporary
