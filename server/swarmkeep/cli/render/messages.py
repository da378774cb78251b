"""A session and its messages, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from swarmkeep.cli.render.event_summary import format_json
from swarmkeep.cli.terminal import put, shorten
from swarmkeep.domain.wording import format_calls, join_content

if TYPE_CHECKING:
    from swarmkeep_client import Message, SessionState

MAX_TEXT = 400


def put_state(state: SessionState) -> None:
    """Show a session's fields, those that are empty left out."""
    origin = state.forked_from
    usage = state.usage
    fields = {
        "id": state.id,
        "status": f"{state.status}, run {state.active_run_id}" if state.active_run_id else state.status,
        "agent": state.agent,
        "context": format_json(state.context_variables),
        "metadata": format_json(state.metadata),
        "events": f"{state.seq}, the last with hash {state.hash}",
        "usage": f"{usage.model_calls} model calls, {usage.total_tokens} tokens",
        "forked from": f"{origin.session_id} at {origin.seq}" if origin else "",
        "created": state.created_at,
        "updated": state.updated_at,
    }
    for name, value in fields.items():
        if value:
            put(f"{name + ':':<13}{value}")
    put()


def format_message(message: Message) -> str:
    """A message with its seq, a line for its text and one for each call."""
    place = f"{message.get('seq', ''):>5}  "
    text = join_content(message.get("content"))
    match message.get("role"):
        case "assistant":
            return "\n".join(
                f"{place}{message.get('sender') or 'assistant'}: {part}"
                for part in (text, *format_calls(message))
                if part
            )
        case "tool":
            return f"{place}  → {shorten(text, MAX_TEXT)}"
        case role:
            return f"{place}{role}: {text}"


def format_messages(messages: Sequence[Message]) -> Iterator[str]:
    """Each message on a line of its own, with its seq and who speaks."""
    for message in messages:
        text = shorten(join_content(message.get("content")), MAX_TEXT)
        speaker = message.get("tool_name") if message.get("role") == "tool" else message.get("sender")
        calls = ", ".join(format_calls(message)) if message.get("role") == "assistant" else ""
        yield f"{message.get('seq')} {speaker}: {' '.join(part for part in (text, calls) if part)}"
