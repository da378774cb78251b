"""What happens now, for whoever looks on: an in-process hub for speed, the log for truth."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

from swarmkeep.domain.events import Recorded
from swarmkeep.engine.loop import Item, MessageDelta, MessageStarted
from swarmkeep.store.port import EventStore, SessionKey


class Feed:
    """One reader's view of a session. Bounded: a reader that falls behind loses the oldest items here, and finds the
    durable ones in the log."""

    def __init__(self, size: int) -> None:
        self._items: deque[Item] = deque(maxlen=size)
        self._arrived = asyncio.Event()

    def put(self, item: Item) -> None:
        self._items.append(item)
        self._arrived.set()

    async def get(self, seconds: float) -> Item | None:
        """The next item, or None when none came within that time."""
        if not self._items:
            self._arrived.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._arrived.wait()
            except TimeoutError:
                return None
        return self._items.popleft()


class Hub:
    """Passes items from the run that makes them to the readers in the same process.

    Of what passes, only the message in progress is kept, so that whoever joins in its middle has all of it.
    """

    def __init__(self, *, feed_size: int = 4096) -> None:
        self._feeds: dict[SessionKey, set[Feed]] = {}
        self._passing: dict[SessionKey, list[Item]] = {}
        self._feed_size = feed_size

    def publish(self, key: SessionKey, item: Item) -> None:
        self._keep(key, item)
        for feed in self._feeds.get(key, ()):
            feed.put(item)

    def _keep(self, key: SessionKey, item: Item) -> None:
        if isinstance(item, MessageStarted):
            self._passing[key] = [item]
        elif isinstance(item, MessageDelta):
            self._passing.setdefault(key, []).append(item)
        elif item.run_id is not None:
            self._passing.pop(key, None)

    def partial(self, key: SessionKey, run_id: str) -> str:
        """What the model has said so far in a message of that run which is not complete yet."""
        deltas = [item for item in self._passing.get(key, ()) if isinstance(item, MessageDelta)]
        return "".join(item.delta.get("content") or "" for item in deltas if item.run_id == run_id)

    def watched(self, key: SessionKey) -> bool:
        return key in self._feeds

    @property
    def reader_count(self) -> int:
        return sum(map(len, self._feeds.values()))

    @contextmanager
    def subscribe(self, key: SessionKey) -> Iterator[Feed]:
        feed = Feed(self._feed_size)
        for item in self._passing.get(key, ()):
            feed.put(item)
        self._feeds.setdefault(key, set()).add(feed)
        try:
            yield feed
        finally:
            feeds = self._feeds[key]
            feeds.discard(feed)
            if not feeds:
                del self._feeds[key]


async def follow(
    store: EventStore, hub: Hub, key: SessionKey, *, after: int, poll_seconds: float
) -> AsyncGenerator[Item | None]:
    """Every event after `after`, once and in order, and what passes in between; never ends by itself.

    Gives None when nothing has happened for `poll_seconds`: events of other processes are found in the log within
    that time, and the reader may use the moment for a sign of life.
    """
    with hub.subscribe(key) as feed:
        while True:
            for event in await store.read(key, after=after):
                yield event
                after = event.seq
            while (item := await feed.get(poll_seconds)) is not None:
                if not isinstance(item, Recorded):
                    # Pieces of a message that has meanwhile been given whole are stale.
                    if item.seq >= after:
                        yield item
                elif item.seq == after + 1:
                    yield item
                    after = item.seq
                elif item.seq > after:
                    break
            if item is None:
                yield None
