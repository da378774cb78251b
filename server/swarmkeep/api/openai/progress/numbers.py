"""The numbers of a stream's events, and which of them a reader has."""

from __future__ import annotations

from typing import Any

from swarmkeep.domain.codec import Json

# A reader that was shown a message of which nothing came is given numbers that are greater by this from then on.
ABANDONED = 2**46

# As `after`: for whoever wants the response alone.
NO_EVENTS = 2**53


class SequenceNumbers:
    """Numbers events, and leaves out those that the reader has: up to `after`, and what was written since."""

    def __init__(self, after: int) -> None:
        self._position = 0
        self._last_known = after
        self._abandoned = 0 if after >= NO_EVENTS else max(after, 0) // ABANDONED

    @property
    def _number(self) -> int:
        """The number of the next event."""
        return self._abandoned * ABANDONED + self._position

    @property
    def _last_known_position(self) -> int:
        return self._last_known - self._abandoned * ABANDONED

    @property
    def is_next_new(self) -> bool:
        """Whether the reader does not have the next event yet."""
        return self._number > self._last_known

    def write(self, kind: str, **fields: Any) -> list[Json]:
        """Write the next event, unless the reader has it."""
        number, self._position = self._number, self._position + 1
        if number <= self._last_known:
            return []
        self._last_known = number
        return [{"type": kind, "sequence_number": number, **fields}]

    def _write_piece(self, kind: str, text: str, **fields: Any) -> list[Json]:
        """Write what the reader lacks of a recorded text, as one piece. Its number is that of its last character."""
        first = self._number
        self._position += len(text)
        number = self._number - 1
        if number <= self._last_known:
            return []
        rest = text[max(0, self._last_known - first + 1) :]
        self._last_known = number
        return [{"type": kind, "sequence_number": number, **fields, "delta": rest}]
