"""Decides when a model call that failed for a moment is made again."""

from __future__ import annotations

import random

import msgspec

from swarmkeep.engine.models.failures import ProviderFailure


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and after how many seconds: the pause doubles from the first to the longest, with up to half of it
    left to chance, so that sessions that failed together do not come back together.

    A provider that says how long to wait is not asked sooner. One that says longer than `patience_seconds` is not
    asked again: whoever waits for the run learns of it at once.
    """

    count: int = 0
    first_seconds: float = 0.5
    longest_seconds: float = 8.0
    patience_seconds: float = 60.0

    def choose_pause(self, failure: ProviderFailure, retried: int) -> float | None:
        """How long to wait before the next attempt, after `retried` of them; None if there is to be none."""
        if not failure.is_transient or retried >= self.count:
            return None
        if failure.wait_seconds is None:
            longest = min(self.first_seconds * 2.0 ** min(retried, 64), self.longest_seconds)
            return random.uniform(longest / 2, longest)
        if failure.wait_seconds > self.patience_seconds:
            return None
        return random.uniform(failure.wait_seconds, failure.wait_seconds * 1.1)
