"""Finds the replies, calls, results and approvals of a session, without looking through it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from swarmkeep.api.openai.items.output_items import find_answered_call, is_reply
from swarmkeep.domain.checking.known_ids import KnownIds, find_call_ids, find_ids
from swarmkeep.domain.messages import Entry
from swarmkeep.domain.state import ApprovalNote, State


class _ReplyIds(KnownIds, frozen=True):
    """Replies by their runs."""


class _ResultIds(KnownIds, frozen=True):
    """Results by their calls."""


class _RequestIds(KnownIds, frozen=True):
    """Requests for approvals by their calls."""


class _DecisionIds(KnownIds, frozen=True):
    """Decisions by their calls."""


class CallIndex:
    """Messages and approvals are given by their places in the state's lists. The first index of a session looks through
    all of them, later ones through what has been added since.

    In an imported history several calls may have the same id. A result or an approval then belongs to the last of
    them before it.
    """

    def __init__(self, state: State) -> None:
        self._messages = state.messages
        self._notes = state.approvals
        self._calls = find_call_ids(state.messages)
        self._replies = find_ids(state.messages, _ReplyIds, _list_runs)
        self._results = find_ids(state.messages, _ResultIds, _list_answered)
        self._requests = find_ids(state.approvals, _RequestIds, _list_requested)
        self._decisions = find_ids(state.approvals, _DecisionIds, _list_decided)

    def count_turns(self, at: int) -> int:
        """How many replies of its run come before this one."""
        return bisect_left(self._replies.find(self._messages[at].run_id or ""), at)

    def find_reply(self, run_id: str, turn: int) -> int | None:
        replies = self._replies.find(run_id)
        return replies[turn] if turn < len(replies) else None

    def find_call(self, call_id: str, before: int) -> int | None:
        """The last message before that place that asks for a call of this id."""
        places = self._calls.find(call_id)
        later = bisect_left(places, before)
        return places[later - 1] if later else None

    def find_call_before_event(self, call_id: str, seq: int) -> int | None:
        """The last message before that event that asks for a call of this id."""
        return self.find_call(call_id, bisect_left(self._messages, seq, key=lambda entry: entry.seq))

    def list_results(self, call_id: str, call_at: int) -> tuple[int, ...]:
        """The results of the call that the message at `call_at` asks for, in order."""
        results = self._results.find(call_id)
        end = self._find_next_call(call_id, call_at)
        return results[bisect_left(results, call_at) : None if end is None else bisect_left(results, end)]

    def list_notes(self, call_id: str, call_at: int, *, asks: bool) -> tuple[int, ...]:
        """The approval requests (`asks`) or decisions for the call that the message at `call_at` asks for, in order."""
        notes = (self._requests if asks else self._decisions).find(call_id)
        end = self._find_next_call(call_id, call_at)
        first = self._skip_notes(notes, call_at)
        last = None if end is None else self._skip_notes(notes, end)
        return notes[first:last]

    def _skip_notes(self, notes: tuple[int, ...], at: int) -> int:
        """How many of them come before that message."""
        return bisect_left(notes, self._messages[at].seq, key=lambda note: self._notes[note].seq)

    def _find_next_call(self, call_id: str, call_at: int) -> int | None:
        places = self._calls.find(call_id)
        later = bisect_right(places, call_at)
        return places[later] if later < len(places) else None


def _list_runs(entry: Entry) -> Iterable[str]:
    return (entry.run_id,) if is_reply(entry) and entry.run_id is not None else ()


def _list_answered(entry: Entry) -> Iterable[str]:
    call_id = find_answered_call(entry) if entry.role == "tool" else None
    return () if call_id is None else (call_id,)


def _list_requested(note: ApprovalNote) -> Iterable[str]:
    return (note.call_id,) if note.approve is None else ()


def _list_decided(note: ApprovalNote) -> Iterable[str]:
    return () if note.approve is None else (note.call_id,)
