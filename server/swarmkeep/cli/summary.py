"""An event in a line: what a person wants to know of it at a glance."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from swarmkeep.cli.terminal import shortened
from swarmkeep.domain.wording import call_text, calls_in, text_of

if TYPE_CHECKING:
    from swarmkeep_client import Event

Json = dict[str, Any]
LONGEST = 160


def summary(event: Event, length: int = LONGEST) -> str:
    """What the event says, on one line. A type that this release does not know is shown as its JSON."""
    describe = _DESCRIBED.get(event.type)
    try:
        text = describe(event.data) if describe is not None else compact(event.data)
    except (KeyError, TypeError, AttributeError):
        # Redacted, or written by another release.
        text = compact(event.data)
    return shortened(text, length)


def compact(value: Any) -> str:
    return "" if value in (None, {}, []) else json.dumps(value, ensure_ascii=False)


def _message(data: Json) -> str:
    message = data["message"]
    said = text_of(message.get("content"))
    if message["role"] == "tool":
        tool = data.get("tool") or {}
        status = "" if tool.get("status", "ok") == "ok" else f" ({tool['status']})"
        return f"{tool.get('name') or 'tool'}{status} → {said}"
    calls = "; ".join(calls_in(message)) if message["role"] == "assistant" else ""
    return f"{message['role']}: {' '.join(part for part in (said, calls) if part)}"


def _created(data: Json) -> str:
    return " ".join(part for part in (f"with {data['agent']}", compact(data.get("context_variables"))) if part)


def _updated(data: Json) -> str:
    agent = f"agent {data['agent']}" if "agent" in data else ""
    metadata = f"metadata {compact(data['metadata'])}" if "metadata" in data else ""
    return ", ".join(part for part in (agent, metadata) if part)


def _started(data: Json) -> str:
    options = data.get("options") or {}
    # The server's own limits are the same with every run.
    return compact({key: options[key] for key in ("model", "max_turns") if options.get(key) is not None})


def _tool_started(data: Json) -> str:
    attempt = data.get("attempt", 1)
    return call_text(data["name"], data["arguments"]) + (f", attempt {attempt}" if attempt > 1 else "")


def _decided(data: Json) -> str:
    return " ".join(str(data[key]) for key in ("decision", "by", "reason") if data.get(key))


def _waiting(data: Json) -> str:
    return "for " + ", ".join(call_text(call["name"], call["arguments"]) for call in data["pending"])


def _ended(data: Json) -> str:
    error = data.get("error")
    return str(data["stop_reason"]) + (f": {error['code']}: {error['message']}" if error else "")


def _handed(data: Json) -> str:
    return f"{data['from']} → {data['to']}"


_DESCRIBED: dict[str, Callable[[Json], str]] = {
    "session.created": _created,
    "session.forked": lambda data: f"from {data['from_session_id']} at {data['from_seq']}",
    "session.updated": _updated,
    "session.redacted": lambda data: f"{', '.join(map(str, data['seqs']))}: {data['reason']}",
    "run.queued": _started,
    "run.started": _started,
    "message.added": _message,
    "tool.started": _tool_started,
    "handoff.made": _handed,
    "handoff.ignored": _handed,
    "context.updated": lambda data: compact(data["patch"]),
    "approval.requested": lambda data: call_text(data["name"], data["arguments"]),
    "approval.decided": _decided,
    "run.waiting": _waiting,
    "run.resumed": lambda data: f"after {data['reason']}",
    "run.completed": _ended,
    "run.failed": _ended,
    "run.cancelled": _ended,
    "run.interrupted": _ended,
}
