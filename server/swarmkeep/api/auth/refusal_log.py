"""Refused requests as log lines: failed sign-ins, what a key may not do, and floods."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from cachetools import LRUCache

log = logging.getLogger(__name__)

REFUSALS = {401: "unauthenticated", 403: "forbidden", 429: "too many requests"}
LINES_PER_MINUTE = 10
_PERIOD_SECONDS = 60.0
_MAX_ADDRESSES = 10_000


class RefusalLog:
    """Up to `lines` a minute for each address; what comes beyond is counted, and told with its next line."""

    def __init__(self, lines: int = LINES_PER_MINUTE, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = lines
        self._clock = clock
        # When the minute began, and how many there were in it.
        self._counts: LRUCache[str, tuple[float, int]] = LRUCache(_MAX_ADDRESSES)

    def note(self, status: int, address: str, text: str) -> None:
        now = self._clock()
        began, count = self._counts.get(address, (now, 0))
        untold = max(0, count - self._lines)
        if now - began >= _PERIOD_SECONDS:
            began, count = now, 0
        else:
            untold = 0
        self._counts[address] = began, count + 1
        if count < self._lines:
            more = f"; {untold} more since the last such line" if untold else ""
            log.warning("refused %s as %s: %s%s", text, REFUSALS[status], address or "unknown address", more)
