"""Limit the history that a model is sent. Nothing is removed from the log; what is left out is only not sent."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import msgspec

from swarmkeep.domain.chain import Chain
from swarmkeep.domain.messages import Entry

# What these say holds for the whole conversation, however long ago it was said.
STANDING_ROLES = ("system", "developer")


def begins_turn(entry: Entry, before: Entry | None) -> bool:
    """Whether a turn begins here: with what a user says, or else with the model's reply."""
    if entry.removed:
        return False
    if before is None:
        return True
    if entry.is_correction or (entry.person is not None and entry.role == "user"):
        return False
    follows_user = before.role == "user" and not before.removed
    if entry.role == "user":
        return not follows_user or before.run_id != entry.run_id
    return entry.role == "assistant" and not follows_user


def count_turns(entries: Sequence[Entry]) -> int:
    return sum(1 for _ in _iterate_turn_starts(entries))


def find_window_start(entries: Sequence[Entry], turns: int) -> int | None:
    """The seq of the message that the last `turns` turns begin with; None if there are no more than that."""
    for index in _iterate_turn_starts(entries):
        turns -= 1
        if turns == 0:
            return entries[index].seq if index > _find_first(entries) else None
    return None


def _iterate_turn_starts(entries: Sequence[Entry]) -> Iterator[int]:
    """Where turns begin, the last one first."""
    first = _find_first(entries)
    for index in range(len(entries) - 1, first - 1, -1):
        if begins_turn(entries[index], entries[index - 1] if index > first else None):
            yield index


def _find_first(entries: Sequence[Entry]) -> int:
    """Where the first message stands that was not taken out."""
    return next((index for index, entry in enumerate(entries) if not entry.removed), len(entries))


def select_from(entries: Sequence[Entry], seq: int) -> list[Entry]:
    """The messages from `seq` on, after what stands for the whole conversation.

    When they begin in the middle of a run, the user's message that it answers goes with them. However long the
    conversation is, this costs what is selected.
    """
    standing, question = select_earlier(entries, seq)
    later = entries[_find_place(entries, seq) :]
    first = next((entry for entry in later if not entry.removed), None)
    return [*standing, *(question if first is not None and first.role != "user" else ()), *later]


def select_earlier(entries: Sequence[Entry], seq: int) -> tuple[list[Entry], list[Entry]]:
    """Of the messages before `seq`, those that stand for the whole conversation, and what the user said last."""
    standing = [entry for entry in list_standing(entries) if entry.seq < seq]
    earlier = (entries[index] for index in range(_find_place(entries, seq) - 1, -1, -1))
    question = next((entry for entry in earlier if entry.is_question and not entry.removed), None)
    return standing, [] if question is None else [question]


def _find_place(entries: Sequence[Entry], seq: int) -> int:
    return bisect_left(entries, seq, key=lambda entry: entry.seq)


class _Standing(msgspec.Struct, frozen=True):
    """Those of the first `upto` messages that stand for the whole conversation."""

    upto: int = 0
    entries: tuple[Entry, ...] = ()


def list_standing(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The messages that stand for the whole conversation. They are kept with a session's own messages."""
    known = (entries.recall(_Standing) if isinstance(entries, Chain) else None) or _Standing()
    if known.upto < len(entries):
        found = [entry for entry in entries[known.upto :] if entry.role in STANDING_ROLES]
        known = _Standing(len(entries), (*known.entries, *found) if found else known.entries)
        if isinstance(entries, Chain):
            entries.remember(known, known.upto)
    return known.entries
