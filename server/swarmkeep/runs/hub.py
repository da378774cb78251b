"""The hub: passes events and pieces of messages to the readers in the same process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator
from contextlib import aclosing
from enum import Enum, auto
from functools import partial
from itertools import chain
from typing import TypeVar
from weakref import ref

import msgspec
from msgspec.structs import replace

from swarmkeep.events.codec import Json
from swarmkeep.events.facts import MessageAdded, RecordedEvent, RunEnded, RunResumed, RunStarted, RunWaiting
from swarmkeep.events.state import NOTHING_SAID, STATUS_BY_ENDING, PartialReply, Run, State
from swarmkeep.events.views import RunView, find_run
from swarmkeep.models.failures import NO_SECRETS, Secrets
from swarmkeep.store.records import SessionKey

# The events of a session, as they happen: what is recorded, and what passes.


class MessageStarted(msgspec.Struct, frozen=True):
    """A model call has begun on the history up to `seq`; what it says follows as deltas."""

    run_id: str
    agent: str
    seq: int


class MessageDeltas(msgspec.Struct, frozen=True):
    """Pieces of what a model says on the history up to `seq`, those that came at once; passing, never recorded."""

    run_id: str
    agent: str
    seq: int
    deltas: list[Json]


Item = RecordedEvent | MessageStarted | MessageDeltas


def join_text(deltas: Iterable[Json]) -> str:
    """The text that pieces add up to."""
    return "".join([delta.get("content") or "" for delta in deltas])


def merge_texts(deltas: Iterable[Json]) -> list[Json]:
    """The same pieces, with texts that follow each other in one."""
    merged: list[Json] = []
    texts: list[str] = []
    for delta in deltas:
        if not any(value for key, value in delta.items() if key not in ("role", "content")):
            texts.append(delta.get("content") or "")
            continue
        if any(texts):
            merged.append({"content": "".join(texts)})
        texts = []
        merged.append(delta)
    if any(texts):
        merged.append({"content": "".join(texts)})
    return merged


# One reader's feed of a session: what this process records and what passes, bounded.


class LogChange(Enum):
    """A sign that the log holds more than the feed was given."""

    CHANGED = auto()


LOG_CHANGED = LogChange.CHANGED


class Feed:
    """One reader's view of a session. Bounded, in number and in size: a reader that falls behind loses the oldest items
    here, and finds the durable ones in the log. One that is no longer held is no reader, closed or not."""

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
        self.items: deque[Item] = deque()
        """The items that were not taken yet; `take` takes the first."""
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
        self.items.append(item)
        if isinstance(item, RecordedEvent):
            self._character_count += len(item.payload)
        elif isinstance(item, MessageDeltas):
            self._pieces_beside += len(item.deltas) - 1
        while len(self.items) > 1 and (
            len(self.items) + self._pieces_beside > self._size or self._character_count > self._max_characters
        ):
            self.take()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

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
        """Take the items that came first and belong before event `seq`."""
        while self.items and self.items[0].seq < seq:
            yield self.take()

    def take(self) -> Item:
        """Take the item that came first. There must be one."""
        item = self.items.popleft()
        if isinstance(item, RecordedEvent):
            self._character_count -= len(item.payload)
        elif isinstance(item, MessageDeltas):
            self._pieces_beside -= len(item.deltas) - 1
        return item

    async def wait(self, seconds: float) -> LogChange | None:
        """Wait for an item, or that long. LOG_CHANGED when it is time to read the log before any item is taken."""
        if not (self.items or self._log_has_changed or self._is_woken):
            # For each piece of a message again, and cheaper than an event in a time-out.
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
        self._is_woken = self._is_woken and bool(self.items)
        return None

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._stop_timer()
        self._timer = loop.call_at(self._wake_at, _look_at_time, ref(self))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look_at_time(self) -> None:
        """Wake a reader whose time is up. One that sleeps again meanwhile is looked at again when its time comes: a
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
    # A timer that held the feed would make a reader of one that is no longer held.
    if (feed := known()) is not None:
        feed.look_at_time()


def ends_message(event: RecordedEvent) -> bool:
    """Tell if with this event nothing more comes of what its run's model was saying; a patch, say, does not end it."""
    fact = event.fact
    return isinstance(fact, RunStarted | RunResumed | RunEnded) or (
        isinstance(fact, MessageAdded) and fact.completion is not None
    )


def _merge_deltas(passing: list[Item]) -> Iterator[Item]:
    """Merge the message in progress for a reader who joins in it: texts that follow each other in one piece."""
    said = [item for item in passing if isinstance(item, MessageDeltas)]
    yield from (item for item in passing if not isinstance(item, MessageDeltas))
    if said:
        yield replace(said[0], deltas=merge_texts(chain.from_iterable(item.deltas for item in said)))


class Hub:
    """Passes items from the run that makes them to the readers in the same process.

    Only the message in progress is kept, so that a reader who joins in its middle has all of it.
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
        """Have each event that this process records shown to `observer`, of any session."""
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
        for known in self._feeds.get(key, ()):
            if (feed := known()) is not None:
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
        """Return the part of the message in progress that has come so far, as it may be recorded."""
        items = [item for item in self._partial_items.get(key, ()) if isinstance(item, MessageDeltas)]
        if not items:
            return NOTHING_SAID
        text = "".join([join_text(item.deltas) for item in items])
        return PartialReply(
            run_id=items[0].run_id, seq=items[0].seq, agent=items[0].agent, text=self._secrets.mask(text)
        )

    def drop_partial(self, key: SessionKey) -> None:
        """Forget the message in progress: it does not go on here."""
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
        """Tell if any reader looks on as a model speaks."""
        return key in self._feeds and any(not feed.is_quiet for feed in self._list_feeds(key))

    def _list_feeds(self, key: SessionKey) -> list[Feed]:
        return [feed for known in self._feeds.get(key, ()) if (feed := known()) is not None]

    def list_watched_keys(self) -> Collection[SessionKey]:
        """List the sessions that have readers."""
        self._forget_unread()
        return self._feeds

    def is_watched(self, key: SessionKey) -> bool:
        """Tell if a session may be one of these."""
        return key in self._feeds

    @property
    def reader_count(self) -> int:
        return sum(len(self._list_feeds(key)) for key in self._feeds)

    def open_feed(self, key: SessionKey, *, is_quiet: bool = False) -> Feed:
        """Open a feed from now on, beginning with the message in progress; the caller closes it.

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


# Items that come from a generator, with signs of life while none comes.

T = TypeVar("T")

# A reader that is slower than this holds up what it reads.
_MOST_AHEAD = 100


async def with_pauses(items: AsyncGenerator[T], seconds: float) -> AsyncGenerator[T | None]:
    """The items, and None whenever none has come for so long. They are made in a task of their own, which ends with
    the reader: what makes them may have time limits, and those are of a task."""
    made: asyncio.Queue[T] = asyncio.Queue(_MOST_AHEAD)
    maker = asyncio.create_task(_make(items, made))
    try:
        while not (maker.done() and made.empty()):
            if made.empty():
                getter = asyncio.ensure_future(made.get())
                try:
                    await asyncio.wait((getter, maker), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    # One that is cancelled takes nothing.
                    is_taken = getter.done() or not getter.cancel()
                if is_taken:
                    yield getter.result()
                elif not maker.done():
                    yield None
            else:
                yield made.get_nowait()
        await maker
    finally:
        maker.cancel()
        await asyncio.gather(maker, return_exceptions=True)


async def _make(items: AsyncGenerator[T], made: asyncio.Queue[T]) -> None:
    async with aclosing(items):
        async for item in items:
            await made.put(item)


# Tell if a run is over, for now or for good, as far as an event or a state tells.

TURNING_POINTS: tuple[str, ...] = (
    RunStarted.type,
    RunWaiting.type,
    RunResumed.type,
    *(ending.type for ending in STATUS_BY_ENDING),
)
"""The events that a run begins, waits, goes on and ends with."""


def is_open(run: Run | RunView | None) -> bool:
    """Tell if a run goes on by itself, now or when its turn comes."""
    return run is not None and run.status in ("running", "queued")


def may_be_last(event: RecordedEvent) -> bool:
    """Tell if a run ended or waited with this event."""
    return isinstance(event.fact, RunEnded | RunWaiting)


def has_stayed(run: Run, event: RecordedEvent) -> bool:
    """Tell if a run that ended or waited with this event has not gone on since, and is not about to.

    While it waits, some of what it waits for may have been recorded.
    """
    return not is_open(run) and event.seq >= (run.last_wait if run.status == "waiting" else run.last_seq)


def is_as_it_was(state: State, run_id: str, at: int) -> bool:
    """Tell if a state says what a run was after event `at`: it was over by then, and its messages are as they were."""
    run = find_run(state, run_id)
    is_over = run is not None and run.finished_at is not None and run.last_seq <= at
    return state.seq == at or (is_over and state.last_change <= at <= state.seq)
