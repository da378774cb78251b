"""Appends that are refused because the session has moved on, and how to tell when it has not."""

from __future__ import annotations

from swarmkeep.domain.errors import SessionDamaged
from swarmkeep.domain.state import State

# Others may change what a session is made of and leave its end alone (a redaction does), but not so often in a row.
_MAX_CONFLICTS = 10


class ConflictCounter:
    """The refusals that one change of a session meets, each of them decided on what the log holds.

    A log that has lost its end, or does not go on as it should, never ends where the session's row says that it does:
    a change would be decided on it for ever.
    """

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._decided_on: tuple[int, str] | None = None
        self._count = 0

    def count_conflict(self, state: State) -> None:
        """A change that was decided on `state` was refused. Raises SessionDamaged when that was so again and again."""
        on = (state.seq, state.hash)
        self._count = self._count + 1 if on == self._decided_on else 1
        self._decided_on = on
        if self._count == _MAX_CONFLICTS:
            raise SessionDamaged(self._session_id)
