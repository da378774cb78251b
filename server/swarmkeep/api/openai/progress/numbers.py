"""The numbers of a stream's events, and which of them a reader knows."""

from __future__ import annotations

from typing import Any

from swarmkeep.domain.codec import Json

# A reader that was shown a message of which nothing came is given numbers that are greater by this from then on.
ABANDONED = 2**46

# For whoever asks for the response only, and for none of its events.
NOTHING_TOLD = 2**53


class Numbers:
    """Counts events; gives those that come after `after`."""

    def __init__(self, after: int) -> None:
        self._position = 0
        self._last_told = after
        self._abandoned = 0 if after >= NOTHING_TOLD else max(after, 0) // ABANDONED

    @property
    def _number(self) -> int:
        """The number of the next event."""
        return self._abandoned * ABANDONED + self._position

    @property
    def _last_position(self) -> int:
        return self._last_told - self._abandoned * ABANDONED

    @property
    def is_heard(self) -> bool:
        """Whether the reader does not know the next event yet."""
        return self._number > self._last_told

    def tell(self, kind: str, **fields: Any) -> list[Json]:
        """The next event, unless the reader knows it."""
        number, self._position = self._number, self._position + 1
        if number <= self._last_told:
            return []
        self._last_told = number
        return [{"type": kind, "sequence_number": number, **fields}]

    def _tell_piece(self, event: Json, text: str) -> list[Json]:
        """A piece of a text that is recorded, less what the reader knows; its number is that of its last character."""
        first = self._number
        self._position += len(text)
        number = self._number - 1
        if number <= self._last_told:
            return []
        rest = text[max(0, self._last_told - first + 1) :]
        self._last_told = number
        fields = dict(event)
        return [{"type": fields.pop("kind"), "sequence_number": number, **fields, "delta": rest}]
