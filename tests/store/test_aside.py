"""Long lists are let go of by a thread of their own, and not by whoever has them last."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from swarmkeep.events.chain import SharedList
from swarmkeep.store import threads
from swarmkeep.store.threads import free_aside

WAIT_SECONDS = 60


class Item:
    """Notes which thread lets go of it."""

    def __init__(self, number: int, freed: list[str], is_over: threading.Event) -> None:
        self._number = number
        self._freed = freed
        self._is_over = is_over

    def __del__(self) -> None:
        self._freed.append(threading.current_thread().name)
        if self._number == 0:
            self._is_over.set()


def make_items(count: int) -> tuple[SharedList[Item], list[str], threading.Event]:
    freed: list[str] = []
    is_over = threading.Event()
    return SharedList(Item(number, freed, is_over) for number in range(count)), freed, is_over


def test_long_unused_list_is_emptied_by_thread() -> None:
    items, freed, is_over = make_items(6_000)
    others, kept, _ = make_items(6_000)
    # What was worked out of the items has them, too.
    items.memos[tuple] = (6_000, 0, tuple(items))
    free_aside(items, others, items)
    del items
    assert is_over.wait(WAIT_SECONDS)
    assert set(freed) == {"swarmkeep-free"}
    assert (len(freed), kept, len(others)) == (6_000, [], 6_000)
    is_over.clear()
    chains: list[Any] = [others]
    del others
    chains.clear()
    # The thread that ended when nothing was left is begun again.
    again, freed, is_over = make_items(6_000)
    free_aside(again)
    del again
    assert is_over.wait(WAIT_SECONDS)


def test_short_list_is_released_at_once() -> None:
    items, freed, is_over = make_items(10)
    free_aside(items)
    del items
    assert is_over.is_set()
    assert set(freed) == {threading.current_thread().name}


def test_threadless_lists_are_released_by_last_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    keeper = threads._Keeper()
    items, freed, is_over = make_items(6_000)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        keeper.hold(items)
    del items
    assert (is_over.is_set(), set(freed)) == (True, {threading.current_thread().name})
    # Once there may be one again, there is.
    again, freed, is_over = make_items(6_000)
    keeper.hold(again)
    del again
    assert is_over.wait(WAIT_SECONDS)
    assert set(freed) == {"swarmkeep-free"}
