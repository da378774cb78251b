"""Watches for what other processes record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.wording import pluralize
from swarmkeep.engine.streams.following import Batch, follow_batches
from swarmkeep.engine.streams.hub import Hub
from swarmkeep.store.ports import EventStore, SessionKey

log = logging.getLogger(__name__)

# Where a session ends: its last seq, and that event's hash, because one that is made anew has the same seqs.
_Head = tuple[int, str]
_NOWHERE: _Head = (0, "")


class Watcher:
    """Looks where the sessions end that somebody here is interested in: all of them with one query, at each poll, and
    at once those of which the database says that they have moved.

    `list_keys` gives the sessions, and `is_watched` says of one whether it is among them. `on_moved` is given those
    that end elsewhere than when last seen, or of which somebody wants to know what a model is just saying. `on_hint` is
    given each session of which the database says that it has moved, of interest or not.
    """

    def __init__(
        self,
        store: EventStore,
        list_keys: Callable[[], set[SessionKey]],
        is_watched: Callable[[SessionKey], bool],
        on_moved: Callable[[set[SessionKey]], Awaitable[None]],
        poll_seconds: float,
        on_hint: Callable[[SessionKey], None] | None = None,
    ) -> None:
        self._store = store
        self._on_hint = on_hint
        self._list_watched_keys = list_keys
        self._is_watched = is_watched
        self._on_sessions_moved = on_moved
        self._poll_seconds = poll_seconds
        self._seen_heads: dict[SessionKey, _Head] = {}
        self._hinted_keys: set[SessionKey] = set()
        self._hint_arrived = asyncio.Event()

    def note_seen(self, key: SessionKey, event: RecordedEvent) -> None:
        """This process has shown by itself what the session holds up to there."""
        self._seen_heads[key] = max((event.seq, event.hash), self._seen_heads.get(key, _NOWHERE))

    def was_seen(self, key: SessionKey) -> bool:
        """Whether a session was there when last looked at."""
        return self._seen_heads.get(key, _NOWHERE) != _NOWHERE

    async def run(self) -> None:
        """Look until cancelled."""
        hearing = asyncio.create_task(self._store.listen(self._note_hint))
        try:
            await self._poll()
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    def _note_hint(self, key: SessionKey) -> None:
        self._hinted_keys.add(key)
        if self._on_hint is not None:
            self._on_hint(key)
        self._hint_arrived.set()

    async def _poll(self) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            if clock() >= due:
                keys = self._list_watched_keys()
                for key in self._seen_heads.keys() - keys:
                    del self._seen_heads[key]
                due = clock() + self._poll_seconds
            else:
                # Others' hints come often: they are not to cost more, the more is watched.
                keys = {key for key in self._hinted_keys if self._is_watched(key)}
            self._hinted_keys.clear()
            self._hint_arrived.clear()
            await self._check_heads(keys)
            try:
                async with asyncio.timeout_at(due):
                    await self._hint_arrived.wait()
            except TimeoutError:
                continue

    async def _check_heads(self, keys: set[SessionKey]) -> None:
        if not keys:
            return
        moved: set[SessionKey] = set()
        try:
            heads = await self._store.read_heads(keys)
            moved |= {key for key, head in heads.items() if self._is_news(key, (head.seq, head.hash))}
            moved |= {key for key in keys.difference(heads) if self._is_news(key, _NOWHERE)}
            moved |= {key for key, head in heads.items() if head.is_partial_wanted}
            if moved:
                await self._on_sessions_moved(moved)
        except Exception as error:
            # Whoever needs the database notices by himself; here the next poll does: what was not told is news again.
            for key in moved:
                self._seen_heads.pop(key, None)
            log.debug("could not check %s: %s", pluralize(len(keys), "session"), error)

    def _is_news(self, key: SessionKey, head: _Head) -> bool:
        """Whether a session ends elsewhere than when last seen; from now on it is seen there."""
        if self._seen_heads.get(key) == head:
            return False
        self._seen_heads[key] = head
        return True


async def follow_from_log(
    store: EventStore, key: SessionKey, *, after: int, poll_seconds: float
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
