"""Events as the sessions of a golden database tell them: the Clerk's, on a model that counts the same each time."""

from __future__ import annotations

from typing import Any

from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import Json, digest
from swarmkeep.events.facts import EventDraft, MessageAdded, RunCompleted, RunStarted, SessionEvent
from swarmkeep.events.records import CompletionRecord, RequestRecord, RunOptions, ToolRecord, Usage
from tests.support.pictures import hash_content, make_png

INSTRUCTIONS = "You are a clerk at a bookshop."
TOOLS = '[{"type":"function","function":{"name":"refund","description":"Give money back.","parameters":{}}}]'
LISTED = '{"type":"function","function":{"name":"atlas_find","description":"Find a town.","parameters":{}}}'
SUMMARISE = "Sum up what was said."
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TOTAL: Json = {
    "type": "json_schema",
    "json_schema": {"name": "total", "schema": {"type": "object", "properties": {"total": {"type": "integer"}}}},
}
PICTURE = make_png(80)
PICTURE_NAME = hash_content(PICTURE)
WORKSHOP_BLOBS: dict[str, str | bytes] = {
    **{digest(text): text for text in (INSTRUCTIONS, TOOLS, LISTED, SUMMARISE)},
    PICTURE_NAME: PICTURE,
}

Session = list[list[EventDraft]]


def say(text: str, *parts: Json) -> MessageAdded:
    content: Any = [{"type": "text", "text": text}, *parts] if parts else text
    return MessageAdded(message={"role": "user", "content": content, "sender": "user"})


def make_picture() -> Json:
    blob = {"sha256": PICTURE_NAME, "media_type": "image/png", "size": len(PICTURE), "name": "town.png"}
    return {"type": "image_url", "image_url": {"detail": "low"}, "blob": blob}


def reply(text: str | None, *calls: tuple[str, str, str], sender: str = "Clerk", **of_record: Any) -> MessageAdded:
    message: Json = {"role": "assistant", "content": text, "sender": sender}
    if calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in calls
        ]
    return MessageAdded(message=message, completion=make_completion(bool(calls), **of_record))


def make_completion(has_calls: bool = False, **of_record: Any) -> CompletionRecord:
    params: Json = {"model": "gpt-4o", "temperature": 0, "response_format": TOTAL}
    record: dict[str, Any] = {
        "id": "chatcmpl-2",
        "model": "gpt-4o-2024-08-06",
        "finish_reason": "tool_calls" if has_calls else "stop",
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        "duration_ms": 20.5,
        "request": RequestRecord(instructions=digest(INSTRUCTIONS), tools=digest(TOOLS), params=params),
    }
    return CompletionRecord(**(record | of_record))


def make_result(call_id: str, name: str, content: str, *, sender: str = "Clerk", **of_record: Any) -> MessageAdded:
    message = {"role": "tool", "tool_call_id": call_id, "tool_name": name, "content": content, "sender": sender}
    return MessageAdded(message=message, tool=ToolRecord(**{"name": name, "status": "ok", **of_record}))


def count_usage(calls: int) -> Usage:
    return Usage(prompt_tokens=10 * calls, completion_tokens=5 * calls, total_tokens=15 * calls, model_calls=calls)


def complete(calls: int, reason: str = "end_turn") -> RunCompleted:
    return RunCompleted(stop_reason=reason, usage=count_usage(calls))


def draft_run(run_id: str, *facts: SessionEvent) -> list[EventDraft]:
    return draft_events("Clerk", facts, run_id)


def draft_outside(*facts: SessionEvent) -> list[EventDraft]:
    return draft_events("Clerk", facts, None)


def start(text: str, **options: Any) -> tuple[SessionEvent, ...]:
    return RunStarted(options=RunOptions(**options)), say(text)
