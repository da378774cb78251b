"""A log retold: from events to scenes, which terminals, pages and programs then show in their own way.

Pure. It needs the events only: no agents, no model, no store. What it cannot read, it says so of, and goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Literal

import msgspec

from swarmkeep.audit.changes import Change, find_changes
from swarmkeep.audit.redacted import is_redacted
from swarmkeep.audit.transcript.descriptions import Description, describe
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import Usage
from swarmkeep.domain.fold import evolve
from swarmkeep.domain.state import State

Tone = Literal["plain", "good", "notice", "bad"]


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event, as it would be told.

    `speaker` is whoever speaks or acts (a user, an agent, a tool), or empty; `headline` a line about it; `text` what
    was said, whole; `calls` the calls that it is about, as Python writes calls; `changes` what it changed in context
    variables or metadata. `model`, `usage` and `duration_ms` are of a model call, a tool call or a run. `warning` says
    why there is less to tell than there was.
    """

    seq: int
    at: str
    type: str
    run_id: str | None = None
    agent: str = ""
    speaker: str = ""
    headline: str = ""
    text: str = ""
    calls: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    tone: Tone = "plain"
    model: str | None = None
    usage: Usage | None = None
    duration_ms: float | None = None
    warning: str = ""


def build_timeline(events: Iterable[RecordedEvent], state: State | None = None) -> Iterator[TimelineEntry]:
    """A scene for each event, in order; `events` follow `state` in the log, by default from its beginning."""
    before = State() if state is None else state
    for event in events:
        after = evolve(before, event)
        yield build_entry(before, event, after)
        before = after


def build_entry(before: State, event: RecordedEvent, after: State) -> TimelineEntry:
    """One event, with the states before and after it."""
    said = describe(before, event)
    return TimelineEntry(
        seq=event.seq,
        at=event.at,
        type=event.type,
        run_id=event.run_id,
        agent=event.agent,
        speaker=said.speaker,
        headline=said.headline,
        text=said.text,
        calls=said.calls,
        changes=_find_state_changes(before, after),
        tone=said.tone,
        model=said.model,
        usage=said.usage,
        duration_ms=said.duration_ms if said.duration_ms is not None else _measure_run(said, before, event),
        warning=said.warning or _describe_loss(before, event),
    )


def _find_state_changes(before: State, after: State) -> tuple[Change, ...]:
    found = find_changes(before.context_variables, after.context_variables, "/context_variables")
    return found + find_changes(before.metadata, after.metadata, "/metadata")


def _measure_run(said: Description, before: State, event: RecordedEvent) -> float | None:
    if not said.ends_run or before.run is None or before.run.id != event.run_id:
        return None
    started, ended = _parse_time(before.run.created_at), _parse_time(event.at)
    return None if started is None or ended is None else round((ended - started).total_seconds() * 1000, 3)


def _parse_time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _describe_loss(before: State, event: RecordedEvent) -> str:
    if event.seq == before.seq + 1:
        return "what it said was redacted" if is_redacted(event) else ""
    return f"the log goes from event {before.seq} to event {event.seq}: what was between them is not there"


def entries_to_json(scenes: Iterable[TimelineEntry]) -> list[Any]:
    """The scenes as plain JSON values; what there is nothing to say of is left out."""
    return [msgspec.to_builtins(scene) for scene in scenes]
