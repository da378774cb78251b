"""A message as it is told: its text so far, and a digest of it, by which a reader's place in it is known again."""

from __future__ import annotations

import zlib

from swarmkeep.api.openai.items.ids import ItemPlace

# What a character counts, in numbers of events; and so how many digests of a text there are.
STEP = 2**12


class SpokenMessage:
    """A message that is being told. `start` is the number that it begins with, `base` the one that its text has.

    `shown`: what of an attempt before this one was told here. `is_known`: whether the reader knows that its text begins
    as it was told. `end`: what the number of its last piece is more than `base`. `told`: that number, where the reader
    was told all of its text.
    """

    def __init__(self, item_id: str, place: ItemPlace | None = None) -> None:
        self.item_id = item_id
        self.place = place
        self.start = 0
        self.base: int | None = None
        self.shown = ""
        self.begin_anew()

    def begin_anew(self) -> None:
        self._pieces: list[str] = []
        self.length = 0
        self.end = -STEP
        self.told: int | None = None
        self.is_known = False
        self._digest = 0

    @property
    def text(self) -> str:
        """All that has come of it. Whoever only goes on with it need not ask: it may be long."""
        return "".join(self._pieces)

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self.length += len(piece)
        self._digest = make_digest(piece, self._digest)
        self.end = (self.length - 1) * STEP + self._digest % STEP


def make_digest(text: str, before: int = 0) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"), before)
