"""An event in a line: what a person wants to know of it at a glance."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from typing import Any

from swarmkeep.cli.terminal import is_terminal, shorten
from swarmkeep.domain.codec import Json, decode
from swarmkeep.domain.envelope import RecordedEvent, read_data
from swarmkeep.domain.wording import format_call, format_calls, join_content, pluralize, put_name_first

MAX_LENGTH = 160


def format_event_line(event: RecordedEvent, *, clock_only: bool = False) -> str:
    """An event as a line of the timeline; `clock_only` leaves the date out. Times are UTC."""
    time = event.at[11:23] if clock_only else f"{event.at[:23]}Z"
    start = f"{event.seq:>4}  {time}  {shorten(event.agent or '', 80):<24}  {shorten(event.type, 80):<18}  "
    width = shutil.get_terminal_size((len(start) + MAX_LENGTH, 24)).columns if is_terminal(sys.stdout) else 0
    length = max(width - len(start), 40) if width else MAX_LENGTH
    return (start + summarize_event(event, length)).rstrip()


def summarize_event(event: RecordedEvent, length: int = MAX_LENGTH) -> str:
    """What the event says, on one line. A type that this release does not know is shown as its JSON."""
    data = decode(read_data(event))
    describe = _SUMMARIZERS.get(event.type)
    try:
        text = describe(data) if describe is not None else format_json(data)
    except (KeyError, TypeError, AttributeError):
        # Redacted, or written by another release.
        text = format_json(data)
    return shorten(text, length)


def format_json(value: Any) -> str:
    return "" if value in (None, {}, []) else json.dumps(value, ensure_ascii=False)


def _summarize_message(data: Json) -> str:
    message = data["message"]
    said = join_content(message.get("content"))
    if message["role"] == "tool":
        tool = data.get("tool") or {}
        status = "" if tool.get("status", "ok") == "ok" else f" ({tool['status']})"
        return f"{tool.get('name') or 'tool'}{status} → {said}"
    if "correction" in data:
        return f"correction {data['correction']}: {said}"
    if "person" in data:
        return f"{put_name_first(data['person'])}: {said}"
    calls = "; ".join(format_calls(message)) if message["role"] == "assistant" else ""
    return f"{message['role']}: {' '.join(part for part in (said, calls) if part)}"


def _summarize_removed(data: Json) -> str:
    call = data.get("tool_call_id")
    what = f"message {data['message_seq']}" + (f", call {call}" if call else "")
    what += ", only its content" if data.get("content") else ""
    return f"{what}, by {put_name_first(data['by'])}" if data.get("by") else what


def _summarize_hidden(data: Json) -> str:
    parts = [f"part {data['part']}"] if data.get("part") is not None else []
    parts += [f"by {put_name_first(data['by'])}"] if data.get("by") else []
    return ", ".join(parts)


def _summarize_compaction(data: Json) -> str:
    parts = [f"shortens {pluralize(len(data['shortened']), 'result')}"] if data["shortened"] else []
    parts += [f"sums up to {data['last_seq']}"] if data["last_seq"] else []
    return f"{data['reason']}: {', '.join(parts)}"


def _summarize_takeover(data: Json) -> str:
    by = f"by {put_name_first(data['by'])}" if data.get("by") else ""
    return ": ".join(part for part in (by, data.get("note")) if part)


def _summarize_listing(data: Json) -> str:
    names = ", ".join(tool["name"] for tool in data["tools"])
    return f"{put_name_first(data['server'])}: {data.get('error') or names or 'no tools'}"


def _summarize_created(data: Json) -> str:
    asked = f"asked by {data['parent']['session_id']}" if data.get("parent") else ""
    context = format_json(data.get("context_variables"))
    return " ".join(part for part in (f"with {data['agent']}", asked, context) if part)


def _summarize_updated(data: Json) -> str:
    agent = f"agent {data['agent']}" if "agent" in data else ""
    metadata = f"metadata {format_json(data['metadata'])}" if "metadata" in data else ""
    return ", ".join(part for part in (agent, metadata) if part)


def _summarize_started(data: Json) -> str:
    options = data.get("options") or {}
    # The server's own limits are the same with every run.
    asked = format_json(
        {key: options[key] for key in ("model", "max_turns", "model_settings") if options.get(key) is not None}
    )
    return f"by {put_name_first(data['by'])} {asked}" if data.get("by") else asked


def _summarize_tool_started(data: Json) -> str:
    attempt = data.get("attempt", 1)
    again = f", attempt {attempt}" if attempt > 1 else ""
    asked = f", in session {data['session_id']}" if data.get("session_id") else ""
    return format_call(data["name"], data["arguments"]) + again + asked


def _summarize_decision(data: Json) -> str:
    said = " ".join(put_name_first(str(data[key])) for key in ("decision", "by", "reason") if data.get(key))
    return f"{said}, with other arguments: {data['arguments']}" if data.get("arguments") else said


def _summarize_waiting(data: Json) -> str:
    return "for " + ", ".join(map(_summarize_pending, data["pending"]))


def _summarize_pending(call: Json) -> str:
    if call.get("reason") == "person":
        return "the person who has taken over"
    asked = f" in session {call['session_id']}" if call.get("session_id") else ""
    return format_call(call["name"], call["arguments"]) + asked


def _summarize_end(data: Json) -> str:
    error = data.get("error")
    return str(data["stop_reason"]) + (f": {error['code']}: {error['message']}" if error else "")


def _summarize_handoff(data: Json) -> str:
    return f"{data['from']} → {data['to']}"


def _summarize_refusal(data: Json) -> str:
    error = f" ({data['error']})" if data.get("error") else ""
    return f"{data['stage']} refused by {data['name']}: {data['message']}{error}"


def _summarize_imported(data: Json) -> str:
    by = put_name_first(data["by"] or "somebody")
    return f"events 1 to {data['last_seq']} from {data['source']}, by {by}"


_SUMMARIZERS: dict[str, Callable[[Json], str]] = {
    "session.created": _summarize_created,
    "session.forked": lambda data: f"from {data['from_session_id']} at {data['from_seq']}",
    "session.imported": _summarize_imported,
    "session.taken_over": _summarize_takeover,
    "session.handed_back": _summarize_takeover,
    "session.updated": _summarize_updated,
    "session.redacted": lambda data: f"{', '.join(map(str, data['seqs']))}: {data['reason']}",
    "run.queued": _summarize_started,
    "run.started": _summarize_started,
    "message.added": _summarize_message,
    "message.removed": _summarize_removed,
    "guardrail.tripped": _summarize_refusal,
    "tool.started": _summarize_tool_started,
    "handoff.made": _summarize_handoff,
    "handoff.ignored": _summarize_handoff,
    "context.updated": lambda data: format_json(data["patch"]),
    "approval.requested": lambda data: format_call(data["name"], data["arguments"]),
    "approval.decided": _summarize_decision,
    "run.waiting": _summarize_waiting,
    "run.resumed": lambda data: f"after {data['reason']}",
    "run.completed": _summarize_end,
    "run.failed": _summarize_end,
    "run.cancelled": _summarize_end,
    "run.interrupted": _summarize_end,
    "compaction.started": _summarize_compaction,
    "compaction.summarised": lambda data: f"{data['first_seq']} to {data['last_seq']}: {data['summary']}",
    "compaction.failed": lambda data: f"{data['code']}: {data['message']}",
    "tools.listed": _summarize_listing,
    "run.hidden": _summarize_hidden,
}
