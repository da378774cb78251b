"""Words and figures that both forms of a transcript share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial

from msgspec import UNSET

from swarmkeep.describe import Change, TimelineEntry, describe, find_changes, format_tokens
from swarmkeep.events.codec import encode_text, replace_surrogates
from swarmkeep.events.facts import RecordedEvent, is_redacted
from swarmkeep.events.fold import evolve
from swarmkeep.events.state import State

# What a reader would obey rather than show, and marks that reorder the text around them.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


def show_controls(text: str) -> str:
    """The text with everything in it visible; line breaks and tabs stay."""
    whole = text.replace("\r\n", "\n").replace("\r", "\n")
    return str(replace_surrogates(_CONTROLS.sub(_show_control, whole)))


def _show_control(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else f"[U+{code:04X}]"


def is_message(entry: TimelineEntry) -> bool:
    """Tell if the entry is a message or an answer; the others are events in between."""
    return entry.type == "message.added"


def summarize(entry: TimelineEntry) -> tuple[str, tuple[str, ...]]:
    """The line about something that happened, and the calls to show with it.

    Of a tool that starts only the name: the message before has shown the whole call.
    """
    if entry.type == "tool.started" and entry.calls:
        return f"{entry.headline} {entry.calls[0].partition('(')[0]}", ()
    return entry.headline or ("" if entry.speaker else entry.type), entry.calls


def format_time(at: str) -> str:
    """A time as people read it, in UTC."""
    return show_controls(f"{at[:10]} {at[11:19]}")


def format_change(change: Change) -> tuple[str, str, str]:
    """Return the place, the old value and the new one; a side that has nothing is a dash."""
    before, after = (
        "–" if value is UNSET else show_controls(encode_text(replace_surrogates(value)))
        for value in (change.before, change.after)
    )
    return show_controls(change.path) or "/", before, after


def list_closing_facts(state: State) -> list[tuple[str, str]]:
    """List the facts at the end: how far this goes, and by what that can be proved."""
    return [
        ("Status", state.status),
        ("Active agent", show_controls(state.agent)),
        ("Messages", str(state.message_count)),
        ("Model calls", f"{state.usage.model_calls}, {format_tokens(state.usage)}"),
        ("Last event", f"{state.seq}, at {format_time(state.updated_at)} UTC"),
        ("Its hash", state.hash),
    ]


# Build a timeline from a log: one entry per event, which terminals, pages and programs show in their own way.


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
