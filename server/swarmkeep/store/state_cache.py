"""Folded states, kept so that a session's next read costs its new events only."""

from __future__ import annotations

from cachetools import LRUCache

from swarmkeep.domain.state import State
from swarmkeep.store.ports import SessionKey

# A decoded message takes a few times the bytes of its text, and an empty session still takes some.
_BYTES_PER_BYTE = 4
_BYTES_PER_STATE = 4096


def _estimate_bytes(state: State) -> int:
    return state.size * _BYTES_PER_BYTE + _BYTES_PER_STATE


class StateCache:
    """The states used last, bounded by an estimate of their memory. Anything in it may be stale."""

    def __init__(self, max_bytes: int) -> None:
        self._states: LRUCache[SessionKey, State] = LRUCache(maxsize=max_bytes, getsizeof=_estimate_bytes)

    def get(self, key: SessionKey) -> State | None:
        return self._states.get(key)

    def put(self, key: SessionKey, state: State) -> None:
        self.drop(key)
        if _estimate_bytes(state) <= self._states.maxsize:
            self._states[key] = state

    def drop(self, key: SessionKey) -> None:
        self._states.pop(key, None)
