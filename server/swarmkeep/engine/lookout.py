"""Noticing what other processes record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing

from swarmkeep.engine.live import Hub, follow
from swarmkeep.engine.loop import Item
from swarmkeep.store.ports import EventStore, SessionKey

log = logging.getLogger(__name__)


class Lookout:
    """Looks where the sessions end that somebody here is interested in: all of them with one query, at each poll, and
    at once those of which the database says that they have moved.

    `interest` gives the sessions; `moved` is told those that end elsewhere than when last seen.
    """

    def __init__(
        self,
        store: EventStore,
        interest: Callable[[], Iterable[SessionKey]],
        moved: Callable[[set[SessionKey]], Awaitable[None]],
        poll_seconds: float,
    ) -> None:
        self._store = store
        self._interest = interest
        self._moved = moved
        self._poll_seconds = poll_seconds
        self._seen: dict[SessionKey, int] = {}
        self._hinted: set[SessionKey] = set()
        self._hint = asyncio.Event()

    def note(self, key: SessionKey, seq: int) -> None:
        """This process has shown by itself what the session holds up to there."""
        self._seen[key] = max(seq, self._seen.get(key, 0))

    async def run(self) -> None:
        """Look until cancelled."""
        hearing = asyncio.create_task(self._store.listen(self._heard))
        try:
            await self._poll()
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    def _heard(self, key: SessionKey) -> None:
        self._hinted.add(key)
        self._hint.set()

    async def _poll(self) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            if clock() >= due:
                keys = set(self._interest())
                self._seen = {key: seq for key, seq in self._seen.items() if key in keys}
                due = clock() + self._poll_seconds
            else:
                keys = self._hinted.intersection(self._interest())
            self._hinted.clear()
            self._hint.clear()
            await self._look(keys)
            try:
                async with asyncio.timeout_at(due):
                    await self._hint.wait()
            except TimeoutError:
                continue

    async def _look(self, keys: set[SessionKey]) -> None:
        if not keys:
            return
        try:
            heads = await self._store.heads(keys)
            seqs = {key: heads[key].seq if key in heads else 0 for key in keys}
            moved = {key for key, seq in seqs.items() if self._seen.get(key) != seq}
            self._seen |= seqs
            if moved:
                await self._moved(moved)
        except Exception as error:
            # Whoever needs the database notices by himself; here the next poll does.
            log.debug("could not look at %d sessions: %s", len(keys), error)


async def follow_elsewhere(
    store: EventStore, key: SessionKey, *, after: int, poll_seconds: float
) -> AsyncGenerator[Item | None]:
    """As `follow`, in a process that advances no sessions itself."""
    hub = Hub()

    async def moved(keys: set[SessionKey]) -> None:
        hub.stir(key)

    looking = asyncio.create_task(Lookout(store, lambda: [key], moved, poll_seconds).run())
    try:
        async with aclosing(follow(store, hub, key, after=after, poll_seconds=poll_seconds)) as items:
            async for item in items:
                yield item
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
