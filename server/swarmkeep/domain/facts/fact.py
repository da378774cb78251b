"""What all facts are."""

from __future__ import annotations

from typing import ClassVar

import msgspec


# Not tracked by the garbage collector, here and in `RecordedEvent`: JSON has no cycles, and going through those of a
# long log again and again took a third of the time to read it.
class Fact(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that happened. New fields get defaults; a changed meaning gets a new type or version."""

    type: ClassVar[str]
    version: ClassVar[int] = 1
