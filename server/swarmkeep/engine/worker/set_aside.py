"""What was looked at in vain, and is left alone for a while that grows each time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)


class _Pause(msgspec.Struct, frozen=True):
    ends_at: float
    seconds: float


class SetAside(Generic[K]):
    """Keys with the pause that each has got to. `clock` gives seconds; of more than `limit` the oldest is forgotten."""

    def __init__(
        self, *, clock: Callable[[], float], first_seconds: float = 1.0, last_seconds: float = 60.0, limit: int = 10_000
    ) -> None:
        self._clock = clock
        self._first_seconds = first_seconds
        self._last_seconds = last_seconds
        self._limit = limit
        self._pauses: dict[K, _Pause] = {}

    def __len__(self) -> int:
        return len(self._pauses)

    def __contains__(self, key: K) -> bool:
        return key in self._pauses

    def is_waiting(self, key: K) -> bool:
        pause = self._pauses.get(key)
        return pause is not None and self._clock() < pause.ends_at

    def add(self, key: K) -> None:
        """It was looked at in vain, perhaps not for the first time."""
        before = self._pauses.pop(key, None)
        seconds = self._first_seconds if before is None else min(2 * before.seconds, self._last_seconds)
        self._pauses[key] = _Pause(self._clock() + seconds, seconds)
        if len(self._pauses) > self._limit:
            del self._pauses[next(iter(self._pauses))]

    def discard(self, key: K) -> None:
        self._pauses.pop(key, None)

    def keep_only(self, keys: Iterable[K]) -> None:
        """Nobody has to look at others any more."""
        kept = set(keys)
        self._pauses = {key: pause for key, pause in self._pauses.items() if key in kept}
