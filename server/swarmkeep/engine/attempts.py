"""The attempts of one change: counts refusals, keeps outcomes in doubt, waits while the database is away."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from swarmkeep.domain.errors import Overloaded, SeqConflict, SessionDamaged
from swarmkeep.logs.outages import outage_log
from swarmkeep.store.ports import AppendResult, OutcomeUnknown, SchemaBehind, StoreUnavailable

T = TypeVar("T")

log = logging.getLogger(__name__)

UNAVAILABLE = (StoreUnavailable, SchemaBehind, Overloaded)

_MIN_PAUSE_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 1.0

# Others may change what a session is made of and leave its end alone (a redaction does), but not so often in a row.
_MAX_CONFLICTS = 10


class ConflictCounter:
    """The refusals that one change meets, each of them decided on what the log of the session it names holds.

    A log that has lost its end, or does not go on as it should, never ends where the session's row says that it does:
    a change would be decided on it for ever.
    """

    def __init__(self) -> None:
        self._refused: tuple[str, int] | None = None
        self._count = 0

    def count_conflict(self, conflict: SeqConflict) -> None:
        """A change was refused. Raises SessionDamaged when that was so at the same seq again and again."""
        refused = (conflict.session_id, conflict.expected)
        self._count = self._count + 1 if refused == self._refused else 1
        self._refused = refused
        if self._count == _MAX_CONFLICTS:
            raise SessionDamaged(conflict.session_id)


async def decide_until_recorded(attempt: Callable[[], Awaitable[T]], *, session_id: str | None = None) -> T:
    """What an attempt gives, which looks, decides and records; made anew each time that what it was decided on has
    changed meanwhile.

    With a `session_id` only what has changed there is a reason for that. Raises SessionDamaged after too many, and
    what the attempt raises.
    """
    conflicts = ConflictCounter()
    while True:
        try:
            return await attempt()
        except SeqConflict as conflict:
            if session_id is not None and conflict.session_id != session_id:
                raise
            conflicts.count_conflict(conflict)


class Attempts:
    """The attempts to record one change.

    Between two, somebody who may wait pauses; the pauses grow to a second, and differ, so that not everybody comes
    back at the same moment.
    """

    def __init__(self, session_id: str, doubt_seconds: float) -> None:
        self.in_doubt: list[AppendResult] = []
        self._session_id = session_id
        self._doubt_seconds = doubt_seconds
        self._conflicts = ConflictCounter()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.in_doubt.clear()
        self._doubt_ends_at = 0.0
        self._pause_seconds = _MIN_PAUSE_SECONDS

    def count_conflict(self, conflict: SeqConflict) -> None:
        """A change was refused, and is decided anew. Raises SessionDamaged after too many."""
        self._conflicts.count_conflict(conflict)
        self._begin_anew()

    def note_in_doubt(self, unknown: OutcomeUnknown) -> None:
        """An attempt may have been recorded: to hear of it is worth a few seconds."""
        if unknown.appended is not None:
            if not self.in_doubt:
                self._doubt_ends_at = asyncio.get_running_loop().time() + self._doubt_seconds
            self.in_doubt.append(unknown.appended)

    def may_wait(self, *, has_lease: bool) -> bool:
        """Whether to try again while the database cannot be used."""
        return has_lease or (bool(self.in_doubt) and asyncio.get_running_loop().time() < self._doubt_ends_at)

    async def pause(self, error: Exception) -> None:
        outage_log.note(error, "changes delayed" if self._pause_seconds == _MIN_PAUSE_SECONDS else None)
        log.debug("session %s: waiting for the database: %s", self._session_id, error)
        await asyncio.sleep(self._pause_seconds * random.uniform(0.5, 1.0))
        self._pause_seconds = min(2 * self._pause_seconds, _MAX_PAUSE_SECONDS)


def log_failure(log: logging.Logger, error: Exception, what: str) -> None:
    """Log that something failed: as part of an outage where the database is the reason, else with all that is known."""
    if isinstance(error, UNAVAILABLE):
        outage_log.note(error)
        log.debug("%s: %s", what, error)
    else:
        log.error(what, exc_info=error)
