"""Do long work beside the event loop: work on many events, and letting go of them.

To free a hundred thousand objects takes a while, and the code that lets go of the last reference has to wait for it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from swarmkeep.events.state import State

T = TypeVar("T")

FEW_EVENTS = 100
MANY_EVENTS = FEW_EVENTS + 1
_LONG = 5_000
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0


def _count_references(held: dict[int, list[Any]], name: int) -> int:
    return sys.getrefcount(held[name])


# Of a list that has no other holder. How many they are differs between releases of Python.
_OWN_REFERENCES = _count_references({0: []}, 0)


async def run_off_loop(count: int, work: Callable[[], T]) -> T:
    """Do what takes its time for each of `count` events; of many in a thread, which others do not wait for."""
    return work() if count <= FEW_EVENTS else await asyncio.to_thread(work)


class _Keeper:
    """The holder of lists, each emptied in a thread of its own once it has no other holder. There is no thread while
    nothing is held."""

    def __init__(self) -> None:
        # By what tells one list from another: equal ones there are many.
        self._held: dict[int, list[Any]] = {}
        self._lock = threading.Lock()
        self._has_more = threading.Event()
        self._is_running = False

    def hold(self, items: list[Any]) -> None:
        with self._lock:
            self._held[id(items)] = items
            begins, self._is_running = not self._is_running, True
        self._has_more.set()
        if begins:
            self._begin()

    def _begin(self) -> None:
        try:
            threading.Thread(target=self._run, name="swarmkeep-free", daemon=True).start()
        except RuntimeError:
            # There can be no more threads now. The last holder of a list frees it then: what was done is done.
            with self._lock:
                self._held.clear()
                self._is_running = False

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            # Memory is free again soon after it was in use, and an idle server is left alone.
            is_news = self._has_more.wait(pause)
            self._has_more.clear()
            alone = self._take_alone()
            if alone is None:
                return
            pause = _FIRST_PAUSE_SECONDS if is_news or alone else min(2 * pause, _LONGEST_PAUSE_SECONDS)
            while alone:
                _empty(alone.pop())

    def _take_alone(self) -> list[list[Any]] | None:
        """Take those that have no other holder; None when nothing is held any more."""
        with self._lock:
            if not self._held:
                self._is_running = False
                return None
            alone = [name for name in self._held if _count_references(self._held, name) <= _OWN_REFERENCES]
            return [self._held.pop(name) for name in alone]


def _empty(items: list[Any]) -> None:
    """Let go of one item after another, so that others get their turn in between."""
    # What was worked out of the items refers to them, too, and would free them all at once.
    getattr(items, "__dict__", {}).clear()
    while items:
        items.pop()


_keeper = _Keeper()


def free_aside(*lists: list[Any], events_in_each: int = 1) -> None:
    """Have these lists, if they are long, emptied beside the event loop once they have no other holder."""
    for items in lists:
        if len(items) * events_in_each >= _LONG:
            _keeper.hold(items)


def free_state_aside(state: State) -> None:
    """The same of what a session's state consists of."""
    free_aside(state.messages.shared, state.finished.shared)
