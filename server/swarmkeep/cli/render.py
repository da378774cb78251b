"""An event in a line: what a person wants to know of it at a glance."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from swarmkeep.cli.sources import read_event
from swarmkeep.cli.terminal import is_terminal, make_console, put, shorten
from swarmkeep.describe import summarize
from swarmkeep.events.wording import escape_controls, format_calls, format_json, join_content, put_name_first

if TYPE_CHECKING:
    from rich.text import Text

    from swarmkeep_client import Change, Event, Message, SessionState


MAX_LENGTH = 160
TONE_STYLES = {"plain": "", "good": "green", "notice": "cyan", "bad": "red"}


def format_event_line(event: Event, *, clock_only: bool = False) -> str:
    """An event as a line of the timeline; `clock_only` leaves the date out. Times are UTC."""
    time = event.at[11:23] if clock_only else f"{event.at[:23]}Z"
    start = f"{event.seq:>4}  {time}  {shorten(event.agent or '', 80):<24}  {shorten(event.type, 80):<18}  "
    width = shutil.get_terminal_size((len(start) + MAX_LENGTH, 24)).columns if is_terminal(sys.stdout) else 0
    length = max(width - len(start), 40) if width else MAX_LENGTH
    return (start + shorten(summarize(read_event(event)), length)).rstrip()


def format_seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


def format_milliseconds(milliseconds: float | None) -> str:
    return format_seconds(None if milliseconds is None else milliseconds / 1000)


# A session and its messages, as text.

MAX_TEXT = 400
# Before each further line of a text, so that no text can look like another message.
_FURTHER_LINE = "\n     │ "


def describe_status(state: SessionState) -> str:
    """The status; that it is damaged, or of an idle session how its last run ended, where a reader should know."""
    if state.damaged_seq is not None:
        return "damaged"
    ended_badly = state.status == "idle" and state.last_run_status in ("failed", "interrupted")
    return state.last_run_status or "" if ended_badly else state.status


def list_found(state: SessionState) -> Iterator[tuple[str, ...]]:
    """A row for each place where a search found something."""
    for match in state.matches:
        seq = "" if match.seq is None else str(match.seq)
        yield state.id, f"{state.updated_at[:19]}Z", (state.title or "")[:40], seq, match.snippet[:80].strip()


def put_state(state: SessionState) -> None:
    """Show a session's fields, those that are empty left out."""
    origin = state.forked_from
    usage = state.usage
    fields = {
        "id": state.id,
        "status": f"{state.status}, run {state.active_run_id}" if state.active_run_id else state.status,
        "damaged": ""
        if state.damaged_seq is None
        else f"from event {state.damaged_seq} on; `swarmkeep verify` says more",
        "agent": state.agent,
        "context": format_json(state.context_variables),
        "metadata": format_json(state.metadata),
        "events": f"{state.seq}, the last with hash {state.hash}",
        "usage": f"model calls {usage.model_calls}, tokens {usage.total_tokens}",
        "assigned": state.assignee or "",
        "feedback": "" if state.feedback is None else f"{state.feedback.up} up, {state.feedback.down} down",
        "taken over": _describe_takeover(state),
        "on hold": _describe_hold(state),
        "asked by": f"{state.parent.session_id}, by its call {state.parent.tool_call_id}" if state.parent else "",
        "forked from": f"{origin.session_id} at {origin.seq}" if origin else "",
        "created": state.created_at,
        "updated": state.updated_at,
    }
    for name, value in fields.items():
        if value:
            put(f"{name + ':':<13}{value}")
    put()


def _describe_takeover(state: SessionState) -> str:
    taken = state.taken_over
    if taken is None:
        return ""
    note = f": {taken.note}" if taken.note else ""
    return f"by {put_name_first(taken.by or 'a person')} at {taken.at}{note}"


def _describe_hold(state: SessionState) -> str:
    held = state.hold
    return "" if held is None else f"by {put_name_first(held.by or 'a person')} at {held.at}: {held.reason}"


def format_message(message: Message) -> str:
    """A message with its seq, a line for its text and one for each call."""
    place = f"{message.get('seq', ''):>5}  "
    text = join_content(message.get("content"))
    match message.get("role"):
        case "assistant":
            sender = message.get("sender") or "assistant"
            lines = [f"{sender}: {part}" for part in (text, *format_calls(message)) if part]
        case "tool":
            lines = [f"  → {shorten(text, MAX_TEXT)}{_describe_asking(message)}"]
        case role:
            lines = [f"{role}: {text}"]
    return "\n".join(place + part.replace("\n", _FURTHER_LINE) for part in lines)


def _describe_asking(message: Message) -> str:
    """Name the session in which another agent was asked for this result."""
    asked = message.get("session_id")
    return f" (asked in session {asked})" if asked else ""


def format_messages(messages: Sequence[Message]) -> Iterator[str]:
    """Each message on a line of its own, with its seq and who speaks."""
    for message in messages:
        text = shorten(join_content(message.get("content")), MAX_TEXT)
        speaker = message.get("tool_name") if message.get("role") == "tool" else message.get("sender")
        calls = ", ".join(format_calls(message)) if message.get("role") == "assistant" else ""
        yield f"{message.get('seq')} {speaker}: {' '.join(part for part in (text, calls) if part)}"


# Changes of JSON values, a line for each.

# From this width on there is room for what was beside what is.
SIDE_BY_SIDE_COLUMNS = 100


def has_room_beside() -> bool:
    """Tell if the output is a terminal that is wide enough for two sides."""
    return is_terminal(sys.stdout) and get_terminal_size().columns >= SIDE_BY_SIDE_COLUMNS


def put_changes(changes: Sequence[Change]) -> None:
    """A line for each; at a terminal that is wide enough, what was and what is side by side, in colour."""
    if changes and has_room_beside():
        _put_side_by_side(changes)
        return
    for change in changes:
        put(format_change(change.path, change.before, change.after))


def _put_side_by_side(changes: Sequence[Change]) -> None:
    from rich.text import Text

    def style(sign: str, value: Any, colour: str) -> Text:
        return Text("" if value is UNSET else escape_controls(f"{sign} {_format_json(value)}"), style=colour)

    put_beside(
        [
            (
                Text(escape_controls(_name_place(change.path)), style="bold"),
                style("-", change.before, "red"),
                style("+", change.after, "green"),
            )
            for change in changes
        ]
    )


def put_beside(rows: Sequence[Sequence[Text]]) -> None:
    """Show rows of two sides beside each other, each as wide as the other; a name may stand before them."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2), expand=True)
    if len(rows[0]) > 2:
        # As wide as the names, as long as they leave most of the room to the sides.
        table.add_column(max_width=get_terminal_size().columns // 3, overflow="fold")
    for _ in ("before", "after"):
        table.add_column(ratio=1, overflow="fold")
    for row in rows:
        table.add_row(*row)
    make_console().print(table)


def format_change(path: str, before: Any, after: Any) -> str:
    """A change of a place: what stood there, and what stands there; UNSET is nothing."""
    place = _name_place(path)
    if before is UNSET:
        return f"+ {place}: {_format_json(after)}"
    if after is UNSET:
        return f"- {place}: {_format_json(before)}"
    return f"~ {place}: {_format_json(before)} → {_format_json(after)}"


def _name_place(path: str) -> str:
    return path.removeprefix("/context_variables/").lstrip("/") or "all of it"


def _format_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
