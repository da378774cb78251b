"""How often a worker is started again, and how long it may take to end."""

from __future__ import annotations

import msgspec


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds; what is nobody's to set, tests pass smaller.

    A worker that has lived for `steady_seconds` is replaced at once. Before, each death in a row doubles the pause,
    from `first_pause` to `longest_pause`. `stop_seconds` is how long all may take to end after they were asked to.
    """

    first_pause: float = 0.5
    longest_pause: float = 30.0
    steady_seconds: float = 60.0
    stop_seconds: float = 30.0

    def compute_pause(self, deaths: int) -> float:
        """How long to wait after so many deaths in a row; the first costs no pause."""
        if deaths < 2:
            return 0.0
        return min(self.longest_pause, self.first_pause * 2.0 ** min(deaths - 2, 20))
