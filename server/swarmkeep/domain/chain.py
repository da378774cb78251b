"""A list that only grows, as a value: appending gives a new one and leaves the old as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar, overload

T = TypeVar("T")


class SharedList(list[T]):
    """The list of chains that grew from one another. `memo`: what was worked out of how many of its first items."""

    memo: tuple[int, object] = (0, None)

    def copy_first(self, length: int) -> SharedList[T]:
        copied = SharedList(self[:length])
        memo = self.memo
        if memo[0] <= length:
            copied.memo = memo
        return copied


class Chain(Sequence[T]):
    """An immutable sequence with an append that costs O(1) however long it is.

    Chains grown from one another share one list and differ in how much of it they see. Only the longest may extend
    it; appending to an older one copies. So a fold over n events costs n, not n², and remains a pure function.
    """

    __slots__ = ("_items", "_length")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: SharedList[T] = SharedList(items)
        self._length = len(self._items)

    def recall(self) -> object:
        """What `remember` was given for this chain, or for one with the same beginning; None if there is nothing."""
        length, memo = self._items.memo
        return memo if length <= self._length else None

    def remember(self, memo: object, length: int) -> None:
        """Keep what was worked out of the first `length` items, for all chains that begin with them."""
        self._items.memo = (length, memo)

    def append(self, item: T) -> Chain[T]:
        items, length = self._items, self._length
        if len(items) == length:
            items.append(item)
            # Another thread may have appended between the two lines; whoever finds its item in place owns the list.
            if items[length] is not item:
                items = items.copy_first(length)
                items.append(item)
        else:
            items = items.copy_first(length)
            items.append(item)
        return Chain._sharing(items, length + 1)

    @staticmethod
    def _sharing(items: SharedList[T], length: int) -> Chain[T]:
        chain: Chain[T] = Chain.__new__(Chain)
        chain._items, chain._length = items, length
        return chain

    def replace_at(self, index: int, item: T) -> Chain[T]:
        """A copy with one item exchanged; costs the length of the chain."""
        items = SharedList(self._items[: self._length])
        items[index] = item
        return Chain._sharing(items, self._length)

    def drop_last(self) -> Chain[T]:
        return Chain._sharing(self._items, max(self._length - 1, 0))

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._items[i] for i in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._items[index if index >= 0 else self._length + index]

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        # A longer chain may extend the shared list while somebody iterates.
        return islice(self._items, self._length)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Chain({list(self)!r})"
