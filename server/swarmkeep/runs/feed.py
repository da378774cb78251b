"""Tell readers what is new: the feed of all of a tenant's events, and which sessions of a list have changed."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from datetime import timedelta

import msgspec
from cachetools import LRUCache

from swarmkeep.events.codec import to_timestamp
from swarmkeep.events.errors import ConsumerNotFound, HistoryDamaged, InvalidRequest
from swarmkeep.events.facts import EventView, RecordedEvent, view_event
from swarmkeep.events.state import RunStatus, SessionStatus
from swarmkeep.events.views import ListedSession
from swarmkeep.store.feed import (
    BEGINNING,
    EVERYTHING,
    Consumer,
    FeedCursor,
    FeedFilter,
    FeedPage,
    PlacedEvent,
    parse_feed_cursor,
)
from swarmkeep.store.index import SessionFilter
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import Clock, SessionKey, utc_now

log = logging.getLogger(__name__)

# How many are looked at, and the most that a reader is told at once.
_MOST_SESSIONS = 100
# What happens within this time is told together.
_SHORTEST_PAUSE_SECONDS = 0.25


class ChangedSession(msgspec.Struct, frozen=True):
    id: str
    status: SessionStatus
    last_run_status: RunStatus | None


class Changes(msgspec.Struct, frozen=True):
    """Sessions that are new or other than they were, and the ids of those that were deleted. With `more`, others may be
    too: then only the list itself says what there is."""

    sessions: list[ChangedSession] = []
    deleted: list[str] = []
    more: bool = False


class SessionChanges:
    """The changes of each tenant's sessions, for as long as there are readers.

    The sessions in which something happened last are read, and compared with what they were: at once where something is
    recorded, here or by a process of which the database tells, and otherwise every `poll_seconds`. That is one query,
    however many read.
    """

    def __init__(self, store: SqlStore, *, poll_seconds: float, page_bytes: int) -> None:
        self._store = store
        self._poll_seconds = poll_seconds
        self._page_bytes = page_bytes
        self._tenants: dict[str, _Lists] = {}

    def note(self, key: SessionKey) -> None:
        """Something may have happened in a session."""
        if (tenant := self._tenants.get(key.tenant)) is not None:
            tenant.hinted.set()

    @property
    def reader_count(self) -> int:
        return sum(len(tenant.readers) for tenant in self._tenants.values())

    async def follow(self, name: str, *, silent_seconds: float) -> AsyncGenerator[Changes | None]:
        """Yield the changes in a tenant's sessions; never ends by itself. First comes that there may be `more`: from
        then on nothing is missed. None says that there was nothing for `silent_seconds`."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Lists(self._store, name, self._poll_seconds, self._page_bytes)
        reader = tenant.open_reader()
        try:
            while True:
                yield await reader.take(silent_seconds)
        finally:
            tenant.readers.discard(reader)
            if not tenant.readers:
                self._tenants.pop(name, None)
                await tenant.close()


class _Reader:
    """The changes that one reader is still to be told: each session once, as it was last, and no more than so many."""

    def __init__(self) -> None:
        self._sessions: dict[str, ChangedSession | None] = {}
        """None stands for one that was deleted."""
        self._more = True
        self._arrived = asyncio.Event()

    def put(self, changes: Changes) -> None:
        self._more = self._more or changes.more
        self._sessions |= {session.id: session for session in changes.sessions} | dict.fromkeys(changes.deleted)
        if len(self._sessions) > _MOST_SESSIONS:
            self._sessions, self._more = {}, True
        if self._sessions or self._more:
            self._arrived.set()

    async def take(self, seconds: float) -> Changes | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        if not self._arrived.is_set():
            return None
        self._arrived.clear()
        found, self._sessions = self._sessions, {}
        more, self._more = self._more, False
        sessions = [session for session in found.values() if session is not None]
        return Changes(sessions, [name for name, session in found.items() if session is None], more)


class _Lists:
    """Those who read the changes of one tenant, and what they are told of."""

    def __init__(self, store: SqlStore, name: str, poll_seconds: float, page_bytes: int) -> None:
        self.readers: set[_Reader] = set()
        self.hinted = asyncio.Event()
        self._store = store
        self._name = name
        self._poll_seconds = poll_seconds
        self._page_bytes = page_bytes
        self._known: dict[str, ListedSession] | None = None
        self._task = asyncio.create_task(self._look_regularly())

    def open_reader(self) -> _Reader:
        reader = _Reader()
        self.readers.add(reader)
        if self._known is not None:
            reader.put(Changes())
        return reader

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _look_regularly(self) -> None:
        while True:
            self.hinted.clear()
            try:
                await self._look()
            except Exception as error:
                # Commands that need the database notice by themselves; here the next look does.
                log.debug("could not check the sessions of %s: %s", self._name, error)
            await asyncio.sleep(min(_SHORTEST_PAUSE_SECONDS, self._poll_seconds))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_seconds):
                    await self.hinted.wait()

    async def _look(self) -> None:
        page = await self._store.list_sessions(
            SessionFilter(self._name, order="activity"), limit=_MOST_SESSIONS, max_bytes=self._page_bytes
        )
        found = {session.id: session for session in page.sessions}
        known, is_all = self._known, page.next_cursor is None
        changes = Changes() if known is None else await self._compare(known, found, is_all=is_all)
        # Only now: what could not be compared is still to be told.
        self._known = found
        for reader in self.readers:
            reader.put(changes)

    async def _compare(
        self, known: dict[str, ListedSession], found: dict[str, ListedSession], *, is_all: bool
    ) -> Changes:
        changed = [_view(session) for name, session in found.items() if known.get(name) != session]
        gone = known.keys() - found.keys()
        # Where there are more, those that others have displaced are still there.
        heads = (
            {} if is_all or not gone else await self._store.read_heads([SessionKey(self._name, one) for one in gone])
        )
        there = {key.id for key in heads}
        # Where all are other than they were, so may be those that were not looked at.
        return Changes(changed, sorted(gone - there), more=len(changed) == len(found) and not is_all)


def _view(session: ListedSession) -> ChangedSession:
    return ChangedSession(session.id, session.status, session.last_run_status or None)


# Reads the feed of all of a tenant's events: publishes what is new, and waits where nothing is.

# Sessions of which a process was told are looked at, and besides all in which something happened since the look before
# by the clocks of other servers, which may be so far behind.
_SLACK = timedelta(seconds=60)
# What is found in neither way: what was imported elsewhere with the times that it had. All sessions are looked at now
# and then, for a hundredth of the time.
_LEAST_SECONDS = 60.0
_REST = 100.0
# Sessions that are noted between two looks; if there are more, all are looked at.
_MOST_NOTED = 10_000
_MOST_TENANTS = 1_000
# What is recorded within this time is published together.
_GATHER_SECONDS = 0.1
EVENTS_AT_ONCE = 200
_BROUGHT_BACK_AT_ONCE = 20
END = "end"
"""The cursor of who wants to know only what is recorded from now on."""
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)


class FeedEvent(EventView, frozen=True, kw_only=True):
    """An event in the feed of all events."""

    cursor: str
    """The place behind it."""


def view_feed_event(placed: PlacedEvent) -> FeedEvent:
    cursor, event = placed
    return FeedEvent(**msgspec.structs.asdict(view_event(event)), cursor=str(cursor))


class _Tenant:
    """What this process knows of one tenant's feed."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.news = asyncio.Event()
        self.noted: set[str] = set()
        self.looked_at = float("-inf")
        """When the last publication began, on the monotonic clock."""
        self.since: str | None = None
        """What happened earlier is published; None until all sessions were looked at."""
        self.all_due_at = float("-inf")
        self.end: FeedCursor | None = None
        """Where the feed ended after the last publication, by any server."""

    def tell(self) -> None:
        """Have those look again who wait. Each waits for what comes after it began to look, so each gets an event of
        its own."""
        self.news.set()
        self.news = asyncio.Event()


class EventFeed:
    """The feeds of all tenants, for as many readers as there are.

    Who reads publishes first what was recorded, for all. `note` has to be told of sessions that change, here or
    elsewhere; where it is not, changes are found every `poll_seconds`, by a look at the latest.
    """

    def __init__(self, store: SqlStore, *, poll_seconds: float, page_bytes: int, clock: Clock = utc_now) -> None:
        self._store = store
        self._poll_seconds = poll_seconds
        self._page_bytes = page_bytes
        self._clock = clock
        self._tenants: LRUCache[str, _Tenant] = LRUCache(_MOST_TENANTS)

    def note(self, key: SessionKey) -> None:
        """Something may have happened in a session."""
        tenant = self._tenants.get(key.tenant)
        if tenant is None:
            return
        tenant.noted.add(key.id)
        if len(tenant.noted) > _MOST_NOTED:
            tenant.noted.clear()
            tenant.since = None
        tenant.tell()

    async def read(
        self,
        tenant: str,
        after: FeedCursor = BEGINNING,
        wanted: FeedFilter = EVERYTHING,
        *,
        limit: int = EVENTS_AT_ONCE,
    ) -> FeedPage:
        """The events behind a place, those that were recorded a moment ago included; there may be none.

        Raises InvalidRequest for a place beyond the end.
        """
        await self.publish(tenant)
        return await self._read_published(tenant, after, wanted, limit)

    async def read_one(self, tenant: str, place: FeedCursor) -> RecordedEvent | None:
        """The event before a place, as it is now; None if its session was deleted."""
        before = FeedCursor(place.position, place.seq - 1)
        page = await self._read_published(tenant, before, EVERYTHING, 1)
        return next((event for cursor, event in page.events if cursor == place), None)

    async def _read_published(self, tenant: str, after: FeedCursor, wanted: FeedFilter, limit: int) -> FeedPage:
        before: int | None = None
        if self._store.on_archived is not None:
            away = await self._store.list_archived_in_feed(tenant, after)
            for _, key in away[:_BROUGHT_BACK_AT_ONCE]:
                # One whose object is lost keeps no reader from the others; it is set aside, and said.
                with suppress(HistoryDamaged):
                    await self._store.bring_back(key)
            # The page ends there: one request is not to fetch a thousand.
            before = next((position for position, _ in away[_BROUGHT_BACK_AT_ONCE:]), None)
        return await self._store.read_feed(
            tenant, after, wanted, limit=limit, max_bytes=self._page_bytes, before=before
        )

    async def wait(
        self,
        tenant: str,
        after: FeedCursor,
        wanted: FeedFilter,
        *,
        limit: int,
        seconds: float,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> FeedPage:
        """`read`, but where there are no events not before some come, so many `seconds` have passed, or the server
        stops."""
        until = time.monotonic() + seconds
        while True:
            known = self._find_tenant(tenant)
            news = known.news
            await self.publish(tenant)
            # Of many who wait where nothing happens, none asks the database by itself.
            page = FeedPage([], after, True)
            if known.end != after:
                page = await self._read_published(tenant, after, wanted, limit)
            left = until - time.monotonic()
            if page.events or left <= 0 or is_stopping():
                return page
            after = page.cursor
            if page.is_last:
                await self._wait_for(news, left)

    async def follow(
        self, tenant: str, after: FeedCursor, wanted: FeedFilter, *, silent_seconds: float
    ) -> AsyncGenerator[list[PlacedEvent]]:
        """All events behind a place, page by page, each with the place behind it; never ends by itself. A page without
        any says that there were none for a while."""
        while True:
            page = await self.wait(tenant, after, wanted, limit=EVENTS_AT_ONCE, seconds=silent_seconds)
            after = page.cursor
            yield page.events

    async def _wait_for(self, news: asyncio.Event, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, self._poll_seconds)):
                await news.wait()
                await asyncio.sleep(_GATHER_SECONDS)

    def _find_tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant()
        return tenant

    async def find_start(self, tenant: str, after: str | None, consumer: str | None) -> FeedCursor:
        """The place that a reader names: a cursor, `end`, or the name that its place is kept by. Without any, or where
        none is kept, the beginning.

        Raises InvalidRequest.
        """
        if after is not None and consumer is not None:
            raise InvalidRequest("begin behind a cursor or at a consumer's place, not both", "/query/after")
        if after == END:
            return await self._find_end(tenant)
        if after is not None:
            return parse_feed_cursor(after, "/query/after")
        if consumer is not None:
            with suppress(ConsumerNotFound):
                return (await self._store.read_consumer(tenant, consumer)).cursor
        return BEGINNING

    async def _find_end(self, tenant: str) -> FeedCursor:
        while not await self.publish(tenant):
            pass
        return await self._store.find_feed_end(tenant)

    async def list_consumers(self, tenant: str) -> list[Consumer]:
        """The consumers of a tenant, by name."""
        await self.publish(tenant)
        return await self._store.list_consumers(tenant)

    async def read_consumer(self, tenant: str, name: str) -> Consumer:
        """Raises ConsumerNotFound."""
        await self.publish(tenant)
        return await self._store.read_consumer(tenant, name)

    async def confirm(self, tenant: str, consumer: str, cursor: str) -> Consumer:
        """Keep a consumer's place. Raises InvalidRequest."""
        if not _NAME.fullmatch(consumer):
            raise InvalidRequest("a consumer's name has up to 64 letters, digits and `.`, `_`, `:`, `-`", "/name")
        place = parse_feed_cursor(cursor, "/cursor")
        return await self._store.move_consumer(tenant, consumer, place, to_timestamp(self._clock()))

    async def publish(self, tenant: str) -> bool:
        """Give numbers to what was recorded up to now. Those who ask at once share one look. False if there is more
        than a look takes: then the next one goes on with it."""
        known = self._find_tenant(tenant)
        arrived = time.monotonic()
        async with known.lock:
            if known.looked_at > arrived and known.since is not None:
                return True
            began = known.looked_at = time.monotonic()
            since = None if began >= known.all_due_at else known.since
            start = to_timestamp(self._clock() - _SLACK)
            noted, known.noted = known.noted, set()
            try:
                is_done = await self._store.publish(tenant, ids=noted, since=since)
            except BaseException:
                known.noted |= noted
                raise
            known.end = await self._store.find_feed_end(tenant)
            if is_done:
                known.since = start
                if since is None:
                    took = time.monotonic() - began
                    known.all_due_at = time.monotonic() + max(_LEAST_SECONDS, _REST * took)
            return is_done

    async def list_lagging(self) -> list[Consumer]:
        """The consumers of all tenants, with what was recorded up to now counted as theirs to read."""
        tenants = {one.tenant for one in await self._store.list_consumers()}
        for tenant in sorted(tenants):
            await self.publish(tenant)
        return await self._store.list_consumers()
