"""The hub: passes events and pieces of messages to the readers in the same process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import chain
from weakref import ref

from msgspec.structs import replace

from swarmkeep.domain.decisions.partial import NOTHING_SAID, PartialReply
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import MessageAdded, RunEnded, RunResumed, RunStarted
from swarmkeep.engine.models.secrets import NO_SECRETS, Secrets
from swarmkeep.engine.streams.feed import Feed
from swarmkeep.engine.streams.items import Item, MessageDeltas, MessageStarted, join_text, merge_texts
from swarmkeep.store.ports import SessionKey


def ends_message(event: RecordedEvent) -> bool:
    """Whether with this event nothing more comes of what its run's model was saying; a patch, say, does not end it."""
    fact = event.fact
    return isinstance(fact, RunStarted | RunResumed | RunEnded) or (
        isinstance(fact, MessageAdded) and fact.completion is not None
    )


def _merge_deltas(passing: list[Item]) -> Iterator[Item]:
    """The message in progress for somebody who joins in its middle: texts that follow each other in one piece."""
    said = [item for item in passing if isinstance(item, MessageDeltas)]
    yield from (item for item in passing if not isinstance(item, MessageDeltas))
    if said:
        yield replace(said[0], deltas=merge_texts(chain.from_iterable(item.deltas for item in said)))


class Hub:
    """Passes items from the run that makes them to the readers in the same process.

    Of what passes, only the message in progress is kept, so that whoever joins in its middle has all of it.
    """

    def __init__(
        self, *, feed_size: int = 4096, feed_characters: int = 1_000_000, secrets: Secrets = NO_SECRETS
    ) -> None:
        # To go through a WeakSet takes longer than what is done for each piece.
        self._feeds: dict[SessionKey, list[ref[Feed]]] = {}
        self._partial_items: dict[SessionKey, list[Item]] = {}
        self._feed_size = feed_size
        self._feed_characters = feed_characters
        self._secrets = secrets
        self._observers: list[Callable[[RecordedEvent], None]] = []
        self._change_listeners: list[Callable[[SessionKey], None]] = []

    def add_change_listener(self, listener: Callable[[SessionKey], None]) -> None:
        """Have `listener` called with each session in which something may have happened, here or elsewhere."""
        self._change_listeners.append(listener)

    def note_change(self, key: SessionKey) -> None:
        """Something may have happened in a session, whether or not anybody reads it here."""
        for listener in self._change_listeners:
            listener(key)

    def add_observer(self, observer: Callable[[RecordedEvent], None]) -> None:
        """Have each event that this process records shown to `observer`, whatever its session."""
        self._observers.append(observer)

    def publish(self, key: SessionKey, *events: RecordedEvent) -> None:
        """Pass on what was recorded. A run may begin with thousands of messages."""
        for event in events:
            passing = self._partial_items.get(key)
            if passing and passing[0].run_id == event.run_id and ends_message(event):
                del self._partial_items[key]
            for observer in self._observers:
                observer(event)
        self.note_change(key)
        for feed in self._list_feeds(key):
            for event in events:
                feed.put(event)

    def show(self, key: SessionKey, piece: MessageDeltas | MessageStarted) -> None:
        """Pass on what a model says, as it says it."""
        if isinstance(piece, MessageStarted):
            self._partial_items[key] = [piece]
        else:
            self._partial_items.setdefault(key, []).append(piece)
        for known in self._feeds.get(key, ()):
            if (feed := known()) is not None and not feed.is_quiet:
                feed.put(piece)

    def get_partial(self, key: SessionKey) -> PartialReply:
        """What has come so far of the message in progress, as it may be recorded."""
        items = [item for item in self._partial_items.get(key, ()) if isinstance(item, MessageDeltas)]
        if not items:
            return NOTHING_SAID
        text = "".join([join_text(item.deltas) for item in items])
        return PartialReply(
            run_id=items[0].run_id, seq=items[0].seq, agent=items[0].agent, text=self._secrets.mask(text)
        )

    def drop_partial(self, key: SessionKey) -> None:
        """Forget the message in progress: nobody goes on with it here."""
        self._partial_items.pop(key, None)

    def signal_log_change(self, key: SessionKey) -> None:
        """Have the session's readers look into the log: another process has added to it."""
        self.note_change(key)
        for feed in self._list_feeds(key):
            feed.signal_log_change()

    def wake_readers(self) -> None:
        """Give all readers a sign of life: for them to look at something else than what they read."""
        for key in self._feeds:
            for feed in self._list_feeds(key):
                feed.wake()

    def has_readers(self, key: SessionKey) -> bool:
        """Whether anybody looks on as a model speaks."""
        return any(not feed.is_quiet for feed in self._list_feeds(key))

    def _list_feeds(self, key: SessionKey) -> list[Feed]:
        return [feed for known in self._feeds.get(key, ()) if (feed := known()) is not None]

    def list_watched_keys(self) -> Collection[SessionKey]:
        """The sessions that somebody looks at."""
        self._forget_unread()
        return self._feeds

    def is_watched(self, key: SessionKey) -> bool:
        """Whether a session may be one of these."""
        return key in self._feeds

    @property
    def reader_count(self) -> int:
        return sum(len(self._list_feeds(key)) for key in self._feeds)

    def open_feed(self, key: SessionKey, *, is_quiet: bool = False) -> Feed:
        """A feed from now on, beginning with the message in progress; whoever opens it closes it.

        A quiet one is given what is recorded only, and no model is asked to stream for it.
        """
        feed = Feed(self._feed_size, self._feed_characters, partial(self._close_feed, key), is_quiet=is_quiet)
        for item in () if is_quiet else _merge_deltas(self._partial_items.get(key, [])):
            feed.put(item)
        self._feeds.setdefault(key, []).append(ref(feed))
        return feed

    def _close_feed(self, key: SessionKey, feed: Feed) -> None:
        others = [known for known in self._feeds.get(key, ()) if known() is not feed]
        if others:
            self._feeds[key] = others
        else:
            self._feeds.pop(key, None)

    def _forget_unread(self) -> None:
        for key in [key for key in self._feeds if not self._list_feeds(key)]:
            del self._feeds[key]
