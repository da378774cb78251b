"""A database that is away, in two log lines: what happened, and, once it is over, how many it concerned.

Everybody in a process notices the same outage: hundreds of streams and runs, and each request. A line of each of them
would hide whatever else the log says.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal

from swarmkeep.domain.errors import Overloaded
from swarmkeep.logs.context import only_log_fields

log = logging.getLogger(__name__)

Concerned = Literal["streams broken off", "requests refused", "changes delayed"]

# Whoever waits for the database tries again within a second. That some can read while nobody can write is no end.
_SETTLED_SECONDS = 1.5
_REMINDER_SECONDS = 60.0


class OutageLog:
    """The outage that goes on in this process, if there is one."""

    def __init__(
        self,
        *,
        settled_seconds: float = _SETTLED_SECONDS,
        reminder_seconds: float = _REMINDER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settled_seconds = settled_seconds
        self._reminder_seconds = reminder_seconds
        self._clock = clock
        self._counts: Counter[Concerned] = Counter()
        self._began_at: float | None = None
        self._noted_at = self._written_at = 0.0

    def note(self, error: Exception, concerned: Concerned | None = None) -> None:
        """Somebody could not use the database. `concerned` is what became of them; these are counted."""
        self._noted_at = self._clock()
        if concerned is not None:
            self._counts[concerned] += 1
        how = "does not keep up" if isinstance(error, Overloaded) else "cannot be used"
        if self._began_at is None:
            self._began_at = self._written_at = self._noted_at
            self._write(logging.ERROR, "the database %s: %s", how, error)
        elif self._noted_at - self._written_at >= self._reminder_seconds:
            self._written_at = self._noted_at
            seconds = self._noted_at - self._began_at
            self._write(
                logging.ERROR, "the database %s, for %.0f s now: %s%s", how, seconds, error, self._describe_counts()
            )

    def note_answer(self) -> None:
        """The database has answered somebody who asks regularly. The outage is over once nobody notes it any more."""
        if self._began_at is None or self._clock() - self._noted_at < self._settled_seconds:
            return
        seconds = self._noted_at - self._began_at
        self._write(logging.WARNING, "the database answers again, after %.0f s%s", seconds, self._describe_counts())
        self._began_at = None
        self._counts.clear()

    def _describe_counts(self) -> str:
        counts = ", ".join(f"{concerned}: {count:,}" for concerned, count in sorted(self._counts.items()))
        return f"; {counts}" if counts else ""

    def _write(self, level: int, message: str, *values: object) -> None:
        # It is about no request or run, least of all about the one that noticed first.
        with only_log_fields():
            log.log(level, message, *values)


outage_log = OutageLog()
"""This process's."""
