"""Where in a session its replies, calls, results and approvals are: found without looking through it."""

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
    """Messages and approvals are named by their places among the state's. Whoever asks first has all of them looked
    through; after that it costs what has been added since.

    An id may be that of several calls in a history from elsewhere. What follows is the last one's.
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

    def find_asking(self, call_id: str, before: int) -> int | None:
        """The message that asks for the call which is called so at that place."""
        asking = self._calls.find(call_id)
        later = bisect_left(asking, before)
        return asking[later - 1] if later else None

    def find_asking_at(self, call_id: str, seq: int) -> int | None:
        """The same, by an event that comes later."""
        return self.find_asking(call_id, bisect_left(self._messages, seq, key=lambda entry: entry.seq))

    def list_results(self, call_id: str, asking: int) -> tuple[int, ...]:
        """The results of the call that this message asks for, in order."""
        results = self._results.find(call_id)
        end = self._find_next_asking(call_id, asking)
        return results[bisect_left(results, asking) : None if end is None else bisect_left(results, end)]

    def list_notes(self, call_id: str, asking: int, *, asks: bool) -> tuple[int, ...]:
        """The requests for an approval of the call that this message asks for, or the decisions, in order."""
        notes = (self._requests if asks else self._decisions).find(call_id)
        end = self._find_next_asking(call_id, asking)
        first = self._skip_notes(notes, asking)
        last = None if end is None else self._skip_notes(notes, end)
        return notes[first:last]

    def _skip_notes(self, notes: tuple[int, ...], at: int) -> int:
        """How many of them come before that message."""
        return bisect_left(notes, self._messages[at].seq, key=lambda note: self._notes[note].seq)

    def _find_next_asking(self, call_id: str, asking: int) -> int | None:
        every = self._calls.find(call_id)
        later = bisect_right(every, asking)
        return every[later] if later < len(every) else None


def _list_runs(entry: Entry) -> Iterable[str]:
    return (entry.run_id,) if is_reply(entry) and entry.run_id is not None else ()


def _list_answered(entry: Entry) -> Iterable[str]:
    call_id = find_answered_call(entry) if entry.role == "tool" else None
    return () if call_id is None else (call_id,)


def _list_requested(note: ApprovalNote) -> Iterable[str]:
    return (note.call_id,) if note.approve is None else ()


def _list_decided(note: ApprovalNote) -> Iterable[str]:
    return () if note.approve is None else (note.call_id,)
