"""Chat Completions messages: what is kept, and what of it is sent."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from swarmkeep.domain.codec import MalformedJson, decode, encode, well_formed
from swarmkeep.domain.events import CompletionRecord, ToolRecord

Json = dict[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")
INTERRUPTED = "Interrupted: the outcome of this call is unknown. It may or may not have taken effect."
SUPERSEDED = "Not handed over to {agent}: a later call of the same reply handed over instead, and the last one wins."

# Only Chat Completions keys go to a model: strict servers refuse `sender` and the like.
_SENT = {
    "system": ("role", "content", "name"),
    "developer": ("role", "content", "name"),
    "user": ("role", "content", "name"),
    "assistant": ("role", "content", "refusal", "name"),
    "tool": ("role", "tool_call_id", "content"),
}


class Entry(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One message of a session, with where it stands in the log."""

    seq: int
    at: str
    run_id: str | None
    message: Json
    completion: CompletionRecord | None = None
    tool: ToolRecord | None = None

    @property
    def role(self) -> str:
        role: str = self.message["role"]
        return role

    @functools.cached_property
    def sent(self) -> Json:
        """The message with Chat Completions keys only."""
        return sendable(self.message)

    @functools.cached_property
    def wire(self) -> bytes:
        """`sent`, encoded. Kept, because a session's history goes out again with every turn."""
        return encode(self.sent)

    @functools.cached_property
    def call_ids(self) -> tuple[str, ...]:
        """The tool calls that this message asks for, each id once."""
        return tuple(call["id"] for call in self.sent.get("tool_calls", ()))

    def view(self) -> Json:
        """The public form: the message, its sender and its place in the log."""
        return {"seq": self.seq, "at": self.at, "run_id": self.run_id, "sender": None, **self.message}


def sendable(message: Json) -> Json:
    role = message["role"]
    sent = {key: message[key] for key in _SENT[role] if message.get(key) is not None}
    calls = _calls(message) if role == "assistant" else []
    if calls:
        sent["tool_calls"] = calls
    if sent.get("content") is None:
        # Null content is allowed beside tool calls only.
        sent["content"] = None if calls else ""
    try:
        encode_strict(sent)
    except UnicodeEncodeError:
        sent = well_formed(sent)
    return sent


encode_strict = msgspec.json.Encoder().encode


def _calls(message: Json) -> list[Json]:
    calls: dict[str, Json] = {}
    for call in message.get("tool_calls") or ():
        function = call["function"]
        calls.setdefault(
            call["id"],
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": function["name"], "arguments": _arguments(function.get("arguments"))},
            },
        )
    return list(calls.values())


def _arguments(text: str | None) -> str:
    """The arguments as a model may see them again: several servers refuse a history whose arguments are no JSON."""
    try:
        return text if text and isinstance(decode(text), dict) else "{}"
    except MalformedJson:
        return "{}"


def missing_result(call_id: str) -> Entry:
    """The result that stands in for one that was never recorded."""
    message = {"role": "tool", "tool_call_id": call_id, "content": INTERRUPTED}
    return Entry(seq=0, at="", run_id=None, message=message)


def paired(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The messages as a model accepts them: after each one that asks for tools, exactly one result per call, in order.

    Missing results are filled in; results that answer no call, or come too late, are left out.
    """
    asked: tuple[str, ...] = ()
    results: dict[str, Entry] = {}
    for entry in entries:
        if entry.role == "tool":
            results.setdefault(entry.message.get("tool_call_id", ""), entry)
            continue
        for call_id in asked:
            yield results.get(call_id) or missing_result(call_id)
        results = {}
        yield entry
        asked = entry.call_ids if entry.role == "assistant" else ()
    for call_id in asked:
        yield results.get(call_id) or missing_result(call_id)
