"""Build a timeline from a log: one entry per event, which terminals, pages and programs show in their own way.

Pure. It needs the events only: no agents, no model, no store. An event that cannot be read has an entry that says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from swarmkeep.audit.changes import Change, find_changes
from swarmkeep.audit.transcript.descriptions import describe
from swarmkeep.audit.transcript.entry import TimelineEntry
from swarmkeep.domain.envelope import RecordedEvent, is_redacted
from swarmkeep.domain.fold import evolve
from swarmkeep.domain.state import State


def build_timeline(events: Iterable[RecordedEvent], state: State | None = None) -> Iterator[TimelineEntry]:
    """An entry for each event, in order; `events` follow `state` in the log, by default from its beginning."""
    before = State() if state is None else state
    for event in events:
        after = evolve(before, event)
        yield build_entry(before, event, after)
        before = after


def build_entry(before: State, event: RecordedEvent, after: State) -> TimelineEntry:
    """The entry of one event, given the states before and after it."""
    make_entry = partial(
        TimelineEntry,
        seq=event.seq,
        at=event.at,
        type=event.type,
        run_id=event.run_id,
        agent=event.agent,
        changes=_find_state_changes(before, after),
        warning=_describe_loss(before, event),
    )
    return describe(make_entry, before, event)


def _find_state_changes(before: State, after: State) -> tuple[Change, ...]:
    found = find_changes(before.context_variables, after.context_variables, "/context_variables")
    return found + find_changes(before.metadata, after.metadata, "/metadata")


def _describe_loss(before: State, event: RecordedEvent) -> str:
    if event.seq == before.seq + 1:
        return "its content was redacted" if is_redacted(event) else ""
    return f"the log goes from event {before.seq} to event {event.seq}: what was between them is missing"
