"""Runs whose agents are not served here: other servers may have them, and come first."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from swarmkeep.domain.decisions.steps import list_needed_agents
from swarmkeep.domain.state import State
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.store.ports import SessionKey

# Whoever was not looked at for so long was taken over meanwhile: if it is found again, that is another matter.
_FORGET_SECONDS = 60.0


class _Look(msgspec.Struct, frozen=True):
    first: float
    last: float


class UnservedRuns:
    """Leaves runs to servers that have their agents, for `seconds` from when each was first found here.

    Whoever has them takes over within the time between two looks. After that nobody can be hoped for.
    """

    def __init__(self, registry: Registry, seconds: float, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._seconds = seconds
        self._clock = clock
        # In the order in which they were last looked at.
        self._looks: dict[SessionKey, _Look] = {}

    def is_left_to_others(self, key: SessionKey, state: State) -> bool:
        """Whether to let others take this over, which was found with nobody who advances it."""
        now = self._clock()
        self._forget_before(now - _FORGET_SECONDS)
        look = self._looks.pop(key, None)
        if all(name in self._registry for name in list_needed_agents(state)):
            return False
        first = now if look is None else look.first
        if now - first >= self._seconds:
            return False
        self._looks[key] = _Look(first, now)
        return True

    def _forget_before(self, time: float) -> None:
        while self._looks:
            key = next(iter(self._looks))
            if self._looks[key].last >= time:
                break
            del self._looks[key]
