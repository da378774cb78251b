"""Tells who looks at a list of sessions which of them have changed: not what happened, only that it is worth a look."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress

import msgspec

from swarmkeep.events.state import RunStatus, SessionStatus
from swarmkeep.events.views import ListedSession
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey

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
        self._tenants: dict[str, _Tenant] = {}

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
            tenant = self._tenants[name] = _Tenant(self._store, name, self._poll_seconds, self._page_bytes)
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


class _Tenant:
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
            self._name, order="activity", limit=_MOST_SESSIONS, max_bytes=self._page_bytes
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
