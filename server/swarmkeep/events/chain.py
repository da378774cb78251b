"""A list that grows, as a value: appending or exchanging an item gives a new one and leaves the old as it was."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, overload

T = TypeVar("T")
M = TypeVar("M")

_NO_MEMO = (0, 0, None)


class SharedList(list[T]):
    """The list of chains that grew from one another.

    `edits`: the items exchanged since, and where; `edits_at`: which of them are at an index. `memos`: what was worked
    out, by its type, and of how many of the first items, and of how many edits. A type that says `outlasts_edits` is
    about what no exchange changes.
    """

    def __init__(self, items: Iterable[T] = ()) -> None:
        super().__init__(items)
        self.edits: list[tuple[int, T]] = []
        self.edits_at: dict[int, list[int]] = {}
        self.memos: dict[type[object], tuple[int, int, object]] = {}

    def find(self, index: int, edits: int) -> T:
        """The item at an index after so many edits."""
        for number in reversed(self.edits_at.get(index, ())):
            if number < edits:
                return self.edits[number][1]
        return self[index]

    def iterate(self, indices: Iterable[int], edits: int) -> Iterator[T]:
        return (self.find(index, edits) if index in self.edits_at else self[index] for index in indices)

    def copy_first(self, length: int, edits: int) -> SharedList[T]:
        copied = SharedList(self[:length])
        for index, item in self.edits[:edits]:
            if index < length:
                copied[index] = item
        # Another thread may remember something meanwhile.
        for kind in list(self.memos):
            covered, memo = self.recall(kind, length, edits)
            copied.memos[kind] = (covered, 0, memo)
        return copied

    def recall(self, kind: type[object], length: int, edits: int) -> tuple[int, object]:
        """The memo, and of how many items it is, if it holds for a chain of this length and so many edits."""
        covered, seen, memo = self.memos.get(kind, _NO_MEMO)
        if covered > length:
            return 0, None
        if getattr(kind, "outlasts_edits", False):
            return covered, memo
        # It does if none of the edits that only one of the two has seen is among its items.
        apart = self.edits[min(seen, edits) : max(seen, edits)]
        return (covered, memo) if all(index >= covered for index, _ in apart) else (0, None)


class Chain(Sequence[T]):
    """An immutable sequence with an append, and an exchange of an item, that cost O(1) however long it is.

    Chains grown from one another share one list and differ in how much of it they see. Only the longest may extend
    it, and only the last to exchange an item the next; on an older one these copy. So a fold over n events costs n,
    not n², and remains a pure function.
    """

    __slots__ = ("_edits", "_items", "_length")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: SharedList[T] = SharedList(items)
        self._length = len(self._items)
        self._edits = 0

    @property
    def shared(self) -> SharedList[T]:
        """The list of all chains that grew from one another. Not to be changed."""
        return self._items

    def recall(self, kind: type[M]) -> M | None:
        """Return the value that `remember` was given for this chain, or for one with the same beginning; None if there
        is nothing."""
        memo = self._items.recall(kind, self._length, self._edits)[1]
        return memo if isinstance(memo, kind) else None

    def recall_unless(self, kind: type[M], exchanged: Collection[int]) -> M | None:
        """The same for this chain with the items at these places exchanged."""
        covered, memo = self._items.recall(kind, self._length, self._edits)
        holds = getattr(kind, "outlasts_edits", False) or all(at >= covered for at in exchanged)
        return memo if holds and isinstance(memo, kind) else None

    def remember(self, memo: object, length: int) -> None:
        """Keep what was worked out of the first `length` items, one of a type, for all chains that begin with them."""
        self._items.memos[type(memo)] = (length, self._edits, memo)

    def branch(self) -> Chain[T]:
        """Return the same items, for trying out what would follow: whichever way it is used, the next append to this
        chain or exchange in it costs the same as before."""
        return _Branch(self, _NOTHING)

    def _copy(self) -> Chain[T]:
        return Chain._sharing(self._items.copy_first(self._length, self._edits), self._length)

    def append(self, item: T) -> Chain[T]:
        items, length, edits = self._items, self._length, self._edits
        if len(items) == length and len(items.edits) == edits:
            items.append(item)
            # Another thread may have appended between the two lines; the thread with its item in place owns the list.
            if items[length] is not item:
                items, edits = items.copy_first(length, edits), 0
                items.append(item)
        else:
            items, edits = items.copy_first(length, edits), 0
            items.append(item)
        # In place of a call of `_sharing`: half the events of a long session come here.
        longer: Chain[T] = Chain.__new__(Chain)
        longer._items, longer._length, longer._edits = items, length + 1, edits
        return longer

    @staticmethod
    def _sharing(items: SharedList[T], length: int, edits: int = 0) -> Chain[T]:
        sharing: Chain[T] = Chain.__new__(Chain)
        sharing._items, sharing._length, sharing._edits = items, length, edits
        return sharing

    def replace_at(self, index: int, item: T) -> Chain[T]:
        """With one item exchanged."""
        at = index if index >= 0 else self._length + index
        items, number = self._items, self._edits
        edit = (at, item)
        if len(items) == self._length and len(items.edits) == number:
            items.edits.append(edit)
        # As in `append`.
        if len(items.edits) <= number or items.edits[number] is not edit:
            items, number = items.copy_first(self._length, number), 0
            items.edits.append(edit)
        items.edits_at.setdefault(at, []).append(number)
        return Chain._sharing(items, self._length, number + 1)

    def drop_last(self) -> Chain[T]:
        return Chain._sharing(self._items, max(self._length - 1, 0), self._edits)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            places = range(*index.indices(self._length))
            if not self._edits and places.step > 0:
                return self._items[places.start : places.stop : places.step]
            return list(self._items.iterate(places, self._edits))
        if not -self._length <= index < self._length:
            raise IndexError(index)
        at = index if index >= 0 else self._length + index
        return self._items[at] if not self._edits else self._items.find(at, self._edits)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        # A longer chain may extend the shared list while another thread iterates.
        if not self._edits:
            return islice(self._items, self._length)
        return self._items.iterate(range(self._length), self._edits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Chain({list(self)!r})"


_NO_ITEMS: Mapping[int, Any] = MappingProxyType({})
# So many items are looked up one by one sooner than a long list is copied.
_FEW = 16


class _Branch(Chain[T]):
    """A chain's items, and more that are kept apart from its shared list. Those of it that are exchanged are, too; if
    they are many, it copies what it begins with."""

    __slots__ = ("_added", "_base", "_exchanged", "_has_own_base")

    def __init__(
        self, base: Chain[T], added: Chain[T], exchanged: Mapping[int, T] = _NO_ITEMS, *, has_own_base: bool = False
    ) -> None:
        self._base = base
        self._added = added
        self._exchanged = exchanged
        self._has_own_base = has_own_base

    @property
    def shared(self) -> SharedList[T]:
        return self._base.shared

    def recall(self, kind: type[M]) -> M | None:
        memo = self._added.recall(kind)
        return self._base.recall_unless(kind, self._exchanged) if memo is None else memo

    def remember(self, memo: object, length: int) -> None:
        if length > len(self._base) or self._exchanged:
            self._added.remember(memo, max(length - len(self._base), 0))
        else:
            self._base.remember(memo, length)

    def branch(self) -> Chain[T]:
        return self

    def append(self, item: T) -> Chain[T]:
        is_first = self._added is _NOTHING
        added = Chain._sharing(SharedList((item,)), 1) if is_first else self._added.append(item)
        return _Branch(self._base, added, self._exchanged, has_own_base=self._has_own_base)

    def replace_at(self, index: int, item: T) -> Chain[T]:
        at = index if index >= 0 else len(self) + index
        if at >= len(self._base):
            return self._with(self._added.replace_at(at - len(self._base), item))
        # Without what was worked out of the items before.
        added = Chain(self._added)
        if self._has_own_base:
            return _Branch(self._base.replace_at(at, item), added, has_own_base=True)
        exchanged = {**self._exchanged, at: item}
        if len(exchanged) <= _FEW:
            return _Branch(self._base, added, exchanged)
        base = self._base._copy()
        for place, other in exchanged.items():
            base = base.replace_at(place, other)
        return _Branch(base, added, has_own_base=True)

    def drop_last(self) -> Chain[T]:
        if self._added:
            return self._with(self._added.drop_last())
        kept = {at: item for at, item in self._exchanged.items() if at < len(self._base) - 1}
        return _Branch(self._base.drop_last(), Chain(), kept, has_own_base=self._has_own_base)

    def _with(self, added: Chain[T]) -> Chain[T]:
        return _Branch(self._base, added, self._exchanged, has_own_base=self._has_own_base)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        at = index if index >= 0 else len(self) + index
        if at >= len(self._base):
            return self._added[at - len(self._base)]
        return self._exchanged[at] if at in self._exchanged else self._base[at]

    def __len__(self) -> int:
        return self._base._length + self._added._length

    def __iter__(self) -> Iterator[T]:
        if not self._exchanged:
            return chain(self._base, self._added)
        kept = (self._exchanged.get(at, item) for at, item in enumerate(self._base))
        return chain(kept, self._added)


# An appender gets a list of its own: it is not at the end of this one.
_NOTHING: Chain[Any] = Chain([None]).drop_last()


class WorkedOut(Protocol):
    """The result of work on the first `upto` items; made without arguments, of none."""

    @property
    def upto(self) -> int: ...


W = TypeVar("W", bound=WorkedOut)


def work_out(items: Sequence[T], kind: type[W], extend: Callable[[W, Sequence[T]], W], upto: int | None = None) -> W:
    """Return the result of `extend` on the first `upto` items, by default all, stretch by stretch. It is kept with a
    chain, so that it costs what has been added since."""
    end = len(items) if upto is None else upto
    known = items.recall(kind) if isinstance(items, Chain) else None
    if known is None or known.upto > end:
        known = kind()
    if known.upto < end:
        known = extend(known, items[known.upto : end])
        if isinstance(items, Chain):
            items.remember(known, end)
    return known
