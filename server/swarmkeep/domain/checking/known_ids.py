"""The ids that a session's calls and runs have, and no new one may have: known without looking through all of them each
time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from swarmkeep.domain.chain import Chain
from swarmkeep.domain.messages import Entry
from swarmkeep.domain.state import Run

T = TypeVar("T")


class KnownIds(msgspec.Struct, frozen=True):
    """The ids in the first `upto` items, in a few sets, each at least twice as large as the next: so to add some costs
    about the same however many there are, and to look for one only a little more."""

    upto: int = 0
    parts: tuple[frozenset[str], ...] = ()

    def __contains__(self, name: object) -> bool:
        return any(name in part for part in self.parts)

    def extend(self, count: int, ids: Iterable[str]) -> KnownIds:
        """With those of so many items that follow."""
        added, parts = frozenset(ids), list(self.parts)
        while added and parts and len(parts[-1]) < 2 * len(added):
            added |= parts.pop()
        return KnownIds(self.upto + count, (*parts, added) if added else self.parts)


def find_call_ids(messages: Sequence[Entry]) -> KnownIds:
    """Every call that the messages ask for, or asked for until it was taken out."""
    return _find_ids(messages, _list_call_ids)


def find_finished_runs(finished: Sequence[Run]) -> KnownIds:
    """Every run that is over."""
    return _find_ids(finished, lambda runs: [run.id for run in runs])


def _find_ids(items: Sequence[T], list_ids: Callable[[Sequence[T]], Iterable[str]]) -> KnownIds:
    """The ids of the items, of which each stays what it is. Kept with a session's own."""
    if not isinstance(items, Chain):
        return KnownIds().extend(len(items), list_ids(items))
    known = items.recall(KnownIds) or KnownIds()
    if known.upto < len(items):
        later = items[known.upto :]
        known = known.extend(len(later), list_ids(later))
        items.remember(known, known.upto)
    return known


def _list_call_ids(entries: Iterable[Entry]) -> Iterable[str]:
    asking = (entry for entry in entries if entry.role == "assistant" and entry.message.get("tool_calls"))
    return (call_id for entry in asking for call_id in (*entry.call_ids, *entry.removed_calls))
