"""One reader's feed of a session: what this process records and what passes, bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum, auto
from weakref import ref

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.engine.streams.items import Item, MessageDeltas


class LogChange(Enum):
    """A sign that the log holds more than the feed was given."""

    CHANGED = auto()


LOG_CHANGED = LogChange.CHANGED


class Feed:
    """One reader's view of a session. Bounded, in number and in size: a reader that falls behind loses the oldest items
    here, and finds the durable ones in the log. One that nobody holds any more is no reader, closed or not."""

    def __init__(
        self,
        size: int,
        max_characters: int,
        on_close: Callable[[Feed], None] | None = None,
        *,
        is_quiet: bool = False,
    ) -> None:
        self.is_quiet = is_quiet
        self._on_close = on_close
        self._items: deque[Item] = deque()
        self._pieces_beside = 0
        self._size = size
        self._max_characters = max_characters
        self._character_count = 0
        self._waiter: asyncio.Future[None] | None = None
        self._wake_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._log_has_changed = False
        self._is_woken = False

    def put(self, item: Item) -> None:
        self._items.append(item)
        if isinstance(item, RecordedEvent):
            self._character_count += len(item.payload)
        elif isinstance(item, MessageDeltas):
            self._pieces_beside += len(item.deltas) - 1
        while len(self._items) > 1 and (
            len(self._items) + self._pieces_beside > self._size or self._character_count > self._max_characters
        ):
            self._take_oldest()
        if self._waiter is not None:
            self._wake()

    def close(self) -> None:
        """Get nothing more. One that is closed already stays so."""
        self._stop_timer()
        if self._on_close is not None:
            self._on_close(self)

    def signal_log_change(self) -> None:
        """Send the reader to the log."""
        self._log_has_changed = True
        self._wake()

    def wake(self) -> None:
        """End the reader's wait, or the next one if there is none, with nothing to take."""
        self._is_woken = True
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
        if isinstance(item, RecordedEvent):
            self._character_count -= len(item.payload)
        elif isinstance(item, MessageDeltas):
            self._pieces_beside -= len(item.deltas) - 1
        return item

    async def wait(self, seconds: float) -> LogChange | None:
        """Wait for an item, or that long. LOG_CHANGED when it is time to read the log before any item is taken."""
        if not (self._items or self._log_has_changed or self._is_woken):
            # For each piece of a message anew, and cheaper than an event in a time-out.
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            self._wake_at = loop.time() + seconds
            if self._timer is None or self._timer.when() > self._wake_at:
                self._set_timer(loop)
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._log_has_changed:
            self._log_has_changed = False
            return LOG_CHANGED
        # Kept until there is nothing else to tell: only then does the reader look at something else.
        self._is_woken = self._is_woken and bool(self._items)
        return None

    def take(self) -> Item | None:
        """The next item, if one is there."""
        return self._take_oldest() if self._items else None

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._stop_timer()
        self._timer = loop.call_at(self._wake_at, _look_at_time, ref(self))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look_at_time(self) -> None:
        """Wake a reader whose time is up. One that has slept anew meanwhile is looked at again when its time comes: a
        timer for each piece would cost more than the piece."""
        self._timer = None
        loop = asyncio.get_running_loop()
        if self._waiter is None or self._waiter.done():
            return
        if loop.time() >= self._wake_at:
            self._wake()
        else:
            self._set_timer(loop)


def _look_at_time(known: ref[Feed]) -> None:
    # A timer that held the feed would make a reader of one that nobody holds.
    if (feed := known()) is not None:
        feed.look_at_time()
