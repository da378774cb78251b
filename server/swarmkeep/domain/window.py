"""Limit the history that a model is sent. Nothing is removed from the log; what is left out is only not sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from swarmkeep.domain.messages import Entry

# What these say holds for the whole conversation, however long ago it was said.
_STANDING_ROLES = ("system", "developer")


def begins_turn(entry: Entry, before: Entry | None) -> bool:
    """Whether a turn begins here: with what a user says, or else with the model's reply."""
    if before is None:
        return True
    if entry.role == "user":
        return before.role != "user" or before.run_id != entry.run_id
    return entry.role == "assistant" and before.role != "user"


def count_turns(entries: Sequence[Entry]) -> int:
    return sum(1 for _ in _iterate_turn_starts(entries))


def find_window_start(entries: Sequence[Entry], turns: int) -> int | None:
    """The seq of the message that the last `turns` turns begin with; None if there are no more than that."""
    for index in _iterate_turn_starts(entries):
        turns -= 1
        if turns == 0:
            return entries[index].seq if index else None
    return None


def _iterate_turn_starts(entries: Sequence[Entry]) -> Iterator[int]:
    """Where turns begin, the last one first."""
    for index in range(len(entries) - 1, -1, -1):
        if begins_turn(entries[index], entries[index - 1] if index else None):
            yield index


def select_from(entries: Sequence[Entry], seq: int) -> list[Entry]:
    """The messages from `seq` on, after what stands for the whole conversation.

    When they begin in the middle of a run, the user's message that it answers goes with them.
    """
    earlier = [entry for entry in entries if entry.seq < seq]
    later = [entry for entry in entries if entry.seq >= seq]
    question = [entry for entry in earlier if entry.role == "user"][-1:] if later and later[0].role != "user" else []
    return [*(entry for entry in earlier if entry.role in _STANDING_ROLES), *question, *later]
