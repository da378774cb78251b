"""One reader's feed of a session: what this process records and what passes, bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum, auto

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.engine.loop import Item


class LogChange(Enum):
    """A sign that the log holds more than the feed was given."""

    CHANGED = auto()


LOG_CHANGED = LogChange.CHANGED


class Feed:
    """One reader's view of a session. Bounded, in number and in size: a reader that falls behind loses the oldest items
    here, and finds the durable ones in the log. One that nobody holds any more is no reader, closed or not."""

    def __init__(self, size: int, max_characters: int, on_close: Callable[[Feed], None] | None = None) -> None:
        self._on_close = on_close
        self._items: deque[Item] = deque()
        self._size = size
        self._max_characters = max_characters
        self._character_count = 0
        self._waiter: asyncio.Future[None] | None = None
        self._log_has_changed = False

    def put(self, item: Item) -> None:
        self._items.append(item)
        self._character_count += _count_characters(item)
        while len(self._items) > self._size or (self._character_count > self._max_characters and len(self._items) > 1):
            self._take_oldest()
        self._wake()

    def close(self) -> None:
        """Get nothing more. One that is closed already stays so."""
        if self._on_close is not None:
            self._on_close(self)

    def signal_log_change(self) -> None:
        """Send the reader to the log."""
        self._log_has_changed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take_before(self, seq: int) -> Iterator[Item]:
        """What came first and belongs before event `seq`."""
        while self._items and self._items[0].seq < seq:
            yield self._take_oldest()

    def _take_oldest(self) -> Item:
        item = self._items.popleft()
        self._character_count -= _count_characters(item)
        return item

    async def get(self, seconds: float) -> Item | LogChange | None:
        """The next item, LOG_CHANGED when it is time to read the log, or None when nothing came within that time."""
        if not (self._items or self._log_has_changed):
            await self._wait(seconds)
            if not (self._items or self._log_has_changed):
                return None
        if self._log_has_changed:
            self._log_has_changed = False
            return LOG_CHANGED
        return self._take_oldest()

    async def _wait(self, seconds: float) -> None:
        # For each piece of a message anew, and cheaper than an event in a time-out.
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(seconds, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None


def _count_characters(item: Item) -> int:
    return len(item.payload) if isinstance(item, RecordedEvent) else 0
