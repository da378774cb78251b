"""API keys as the database has them, cached for two seconds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
from cachetools import TLRUCache, TTLCache

from swarmkeep.domain.errors import Overloaded
from swarmkeep.store.clock import Clock, utc_now
from swarmkeep.store.ports import StoreUnavailable
from swarmkeep.store.ports.api_keys import LAST_USED_PRECISION_SECONDS, ApiKey, ApiKeys, StoredApiKey, parse_key_id

log = logging.getLogger(__name__)

T = TypeVar("T")

# For how long an answer of the database counts: a key that is revoked, or the first that is made, holds on every
# server after so long.
CACHE_SECONDS = 2.0
_MAX_KEYS = 10_000


class _CachedKey(msgspec.Struct, frozen=True):
    """What the database has of a key, as of when it was asked."""

    asked_at: float
    found: StoredApiKey | None


class _Lookup(msgspec.Struct, frozen=True):
    asked_at: float
    task: asyncio.Task[Any]


def _find_expiry(key_id: str, known: _CachedKey, now: float) -> float:
    return known.asked_at + CACHE_SECONDS


class Keyring:
    """A server's view of the API keys: digests here, too, and never a key. `now` says whether one has ended."""

    def __init__(self, keys: ApiKeys, *, clock: Callable[[], float] = time.monotonic, now: Clock = utc_now) -> None:
        self.keys = keys
        self._clock = clock
        self._now = now
        self._cached_keys: TLRUCache[str, _CachedKey] = TLRUCache(_MAX_KEYS, _find_expiry, timer=clock)
        self._recently_used: TTLCache[str, bool] = TTLCache(_MAX_KEYS, LAST_USED_PRECISION_SECONDS, timer=clock)
        self._asking: dict[str | None, _Lookup] = {}
        """The questions under way: for a key by its id, and for None whether there are keys."""
        self._unlocked_until = float("-inf")
        self._has_keys = False

    @property
    def has_keys(self) -> bool:
        """Whether a key was seen to exist. From then on, for good: no server opens because its keys went away."""
        return self._has_keys

    async def is_locked(self) -> bool:
        """Whether callers have to show a key, as of the last two seconds. Raises StoreUnavailable."""
        if not self._has_keys and self._clock() >= self._unlocked_until:
            await self._ask_once(None, self._look_for_keys)
        return self._has_keys

    async def _look_for_keys(self) -> None:
        asked_at = self._clock()
        if await self.keys.has_keys():
            self._has_keys = True
        self._unlocked_until = asked_at + CACHE_SECONDS

    async def find_key(self, secret: str) -> ApiKey | None:
        """The key that this is, if it is a valid one as of the last two seconds. Raises StoreUnavailable."""
        key_id = parse_key_id(secret)
        found = None if key_id is None else await self._look_up(key_id)
        if found is None or not found.accepts(secret, at=self._now()):
            return None
        await self._note_use(found.key.id)
        return found.key

    def was_used(self, secret: str) -> bool:
        """Whether a key with this one's id was let in here in the last minute. The key itself is not compared."""
        return parse_key_id(secret) in self._recently_used

    async def is_valid(self, key: ApiKey) -> bool:
        """Whether a key that was shown before still counts. Raises StoreUnavailable."""
        found = await self._look_up(key.id)
        return found is not None and found.key.is_valid(self._now())

    async def _look_up(self, key_id: str) -> StoredApiKey | None:
        # One access, because between two of them the entry may expire.
        with suppress(KeyError):
            return self._cached_keys[key_id].found
        return await self._ask_once(key_id, partial(self._read_key, key_id))

    async def _read_key(self, key_id: str) -> StoredApiKey | None:
        asked_at = self._clock()
        found = await self.keys.find(key_id)
        self._cached_keys[key_id] = _CachedKey(asked_at, found)
        return found

    async def _ask_once(self, key_id: str | None, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask the database once for all who want to know the same: streams that began together ask at the same time.

        Nobody waits for a question whose answer would be too old: it may hang on a dead connection.
        """
        asking, now = self._asking.get(key_id), self._clock()
        if asking is None or now - asking.asked_at >= CACHE_SECONDS:
            asking = self._asking[key_id] = _Lookup(now, asyncio.create_task(ask()))
            asking.task.add_done_callback(partial(self._end_lookup, key_id))
        answer: T = await asyncio.shield(asking.task)
        return answer

    def _end_lookup(self, key_id: str | None, task: asyncio.Task[Any]) -> None:
        asking = self._asking.get(key_id)
        if asking is not None and asking.task is task:
            del self._asking[key_id]
        if not task.cancelled():
            # Those who asked may all have gone; then nobody else would read the error.
            task.exception()

    async def _note_use(self, key_id: str) -> None:
        if key_id in self._recently_used:
            return
        self._recently_used[key_id] = True
        try:
            await self.keys.note_use(key_id)
        except (StoreUnavailable, Overloaded) as error:
            # The time of the last use is for people who clear up keys: no request fails for it.
            log.warning("the last use of key %s was not recorded: %s", key_id, error)
