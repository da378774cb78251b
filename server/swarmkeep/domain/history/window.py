"""Limit the history that a model is sent. Nothing is removed from the log; what is left out is only not sent."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import msgspec

from swarmkeep.domain.chain import Chain, work_out
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
            return entries[index].seq if index > find_first_shown(entries) else None
    return None


def _iterate_turn_starts(entries: Sequence[Entry]) -> Iterator[int]:
    """Where turns begin, the last one first."""
    first = find_first_shown(entries)
    for index in range(len(entries) - 1, first - 1, -1):
        if begins_turn(entries[index], entries[index - 1] if index > first else None):
            yield index


class _TakenOut(msgspec.Struct, frozen=True):
    """How many messages from the first on were taken out, one behind the other."""

    count: int = 0


def find_first_shown(entries: Sequence[Entry]) -> int:
    """Where the first message stands that was not taken out. Kept with a session's own messages: of some conversations
    whatever is old is taken out."""
    known = (entries.recall(_TakenOut) if isinstance(entries, Chain) else None) or _TakenOut()
    first = next((at for at in range(known.count, len(entries)) if not entries[at].removed), len(entries))
    if first > known.count and isinstance(entries, Chain):
        entries.remember(_TakenOut(first), first)
    return first


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
    landmarks = _find_landmarks(entries)
    asked = _find_place(landmarks.questions, seq)
    standing = landmarks.standing[: _find_place(landmarks.standing, seq)]
    return standing, [landmarks.questions[asked - 1]] if asked else []


def list_standing(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The messages that stand for the whole conversation."""
    return _find_landmarks(entries).standing


def _find_place(entries: Sequence[Entry], seq: int) -> int:
    return bisect_left(entries, seq, key=lambda entry: entry.seq)


class _Landmarks(msgspec.Struct, frozen=True):
    """Of the first `upto` messages those that stand for the whole conversation, and what the user said."""

    upto: int = 0
    standing: Chain[Entry] = msgspec.field(default_factory=Chain)
    questions: Chain[Entry] = msgspec.field(default_factory=Chain)


def _find_landmarks(entries: Sequence[Entry]) -> _Landmarks:
    return work_out(entries, _Landmarks, _add_landmarks)


def _add_landmarks(known: _Landmarks, later: Sequence[Entry]) -> _Landmarks:
    standing, questions = known.standing, known.questions
    for entry in later:
        if entry.role in STANDING_ROLES:
            standing = standing.append(entry)
        elif entry.is_question and not entry.removed:
            questions = questions.append(entry)
    return _Landmarks(known.upto + len(later), standing, questions)
