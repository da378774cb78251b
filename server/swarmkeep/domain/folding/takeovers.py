"""Fold who speaks in the agent's place."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.facts.takeovers import HandbackNote, SessionHandedBack, SessionTakenOver, TakenOver
from swarmkeep.domain.state import State


def apply_takeover(state: State, event: RecordedEvent, fact: SessionTakenOver | SessionHandedBack) -> State:
    if isinstance(fact, SessionTakenOver):
        note = None if fact.note is UNSET else fact.note
        return replace(state, taken_over=TakenOver(by=fact.by, at=event.at, note=note))
    run = state.run
    if run is not None and any(waited.reason == "person" for waited in run.pending):
        run = replace(run, pending=tuple(waited for waited in run.pending if waited.reason != "person"))
    told = HandbackNote(text=fact.note, by=fact.by) if fact.note else state.handback_note
    return replace(state, taken_over=None, run=run, handback_note=told)
