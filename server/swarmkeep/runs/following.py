"""Follows a session: the log first, then what passes, each event once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager

from swarmkeep.events.errors import Overloaded
from swarmkeep.events.facts import RecordedEvent
from swarmkeep.runs.hub import LOG_CHANGED, Feed, Hub, Item, LogChange, ends_message
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey, is_full_page


class ReadPosition:
    """The progress of a reader: the last event that it was given, and where the last message of each run ended, of as
    many runs as a feed may have pieces of."""

    def __init__(self, after: int, *, most_runs: int = 4096) -> None:
        self.after = after
        self._most_runs = most_runs
        self._hash = ""
        # In the order of their seqs.
        self._spoken: dict[str | None, int] = {}
        self._forgotten = 0

    def note(self, event: RecordedEvent) -> None:
        self.after, self._hash = event.seq, event.hash
        if ends_message(event):
            self._spoken.pop(event.run_id, None)
            self._spoken[event.run_id] = event.seq
            if len(self._spoken) > self._most_runs:
                # A reader may look on for as long as the session lasts, which has any number of runs.
                self._forgotten = self._spoken.pop(next(iter(self._spoken)))

    def restart(self) -> None:
        self.after, self._hash = 0, ""
        self._spoken.clear()
        self._forgotten = 0

    def is_in(self, found: RecordedEvent | None) -> bool:
        """Tell if this is the event that was given last; without it the session is another one that has got the id."""
        return found is not None and found.seq == self.after and self._hash in ("", found.hash)

    def is_fresh(self, item: Item) -> bool:
        """Tell if it is a piece of a message that has not been given whole meanwhile."""
        return not isinstance(item, RecordedEvent) and item.seq >= self._spoken.get(item.run_id, self._forgotten)


class PageLimits:
    """The limits of how much of the log a reader reads at once, and `at_once`, how many readers do: all that share this
    object.

    The others wait for their turn, but not for ever: `turn_seconds`.
    """

    def __init__(
        self, events: int = 200, bytes: int = 250_000, at_once: int = 4, *, turn_seconds: float = 30.0
    ) -> None:
        self.events = events
        self.bytes = bytes
        self.turns = asyncio.Semaphore(at_once)
        self._turn_seconds = turn_seconds

    @asynccontextmanager
    async def take_turn(self) -> AsyncGenerator[None]:
        """Raises Overloaded: where each read waits for a database that does not answer, a thousand readers would learn
        of it one after the other, within hours, and be told nothing meanwhile."""
        try:
            async with asyncio.timeout(self._turn_seconds):
                await self.turns.acquire()
        except TimeoutError:
            raise Overloaded(detail="too many streams read at once, or the database does not answer") from None
        try:
            yield
        finally:
            self.turns.release()


async def read_pages(
    store: SqlStore, key: SessionKey, *, after: int, upto: int | None = None, pages: PageLimits
) -> AsyncGenerator[RecordedEvent]:
    """Events from the log, a page at a time: a reader holds no more than that, however large the session is."""
    found = _read_whole_pages(store, key, after, upto, pages)
    async with aclosing(found):
        async for events in found:
            while events:
                yield events.pop(0)


async def _read_whole_pages(
    store: SqlStore, key: SessionKey, after: int, upto: int | None, limits: PageLimits
) -> AsyncGenerator[list[RecordedEvent]]:
    more = True
    while more:
        async with limits.take_turn():
            events = await store.read(key, after=after, upto=upto, limit=limits.events, max_bytes=limits.bytes)
        more = is_full_page(events, limits.events, limits.bytes)
        if len(events) > 1 and len(events[-1].payload) >= limits.bytes:
            # Read again once the others have been taken: until then a slow reader would hold it besides them.
            events.pop()
        if events:
            after = events[-1].seq
            yield events


Batch = list[Item]
"""Items that are there at once, so that they can be sent at once; none, where nothing has happened for a while."""

# No more is taken of what is there at once, so that no other task waits for long.
_BATCH_ITEMS = 100


async def flatten(batches: AsyncGenerator[Batch]) -> AsyncGenerator[Item | None]:
    """The items one by one; None where nothing has happened for a while."""
    async with aclosing(batches):
        async for batch in batches:
            if not batch:
                yield None
            # While a slow reader takes one, nothing here holds it besides.
            while batch:
                yield batch.pop(0)


async def follow_batches(
    store: SqlStore,
    hub: Hub,
    key: SessionKey,
    *,
    after: int,
    silent_seconds: float,
    pages: PageLimits | None = None,
    feed: Feed | None = None,
    is_complete: bool = False,
) -> AsyncGenerator[Batch]:
    """Every event after `after`, once and in order, and what passes in between; never ends by itself.

    A session that has no event `after`, or is recreated meanwhile, is given from its beginning: the seq goes back.
    An empty batch says that nothing has happened for `silent_seconds`, for the reader to give a sign of life. Who takes
    a batch may empty it: nothing else holds what is in it. Of what
    other processes record the hub has to be told (see Watcher): then the log is read. A `feed` that was opened before
    is closed at the end; one that `is_complete` has been there since before the event behind `after`, so that the log
    is not read first, and what passed meanwhile is given, too.
    """
    feed = feed or hub.open_feed(key)
    try:
        position = ReadPosition(after)
        found: LogChange | None = LOG_CHANGED
        while True:
            if not is_complete:
                # Behind an event that came without the ones before it nothing is older than they are.
                pieces = feed if found is LOG_CHANGED else None
                async with aclosing(_read_on(store, key, position, pieces, pages or PageLimits())) as missed:
                    async for batch in missed:
                        yield batch
            is_complete = False
            while (found := await feed.wait(silent_seconds)) is not LOG_CHANGED:
                taken, is_gapless = _take_batch(feed, position)
                if taken is not None:
                    yield taken
                if not is_gapless:
                    break
    finally:
        feed.close()


def _take_batch(feed: Feed, position: ReadPosition) -> tuple[Batch | None, bool]:
    """Take the part of the feed that is new to the reader; and False where an event is missing, which the log has.

    Empty if there was nothing in the feed, None if there was nothing new.
    """
    batch: Batch = []
    if not feed.items:
        return batch, True
    while feed.items and len(batch) < _BATCH_ITEMS:
        item = feed.take()
        if position.is_fresh(item):
            batch.append(item)
        elif item.seq == position.after + 1 and isinstance(item, RecordedEvent):
            position.note(item)
            batch.append(item)
        elif item.seq > position.after:
            return batch or None, False
    return batch or None, True


async def _read_on(
    store: SqlStore, key: SessionKey, position: ReadPosition, feed: Feed | None, limits: PageLimits
) -> AsyncGenerator[Batch]:
    """Read the part of the log beyond the position; all of it if the session is not the one that the position is in.

    Each event comes after the pieces in `feed` that passed before it: those of a message are there by the time that the
    message can be read.
    """
    if position.after:
        last = await store.read(key, after=position.after - 1, upto=position.after)
        if not position.is_in(last[0] if last else None):
            position.restart()
    pages = _read_whole_pages(store, key, position.after, None, limits)
    async with aclosing(pages):
        async for events in pages:
            while events:
                yield _take_events(events, position, feed)


def _take_events(events: list[RecordedEvent], position: ReadPosition, feed: Feed | None) -> Batch:
    """The first events out of a page, which keeps none of them."""
    batch: Batch = []
    for event in events[:_BATCH_ITEMS]:
        batch += filter(position.is_fresh, feed.take_before(event.seq) if feed else ())
        position.note(event)
        batch.append(event)
    del events[:_BATCH_ITEMS]
    return batch
