"""Limits on request bodies that are not complete yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from swarmkeep.domain.errors import Overloaded

# This much of each body is not counted. So only larger bodies are refused, and everyday requests get through whoever
# else sends slowly.
UNCOUNTED_BYTES = 65_536
MAX_FILES = 8


class BodyLimits:
    """What is still arriving in this process: bodies in memory, bounded in their sum, and files, bounded in number.

    A client that sends slowly holds what it has sent, and many could fill the memory or the disk with it.
    `max_values` is how many JSON values a body may hold once it is complete.
    """

    def __init__(self, max_bytes: int, max_values: int = 200_000) -> None:
        self._max_bytes = max_bytes
        self.max_values = max_values
        self.held_bytes = 0
        self.file_count = 0

    @contextmanager
    def track_body(self) -> Iterator[Callable[[int], None]]:
        """While a body arrives. Gives a function to call with the size of each piece, which raises Overloaded."""
        size = counted = 0

        def count_bytes(count: int) -> None:
            nonlocal size, counted
            size += count
            more = max(0, size - UNCOUNTED_BYTES) - counted
            if self.held_bytes + more > self._max_bytes:
                raise Overloaded(detail="too many large requests are arriving; try again")
            counted += more
            self.held_bytes += more

        try:
            yield count_bytes
        finally:
            self.held_bytes -= counted

    @contextmanager
    def track_file(self) -> Iterator[None]:
        """While a file arrives. Raises Overloaded."""
        if self.file_count >= MAX_FILES:
            raise Overloaded(detail="too many files are arriving; try again")
        self.file_count += 1
        try:
            yield
        finally:
            self.file_count -= 1
