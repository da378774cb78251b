"""Streaming: an in-process hub passes events and deltas on at once; the log fills what a reader missed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from enum import Enum, auto
from functools import partial
from itertools import zip_longest
from weakref import WeakSet

import msgspec

from swarmkeep.domain.decisions.partial import NOTHING_SAID, PartialReply
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import MessageAdded, RunEnded, RunResumed, RunStarted
from swarmkeep.engine.loop import Item, MessageDelta, MessageStarted
from swarmkeep.engine.models.secrets import NO_SECRETS, Secrets
from swarmkeep.store.ports import EventStore, SessionKey
from swarmkeep.store.ports.log import is_full_page


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
        self._arrived = asyncio.Event()
        self._log_has_changed = False

    def put(self, item: Item) -> None:
        self._items.append(item)
        self._character_count += _count_characters(item)
        while len(self._items) > self._size or (self._character_count > self._max_characters and len(self._items) > 1):
            self._take_oldest()
        self._arrived.set()

    def close(self) -> None:
        """Get nothing more. One that is closed already stays so."""
        if self._on_close is not None:
            self._on_close(self)

    def signal_log_change(self) -> None:
        """Send the reader to the log."""
        self._log_has_changed = True
        self._arrived.set()

    def _take_oldest(self) -> Item:
        item = self._items.popleft()
        self._character_count -= _count_characters(item)
        return item

    async def get(self, seconds: float) -> Item | LogChange | None:
        """The next item, LOG_CHANGED when it is time to read the log, or None when nothing came within that time."""
        if not (self._items or self._log_has_changed):
            self._arrived.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._arrived.wait()
            except TimeoutError:
                return None
        if self._log_has_changed:
            self._log_has_changed = False
            return LOG_CHANGED
        return self._take_oldest()


def _count_characters(item: Item) -> int:
    return len(item.payload) if isinstance(item, RecordedEvent) else 0


def _merge_deltas(passing: list[Item]) -> Iterator[Item]:
    """The message in progress for somebody who joins in its middle: texts that follow each other in one piece."""
    texts: list[str] = []
    for item, following in zip_longest(passing, passing[1:]):
        if not isinstance(item, MessageDelta) or item.delta.get("tool_calls"):
            yield item
            continue
        texts.append(item.delta.get("content") or "")
        if not isinstance(following, MessageDelta) or following.delta.get("tool_calls"):
            yield msgspec.structs.replace(item, delta={**item.delta, "content": "".join(texts)})
            texts.clear()


class Hub:
    """Passes items from the run that makes them to the readers in the same process.

    Of what passes, only the message in progress is kept, so that whoever joins in its middle has all of it.
    """

    def __init__(
        self, *, feed_size: int = 4096, feed_characters: int = 1_000_000, secrets: Secrets = NO_SECRETS
    ) -> None:
        self._feeds: dict[SessionKey, WeakSet[Feed]] = {}
        self._partial_items: dict[SessionKey, list[Item]] = {}
        self._feed_size = feed_size
        self._feed_characters = feed_characters
        self._secrets = secrets
        self._observers: list[Callable[[RecordedEvent], None]] = []

    def add_observer(self, observer: Callable[[RecordedEvent], None]) -> None:
        """Have each event that this process records shown to `observer`, whatever its session."""
        self._observers.append(observer)

    def publish(self, key: SessionKey, item: Item) -> None:
        self._keep_partial(key, item)
        if isinstance(item, RecordedEvent):
            for observer in self._observers:
                observer(item)
        for feed in self._feeds.get(key, ()):
            feed.put(item)

    def _keep_partial(self, key: SessionKey, item: Item) -> None:
        if isinstance(item, MessageStarted):
            self._partial_items[key] = [item]
        elif isinstance(item, MessageDelta):
            self._partial_items.setdefault(key, []).append(item)
        elif _ends_message(item) and (passing := self._partial_items.get(key)) and passing[0].run_id == item.run_id:
            del self._partial_items[key]

    def get_partial(self, key: SessionKey) -> PartialReply:
        """What has come so far of the message in progress, as it may be recorded."""
        items = [item for item in self._partial_items.get(key, ()) if isinstance(item, MessageDelta)]
        if not items:
            return NOTHING_SAID
        text = "".join(item.delta.get("content") or "" for item in items)
        return PartialReply(
            run_id=items[0].run_id, seq=items[0].seq, agent=items[0].agent, text=self._secrets.mask(text)
        )

    def drop_partial(self, key: SessionKey) -> None:
        """Forget the message in progress: nobody goes on with it here."""
        self._partial_items.pop(key, None)

    def signal_log_change(self, key: SessionKey) -> None:
        """Have the session's readers look into the log: another process has added to it."""
        for feed in self._feeds.get(key, ()):
            feed.signal_log_change()

    def has_readers(self, key: SessionKey) -> bool:
        return bool(self._feeds.get(key))

    def list_watched_keys(self) -> Iterable[SessionKey]:
        """Those that somebody looks at."""
        self._forget_unread()
        return self._feeds.keys()

    @property
    def reader_count(self) -> int:
        return sum(map(len, self._feeds.values()))

    def open_feed(self, key: SessionKey) -> Feed:
        """A feed from now on, beginning with the message in progress; whoever opens it closes it."""
        feed = Feed(self._feed_size, self._feed_characters, partial(self._close_feed, key))
        for item in _merge_deltas(self._partial_items.get(key, [])):
            feed.put(item)
        self._feeds.setdefault(key, WeakSet()).add(feed)
        return feed

    def _close_feed(self, key: SessionKey, feed: Feed) -> None:
        if key in self._feeds:
            self._feeds[key].discard(feed)
            self._forget_unread()

    def _forget_unread(self) -> None:
        for key in [key for key, feeds in self._feeds.items() if not feeds]:
            del self._feeds[key]


def _ends_message(event: RecordedEvent) -> bool:
    """Whether with this event nothing more comes of what its run's model was saying; a patch, say, does not end it."""
    fact = event.fact
    return isinstance(fact, RunStarted | RunResumed | RunEnded) or (
        isinstance(fact, MessageAdded) and fact.completion is not None
    )


class _ReadPosition:
    """How far a reader is: the last event that it was given, and where each run's last message ended."""

    def __init__(self, after: int) -> None:
        self.after = after
        self._hash = ""
        self._spoken: dict[str | None, int] = {}

    def note(self, event: RecordedEvent) -> None:
        self.after, self._hash = event.seq, event.hash
        if _ends_message(event):
            self._spoken[event.run_id] = event.seq

    def restart(self) -> None:
        self.after, self._hash = 0, ""
        self._spoken.clear()

    def is_in(self, found: RecordedEvent | None) -> bool:
        """Whether this is the event that was given last; without it the session is another one that has got the id."""
        return found is not None and found.seq == self.after and self._hash in ("", found.hash)

    def is_stale(self, item: MessageStarted | MessageDelta) -> bool:
        """Whether it is a piece of a message that has meanwhile been given whole."""
        return item.seq < self._spoken.get(item.run_id, 0)


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
        while True:
            if not is_complete:
                async with aclosing(_read_on(store, key, position, page_events, page_bytes)) as events:
                    async for event in events:
                        position.note(event)
                        yield event
            is_complete = False
            while (item := await feed.get(poll_seconds)) is not LOG_CHANGED:
                if item is None:
                    yield None
                elif not isinstance(item, RecordedEvent):
                    if not position.is_stale(item):
                        yield item
                elif item.seq == position.after + 1:
                    position.note(item)
                    yield item
                elif item.seq > position.after:
                    break
    finally:
        feed.close()


async def _read_on(
    store: EventStore, key: SessionKey, position: _ReadPosition, page_events: int, page_bytes: int
) -> AsyncGenerator[RecordedEvent]:
    """What the log holds beyond the position; all of it if the session is not the one that the position is in."""
    if position.after:
        last = await store.read(key, after=position.after - 1, upto=position.after)
        if not position.is_in(last[0] if last else None):
            position.restart()
    pages = read_pages(store, key, after=position.after, page_events=page_events, page_bytes=page_bytes)
    async with aclosing(pages) as events:
        async for event in events:
            yield event
