"""The ids that a session's calls and runs have, and no new one may have; and where each is. Known without looking
through all of them each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import ClassVar, TypeVar

import msgspec

from swarmkeep.domain.chain import work_out
from swarmkeep.domain.messages import Entry, read_tool_calls
from swarmkeep.domain.state import Run

T = TypeVar("T")

# Of most ids there is one, which takes less memory by itself.
Places = int | tuple[int, ...]


class Part(msgspec.Struct, frozen=True):
    """`size` is how many places there are, of all ids."""

    size: int
    places: Mapping[str, Places]

    def join(self, later: Part) -> Part:
        """With those that follow."""
        joined = {**self.places, **later.places}
        if len(joined) < len(self.places) + len(later.places):
            for name in self.places.keys() & later.places.keys():
                joined[name] = (*_list_places(self.places[name]), *_list_places(later.places[name]))
        return Part(self.size + later.size, joined)


class KnownIds(msgspec.Struct, frozen=True):
    """Which of the first `upto` items have an id: in a few parts, each at least twice as large as the next. So to add
    some costs about the same however many there are, and to look for one only a little more.

    What is kept with a chain is kept by its type: each kind of ids has one.
    """

    # An item that is exchanged for another one keeps its ids.
    outlasts_edits: ClassVar[bool] = True

    upto: int = 0
    parts: tuple[Part, ...] = ()

    def __contains__(self, name: object) -> bool:
        return any(name in part.places for part in self.parts)

    def find(self, name: str) -> tuple[int, ...]:
        """The places of the items that have this id, in order."""
        found = [_list_places(part.places[name]) for part in self.parts if name in part.places]
        return found[0] if len(found) == 1 else tuple(chain.from_iterable(found))


class CallIds(KnownIds, frozen=True):
    pass


class ResultIds(KnownIds, frozen=True):
    pass


class RunIds(KnownIds, frozen=True):
    pass


K = TypeVar("K", bound=KnownIds)


def find_call_ids(messages: Sequence[Entry]) -> CallIds:
    """Every call that the messages ask for, or asked for until it was taken out."""
    return find_ids(messages, CallIds, list_call_ids)


def find_results(messages: Sequence[Entry]) -> ResultIds:
    """Every call that a message is the result of."""
    return find_ids(messages, ResultIds, _list_answered)


def find_finished_runs(finished: Sequence[Run]) -> RunIds:
    """Every run that is over."""
    return find_ids(finished, RunIds, lambda run: (run.id,))


def find_ids(items: Sequence[T], kind: type[K], list_ids: Callable[[T], Iterable[str]]) -> K:
    """The ids of the items, of which each keeps its own whatever it is exchanged for. Kept with a session's own."""
    return work_out(items, kind, lambda known, later: extend_ids(known, later, list_ids))


def extend_ids(known: K, later: Sequence[T], list_ids: Callable[[T], Iterable[str]]) -> K:
    """With those of the items that follow."""
    added = _collect_places(later, known.upto, list_ids)
    parts = list(known.parts)
    while added.size and parts and parts[-1].size < 2 * added.size:
        added = parts.pop().join(added)
    return type(known)(known.upto + len(later), (*parts, added) if added.size else known.parts)


def _collect_places(items: Iterable[T], first: int, list_ids: Callable[[T], Iterable[str]]) -> Part:
    found: dict[str, list[int]] = {}
    for place, item in enumerate(items, first):
        for name in list_ids(item):
            found.setdefault(name, []).append(place)
    size = sum(map(len, found.values()))
    return Part(size, {name: places[0] if len(places) == 1 else tuple(places) for name, places in found.items()})


def _list_places(places: Places) -> tuple[int, ...]:
    return (places,) if isinstance(places, int) else places


def list_call_ids(entry: Entry) -> list[str]:
    """The calls that a message asks for, or asked for until they were taken out, by the ids that it gives them."""
    return [call_id for call_id, _, _ in read_tool_calls(entry.message)] if entry.role == "assistant" else []


def _list_answered(entry: Entry) -> tuple[str, ...]:
    answered = entry.message.get("tool_call_id") if entry.role == "tool" else None
    return (answered,) if isinstance(answered, str) else ()
