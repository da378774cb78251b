"""Follows a session: the log first, then what passes, each event once and in order."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.engine.loop import Item
from swarmkeep.engine.streams.feed import LOG_CHANGED, Feed, LogChange
from swarmkeep.engine.streams.hub import Hub, ends_message
from swarmkeep.store.ports import EventStore, SessionKey
from swarmkeep.store.ports.log import is_full_page


class _ReadPosition:
    """How far a reader is: the last event that it was given, and where each run's last message ended."""

    def __init__(self, after: int) -> None:
        self.after = after
        self._hash = ""
        self._spoken: dict[str | None, int] = {}

    def note(self, event: RecordedEvent) -> None:
        self.after, self._hash = event.seq, event.hash
        if ends_message(event):
            self._spoken[event.run_id] = event.seq

    def restart(self) -> None:
        self.after, self._hash = 0, ""
        self._spoken.clear()

    def is_in(self, found: RecordedEvent | None) -> bool:
        """Whether this is the event that was given last; without it the session is another one that has got the id."""
        return found is not None and found.seq == self.after and self._hash in ("", found.hash)

    def is_fresh(self, item: Item) -> bool:
        """Whether it is a piece of a message that has not been given whole meanwhile."""
        return not isinstance(item, RecordedEvent) and item.seq >= self._spoken.get(item.run_id, 0)


async def read_pages(
    store: EventStore, key: SessionKey, *, after: int, upto: int | None = None, page_events: int, page_bytes: int
) -> AsyncGenerator[RecordedEvent]:
    """Events from the log, a page at a time: a reader holds no more than that, however large the session is."""
    more = True
    while more:
        events = await store.read(key, after=after, upto=upto, limit=page_events, max_bytes=page_bytes)
        more = is_full_page(events, page_events, page_bytes)
        for event in events:
            yield event
            after = event.seq


async def follow(
    store: EventStore,
    hub: Hub,
    key: SessionKey,
    *,
    after: int,
    poll_seconds: float,
    page_events: int = 200,
    page_bytes: int = 4_000_000,
    feed: Feed | None = None,
    is_complete: bool = False,
) -> AsyncGenerator[Item | None]:
    """Every event after `after`, once and in order, and what passes in between; never ends by itself.

    A session that has no event `after`, or is made anew meanwhile, is given from its beginning: the seq goes back.
    Gives None when nothing has happened for `poll_seconds`, for the reader to give a sign of life. Of what other
    processes record the hub has to be told (see Watcher): then the log is read. A `feed` that was opened before is
    closed at the end; one that `is_complete` has been there since before the event behind `after`, so that the log is
    not read first, and what passed meanwhile is given, too.
    """
    feed = feed or hub.open_feed(key)
    try:
        position = _ReadPosition(after)
        item: Item | LogChange | None = LOG_CHANGED
        while True:
            if not is_complete:
                # Behind an event that came without the ones before it nothing is older than they are.
                pieces = feed if item is LOG_CHANGED else None
                async with aclosing(_read_on(store, key, position, pieces, page_events, page_bytes)) as found:
                    async for missed in found:
                        yield missed
            is_complete = False
            while (item := await feed.get(poll_seconds)) is not LOG_CHANGED:
                if item is None:
                    yield None
                elif position.is_fresh(item):
                    yield item
                elif item.seq == position.after + 1 and isinstance(item, RecordedEvent):
                    position.note(item)
                    yield item
                elif item.seq > position.after:
                    break
    finally:
        feed.close()


async def _read_on(
    store: EventStore, key: SessionKey, position: _ReadPosition, feed: Feed | None, page_events: int, page_bytes: int
) -> AsyncGenerator[Item]:
    """What the log holds beyond the position; all of it if the session is not the one that the position is in.

    Each event comes after the pieces in `feed` that passed before it: those of a message are there by the time that the
    message can be read.
    """
    if position.after:
        last = await store.read(key, after=position.after - 1, upto=position.after)
        if not position.is_in(last[0] if last else None):
            position.restart()
    pages = read_pages(store, key, after=position.after, page_events=page_events, page_bytes=page_bytes)
    async with aclosing(pages) as events:
        async for event in events:
            for piece in feed.take_before(event.seq) if feed else ():
                if position.is_fresh(piece):
                    yield piece
            position.note(event)
            yield event
