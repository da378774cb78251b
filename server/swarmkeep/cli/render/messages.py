"""A session and its messages, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from swarmkeep.cli.render.event_summary import format_json
from swarmkeep.cli.terminal import put, shorten
from swarmkeep.domain.wording import format_calls, join_content, put_name_first

if TYPE_CHECKING:
    from swarmkeep_client import Message, SessionState

MAX_TEXT = 400
# Before each further line of a text, so that nobody can write one that looks like another message.
_FURTHER_LINE = "\n     │ "


def describe_status(state: SessionState) -> str:
    """The status; that it is damaged, or of an idle session how its last run ended, where somebody should know."""
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
        "taken over": _describe_takeover(state),
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
    """Where another agent was asked for this result."""
    asked = message.get("session_id")
    return f" (asked in session {asked})" if asked else ""


def format_messages(messages: Sequence[Message]) -> Iterator[str]:
    """Each message on a line of its own, with its seq and who speaks."""
    for message in messages:
        text = shorten(join_content(message.get("content")), MAX_TEXT)
        speaker = message.get("tool_name") if message.get("role") == "tool" else message.get("sender")
        calls = ", ".join(format_calls(message)) if message.get("role") == "assistant" else ""
        yield f"{message.get('seq')} {speaker}: {' '.join(part for part in (text, calls) if part)}"
