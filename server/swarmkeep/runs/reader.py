"""Reads sessions and runs from the log, and follows them. No engine is needed, and nothing is changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager

import msgspec

from swarmkeep.events.errors import Overloaded, RunNotFound, SearchOff, SessionNotFound
from swarmkeep.events.facts import RecordedEvent
from swarmkeep.events.state import Run, State
from swarmkeep.events.views import RunView, SessionView, find_run, list_latest_runs, view_run, view_session
from swarmkeep.events.words import parse_terms
from swarmkeep.runs.hub import (
    LOG_CHANGED,
    TURNING_POINTS,
    Feed,
    Hub,
    Item,
    LogChange,
    ends_message,
    has_stayed,
    is_as_it_was,
    is_open,
    may_be_last,
)
from swarmkeep.runs.watcher import Watcher
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionHead, SessionKey, SessionOrder, SessionPage, is_full_page

# Follow a session: the log first, then what passes, each event once and in order.


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
        if not isinstance(item, RecordedEvent):
            # Nearly all are said on the very history that the reader has.
            if item.seq == position.after or position.is_fresh(item):
                batch.append(item)
        elif item.seq == position.after + 1:
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
    message can be read, but for one that guardrails held back until it was recorded.
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


async def follow_from_log(
    store: SqlStore, key: SessionKey, *, after: int, poll_seconds: float
) -> AsyncGenerator[Batch]:
    """As `follow_batches`, in a process that advances no sessions itself."""
    hub = Hub()

    async def wake_reader(keys: set[SessionKey]) -> None:
        hub.signal_log_change(key)

    watcher = Watcher(store, lambda: {key}, lambda hinted: hinted == key, wake_reader, poll_seconds)
    looking = asyncio.create_task(watcher.run())
    try:
        async with aclosing(follow_batches(store, hub, key, after=after, silent_seconds=poll_seconds)) as batches:
            async for batch in batches:
                yield batch
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


# What is read of sessions and runs, and how each of them is followed.

_POLLS_PER_SILENCE = 4
LONGEST_SILENCE_SECONDS = 2.0
# How long a reader of a run may be told nothing before it looks whether the session was set aside.
_DAMAGE_SECONDS = 4.0


class RunPosition(msgspec.Struct, frozen=True):
    """The place where a run's stream begins: its id, and the seq that its events come after.

    `seq` is the last event of what the request did. Where an earlier one with the same idempotency key did it, it is
    `repeated`, and its answer is given again.
    """

    run_id: str
    after: int
    seq: int | None = None
    repeated: bool = False


def choose_order(order: SessionOrder | None, q: str | None) -> SessionOrder:
    """By what happened last where words are searched for, unless another order is asked for."""
    return order or ("created" if q is None else "activity")


class SessionReader:
    """Sessions of every tenant as they are recorded; each call names its own.

    `hub` is that of the engine in this process, which also knows what is not recorded. Without one, the log is looked
    at every `poll_seconds`, and whenever the database gives a hint.
    """

    def __init__(
        self,
        store: SqlStore,
        *,
        hub: Hub | None = None,
        poll_seconds: float = 0.5,
        page_events: int = 200,
        page_bytes: int = 4_000_000,
        stream_page_bytes: int = 250_000,
        has_search: bool = True,
    ) -> None:
        self._store = store
        self._has_search = has_search
        self._hub = hub
        self._poll_seconds = poll_seconds
        # The hub tells a reader what happens: of anything else it looks at it need not be told as soon.
        self._silent_seconds = min(_POLLS_PER_SILENCE * poll_seconds, LONGEST_SILENCE_SECONDS)
        self.page_bytes = page_bytes
        # A server has one reader for all: what a thousand streams read at a time is bounded, too.
        self._stream_pages = PageLimits(page_events, stream_page_bytes)

    async def state(self, key: SessionKey, *, at: int | None = None, fresh: bool = True) -> State:
        """Raises SessionNotFound, and EventNotFound for `at`. One that need not be `fresh` may be what this process
        knows of it: enough to begin with, where a commit looks again."""
        return await self._store.state(key, at=at, fresh=fresh)

    async def sound_state(self, key: SessionKey, *, at: int | None = None) -> State:
        """The state to go on from. Raises HistoryDamaged, too."""
        return await self._store.sound_state(key, at=at)

    async def view(self, key: SessionKey, *, at: int | None = None) -> SessionView:
        """The session now, or as it was after event `at`."""
        return view_session(key.id, await self.state(key, at=at))

    async def list_page(
        self,
        wanted: SessionFilter,
        *,
        q: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        include_context: bool = False,
    ) -> SessionPage:
        """As `list_sessions` of the store, with words that are searched for in `q`. Raises SearchOff."""
        if q is not None and not self._has_search:
            raise SearchOff
        return await self._store.list_sessions(
            wanted if q is None else msgspec.structs.replace(wanted, terms=parse_terms(q)),
            limit=limit,
            cursor=cursor,
            include_context=include_context,
            max_bytes=self.page_bytes,
        )

    async def list_forks(self, key: SessionKey, *, limit: int = 50, cursor: str | None = None) -> SessionPage:
        """List the forks of a session, the latest first. Raises SessionNotFound."""
        if await self.head(key) is None:
            raise SessionNotFound(key.id)
        return await self._store.list_forks(key, limit=limit, cursor=cursor, max_bytes=self.page_bytes)

    async def head(self, key: SessionKey) -> SessionHead | None:
        """Return the head of the session, None if there is no such session."""
        return await self._store.read_head(key)

    async def read_events(
        self, key: SessionKey, *, after: int = 0, types: Sequence[str] = (), limit: int | None = None
    ) -> list[RecordedEvent]:
        """A page of events in order; see `is_full_page` for whether there may be more. Raises SessionNotFound."""
        events = await self._store.read(key, after=after, types=types, limit=limit, max_bytes=self.page_bytes)
        if not events:
            await self._store.state(key)
        return events

    async def get_run(self, key: SessionKey, run_id: str, *, at: int | None = None) -> RunView:
        """The run now, or as it was after event `at`. Raises RunNotFound."""
        state = await self.state(key, fresh=at is None)
        if at is not None and not is_as_it_was(state, run_id, at):
            state = await self.state(key, at=at)
        return view_run(key.id, state, _find_known_run(state, run_id))

    async def find_answer(self, key: SessionKey, run_id: str, since: int) -> RunView | None:
        """The run as it was after event `since`, if it did not go on by itself then; else as it was when it next ended
        or waited. None if it has not yet, and runs still. Raises RunNotFound."""
        run = _find_known_run(await self.state(key), run_id)
        found = await self._store.read(key, after=run.first_seq - 1, upto=run.last_seq, types=TURNING_POINTS)
        own = [event for event in found if event.run_id == run_id]
        before = [event for event in own if event.seq <= since]
        if before and may_be_last(before[-1]):
            return await self.get_run(key, run_id, at=since)
        last = next((event for event in own if event.seq > since and may_be_last(event)), None)
        return None if last is None else await self.get_run(key, run_id, at=last.seq)

    async def list_runs(self, key: SessionKey, *, before: int | None = None, limit: int) -> list[RunView]:
        """The session's runs that began before that seq, newest first."""
        state = await self.state(key)
        runs = list_latest_runs(state, limit, before)
        # Each answer in JSON is taken apart, which is quick for one and not for a page of large ones.
        return await asyncio.to_thread(lambda: [view_run(key.id, state, run) for run in runs])

    async def find_position(self, key: SessionKey, run_id: str) -> RunPosition:
        """Find the place where the stream of a run that was started before begins. Raises RunNotFound."""
        run = _find_known_run(await self.state(key), run_id)
        return RunPosition(run_id, run.first_seq - 1)

    def open_feed(self, key: SessionKey, *, is_quiet: bool = False) -> Feed | None:
        """Open a feed of a session's events from now on, for `follow` to begin with; the caller closes it. A quiet one
        is given what is recorded only."""
        return None if self._hub is None else self._hub.open_feed(key, is_quiet=is_quiet)

    def follow(self, key: SessionKey, *, after: int, feed: Feed | None = None) -> AsyncGenerator[Item | None]:
        """As `follow_batches`, item by item; None is a sign of life."""
        return flatten(self.follow_batches(key, after=after, feed=feed))

    def follow_batches(
        self, key: SessionKey, *, after: int, feed: Feed | None = None, is_complete: bool = False
    ) -> AsyncGenerator[Batch]:
        """Every event after `after`, once and in order, and what passes in between; never ends by itself.

        A session that has no event `after`, or is recreated meanwhile, is given from its beginning: the seq goes back.
        An empty batch is a sign of life, given when nothing happens for a while. A `feed` that was opened before is
        closed at the end; it `is_complete` if that was before the event behind `after` was recorded.
        """
        if self._hub is None:
            return follow_from_log(self._store, key, after=after, poll_seconds=self._poll_seconds)
        return follow_batches(
            self._store,
            self._hub,
            key,
            after=after,
            silent_seconds=self._silent_seconds,
            pages=self._stream_pages,
            feed=feed,
            is_complete=is_complete,
        )

    def read_pages(self, key: SessionKey, *, after: int, upto: int | None = None) -> AsyncGenerator[RecordedEvent]:
        """Events in order, of which only a page is in memory at a time."""
        return read_pages(self._store, key, after=after, upto=upto, pages=self._stream_pages)

    def follow_run(
        self, key: SessionKey, position: RunPosition, *, after: int | None = None, feed: Feed | None = None
    ) -> AsyncGenerator[Item | None]:
        """As `follow_run_batches`, item by item; None is a sign of life."""
        return flatten(self.follow_run_batches(key, position, after=after, feed=feed))

    def follow_run_batches(
        self, key: SessionKey, position: RunPosition, *, after: int | None = None, feed: Feed | None = None
    ) -> AsyncGenerator[Batch]:
        """The run's own events after `after` and what passes in between, up to its end or until it waits.

        Ends, too, when the session is recreated, which the run is not in, and when it is set aside as damaged.
        An empty batch is a sign of life, given when nothing happens for a while. With a `feed` that was opened before
        the run began, all that passes is given, even if the run is over by now.
        """
        if feed is not None:
            return self._follow_open_run(key, position.run_id, position.after, feed)
        return self._join_run(key, position, after)

    async def _join_run(self, key: SessionKey, position: RunPosition, after: int | None) -> AsyncGenerator[Batch]:
        # A stale state would do harm here: the last event of a run that has ended will not come again.
        state = await self.state(key)
        # A reader that has seen more than there is has seen it of another session, which had the id before.
        last = position.after if after is None or after > state.seq else max(after, position.after)
        if not is_open(find_run(state, position.run_id)):
            upto = _find_last_seq(state, position.run_id)
            async with aclosing(self.read_pages(key, after=last, upto=upto)) as events:
                async for event in events:
                    own: Batch = [event] if event.run_id == position.run_id else []
                    # Only the taker of the batch holds its content, however slow that is.
                    del event
                    if own:
                        yield own
            return
        async with aclosing(self._follow_open_run(key, position.run_id, last)) as batches:
            async for batch in batches:
                yield batch

    async def _follow_open_run(
        self, key: SessionKey, run_id: str, last: int, feed: Feed | None = None
    ) -> AsyncGenerator[Batch]:
        damage = _DamageLook(self._store, key)
        async with aclosing(self.follow_batches(key, after=last, feed=feed, is_complete=feed is not None)) as batches:
            async for batch in batches:
                own: Batch = []
                is_silent = not batch
                while batch:
                    item = batch.pop(0)
                    if isinstance(item, RecordedEvent):
                        if item.seq <= last:
                            yield own
                            return
                        last = item.seq
                    if item.run_id == run_id:
                        own.append(item)
                        if isinstance(item, RecordedEvent) and may_be_last(item):
                            yield own
                            own = []
                            if await self._is_last_event(key, item):
                                return
                    del item
                if own or is_silent:
                    yield own
                if is_silent and await damage.is_found():
                    return

    async def _is_last_event(self, key: SessionKey, event: RecordedEvent) -> bool:
        run = find_run(await self.state(key), event.run_id or "")
        return run is None or has_stayed(run, event)

    async def find_ended_run(self, key: SessionKey, event: RecordedEvent) -> RunView | None:
        """The run, if this event was its last."""
        if not may_be_last(event):
            return None
        state = await self.state(key)
        run = find_run(state, event.run_id or "")
        return None if run is None or not has_stayed(run, event) else view_run(key.id, state, run)


class _DamageLook:
    """Looks whether a session was set aside, of which nothing more comes then; not more often than is of use."""

    def __init__(self, store: SqlStore, key: SessionKey) -> None:
        self._store = store
        self._key = key
        self._due = time.monotonic() + _DAMAGE_SECONDS

    async def is_found(self) -> bool:
        if time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + _DAMAGE_SECONDS
        return await self._store.find_damaged_seq(self._key) is not None


def _find_known_run(state: State, run_id: str) -> Run:
    run = find_run(state, run_id)
    if run is None:
        raise RunNotFound(run_id)
    return run


def _find_last_seq(state: State, run_id: str) -> int:
    """The last event that may be the run's: while it waits, the session may have been changed besides."""
    run = find_run(state, run_id)
    return state.seq if run is None or run.status == "waiting" else run.last_seq
