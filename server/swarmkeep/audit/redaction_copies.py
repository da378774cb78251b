"""Events of a session that say what another one says, too: whoever redacts the one means all of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from msgspec import UNSET

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import (
    ApprovalDecided,
    ContextUpdated,
    MessageAdded,
    RunQueued,
    RunResumed,
    RunStarted,
    ToolStarted,
)
from swarmkeep.domain.facts.compaction import CompactionSummarised
from swarmkeep.domain.facts.takeovers import SessionHandedBack


def find_same_text(events: Sequence[RecordedEvent], seqs: Sequence[int]) -> set[int]:
    """The seqs of what repeats any of these events, or is repeated by it, in `events`: all of a session's."""
    finders = (_find_summaries, _find_held_changes, _find_run_copies, _find_changed_arguments, _find_notes)
    return {seq for find in finders for seq in find(events, seqs)}


def _find_summaries(events: Sequence[RecordedEvent], seqs: Sequence[int]) -> Iterator[int]:
    """The summaries that cover one of these events: it may be told in them in other words."""
    named = sorted(seqs)
    for event in events:
        fact = event.fact
        if isinstance(fact, CompactionSummarised):
            at = bisect_left(named, fact.first_seq)
            if at < len(named) and named[at] <= min(fact.last_seq, event.seq):
                yield event.seq


def _find_held_changes(events: Sequence[RecordedEvent], seqs: Sequence[int]) -> Iterator[int]:
    """A change of the context that had to wait for other calls is in the call's result, and in the event that made it:
    of these events, the other one."""
    named = set(seqs)
    results: dict[object, int] = {}
    for event in events:
        fact = event.fact
        if isinstance(fact, MessageAdded) and fact.tool is not None and fact.tool.context is not UNSET:
            results[fact.message.get("tool_call_id")] = event.seq
        elif isinstance(fact, ContextUpdated) and (result := results.get(fact.tool_call_id)) is not None:
            if event.seq in named:
                yield result
            elif result in named:
                yield event.seq


def _find_run_copies(events: Sequence[RecordedEvent], seqs: Sequence[int]) -> Iterator[int]:
    """What a run was asked for with is in each event that begins it or goes on with it, its input in `run.queued`."""
    named, asking = set(seqs), (RunQueued, RunStarted, RunResumed)
    chosen = [event for event in events if event.seq in named]
    asked = {event.run_id for event in chosen if isinstance(event.fact, asking)}
    said = {event.run_id for event in chosen if _is_input(event)}
    for event in events:
        if event.run_id is not None and isinstance(event.fact, asking):
            has_input = isinstance(event.fact, RunQueued) and event.run_id in said
            if event.run_id in asked or has_input:
                yield event.seq


def _is_input(event: RecordedEvent) -> bool:
    fact = event.fact
    return isinstance(fact, MessageAdded) and fact.tool is None and fact.completion is None and fact.person is UNSET


def _find_changed_arguments(events: Sequence[RecordedEvent], seqs: Sequence[int]) -> Iterator[int]:
    """Arguments that a person has changed are in the decision, where the call starts, and in its result."""
    same: dict[str, set[int]] = {}
    for event in events:
        fact = event.fact
        if isinstance(fact, ApprovalDecided) and fact.arguments is not UNSET:
            same[fact.tool_call_id] = {event.seq}
        elif isinstance(fact, ToolStarted) and fact.tool_call_id in same:
            same[fact.tool_call_id].add(event.seq)
        elif isinstance(fact, MessageAdded) and (group := same.get(fact.message.get("tool_call_id", ""))) is not None:
            group.add(event.seq)
    named = set(seqs)
    for group in same.values():
        if not named.isdisjoint(group):
            yield from group


def _find_notes(events: Sequence[RecordedEvent], seqs: Sequence[int]) -> Iterator[int]:
    """The note of somebody who hands back is told to the model in a message of its own, which may come later."""
    named, noted = set(seqs), 0
    for event in events:
        fact = event.fact
        if isinstance(fact, SessionHandedBack) and fact.note is not UNSET:
            noted = event.seq
        elif noted and isinstance(fact, MessageAdded) and _is_note(fact):
            if noted in named or event.seq in named:
                yield from (noted, event.seq)
            noted = 0


def _is_note(fact: MessageAdded) -> bool:
    return fact.person is not UNSET and fact.message.get("role") == "user"
