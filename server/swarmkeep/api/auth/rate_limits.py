"""Rate limits: a token bucket for each key or address."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from cachetools import LRUCache

from swarmkeep.api.http_errors import RateLimited

# One that is forgotten because so many others came since would be full by then, or is one of a crowd.
MAX_BUCKETS = 10_000


class RateLimiter:
    """Up to `per_minute` requests at once and as many in each minute, for each caller, on this server."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = float(per_minute)
        self._per_second = per_minute / 60
        self._clock = clock
        # Tokens, and when it was that there were so many.
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(MAX_BUCKETS)

    def count(self, who: str) -> None:
        """Count a request. One that is refused costs nothing. Raises RateLimited."""
        tokens, now = self.refuse_exhausted(who)
        self._buckets[who] = (tokens - 1, now)

    def refuse_exhausted(self, who: str) -> tuple[float, float]:
        """Refuse what would be one too many, without counting it; gives the tokens there are, and the time.

        Raises RateLimited.
        """
        now = self._clock()
        tokens, at = self._buckets.get(who, (self._size, now))
        tokens = min(self._size, tokens + (now - at) * self._per_second)
        if tokens < 1:
            raise RateLimited(max(1, math.ceil((1 - tokens) / self._per_second)))
        return tokens, now
