"""A message that is being streamed: its text so far, and a digest by which a reader's place in it is found again."""

from __future__ import annotations

import zlib

from swarmkeep.api.openai.items.ids import ItemPlace

# What a character counts, in numbers of events; and so how many digests of a text there are.
STEP = 2**12


class StreamedMessage:
    """`start` is the number that the message begins with, `base` the first one of its text.

    `shown`: the text of an earlier attempt that was streamed here. `is_known`: whether what the reader was shown is a
    beginning of this text. `end`: the number of the last piece, counted from `base`. `last_number`: that number itself,
    once the reader has all of the text.
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
        self.last_number: int | None = None
        self.is_known = False
        self._digest = 0

    @property
    def text(self) -> str:
        """All of it so far. It may be long, so whoever only adds to it should not ask."""
        return "".join(self._pieces)

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self.length += len(piece)
        self._digest = make_digest(piece, self._digest)
        self.end = (self.length - 1) * STEP + self._digest % STEP


def make_digest(text: str, before: int = 0) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"), before)
