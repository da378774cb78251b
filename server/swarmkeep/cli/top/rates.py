"""Rates: how two readings differ."""

from __future__ import annotations

from collections import deque

import msgspec

from swarmkeep.cli.top.snapshot import Reading, mean_seconds

WITHIN_SECONDS = 60.0


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Per minute, and the mean seconds of a call, over the last minute or as long as it has been watched."""

    turns: float
    tokens: float
    model_seconds: float | None
    tool_seconds: float | None


class RecentReadings:
    """The readings of the last minute."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque()

    def add(self, reading: Reading) -> None:
        if self._readings and self._readings[-1].usage.model_calls > reading.usage.model_calls:
            # A new day has begun, or sessions were deleted: the sums begin anew.
            self._readings.clear()
        self._readings.append(reading)
        # One that is older stays, so that the whole minute lies between it and the last.
        while len(self._readings) > 2 and reading.taken - self._readings[1].taken >= WITHIN_SECONDS:
            self._readings.popleft()

    def compute_rates(self) -> Rates | None:
        """None until there are two readings to compare."""
        if len(self._readings) < 2:
            return None
        first, last = self._readings[0], self._readings[-1]
        minutes = max(last.taken - first.taken, 0.001) / 60
        was, now = first.usage, last.usage
        return Rates(
            turns=(now.model_calls - was.model_calls) / minutes,
            tokens=max(now.total_tokens - was.total_tokens, 0) / minutes,
            model_seconds=mean_seconds(now.model_ms - was.model_ms, now.model_calls - was.model_calls),
            tool_seconds=mean_seconds(now.tool_ms - was.tool_ms, now.tool_calls - was.tool_calls),
        )
