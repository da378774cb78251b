"""Answers as a server gives them."""

from __future__ import annotations

import json
from typing import Any

from swarmkeep.events.codec import Json


def make_session(**changes: Any) -> Json:
    return {
        "id": "s1",
        "status": "idle",
        "agent": "Triage Agent",
        "context_variables": {"user_name": "John"},
        "metadata": {},
        "seq": 1,
        "hash": "h1",
        "active_run_id": None,
        "message_count": 0,
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "model_calls": 0},
        "forked_from": None,
        "created_at": "2026-01-02T03:04:05.000006Z",
        "updated_at": "2026-01-02T03:04:05.000006Z",
        **changes,
    }


def make_run(**changes: Any) -> Json:
    return {
        "id": "r1",
        "session_id": "s1",
        "status": "completed",
        "stop_reason": "end_turn",
        "agent": "Refunds Agent",
        "messages": [{"seq": 3, "role": "user", "content": "Hi", "sender": "user"}],
        "output_text": "Hello, John.",
        "context_variables": {"user_name": "John"},
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12, "model_calls": 1},
        "error": None,
        "pending": [],
        "first_seq": 2,
        "last_seq": 5,
        "created_at": "2026-01-02T03:04:05.000006Z",
        "finished_at": "2026-01-02T03:04:06.000006Z",
        **changes,
    }


def make_failed_run(**changes: Any) -> Json:
    error = {"code": "provider_error", "message": "no luck", "retryable": True, "provider_status": 500}
    return make_run(status="failed", stop_reason="error", error=error, **changes)


def make_event(seq: int, type: str, **changes: Any) -> Json:
    return {
        "session_id": "s1",
        "seq": seq,
        "type": type,
        "version": 1,
        "run_id": "r1",
        "agent": "Triage Agent",
        "at": "2026-01-02T03:04:05.000006Z",
        "data": {},
        "hash": f"h{seq}",
        **changes,
    }


def make_page(items: list[Any], next_cursor: str | None = None) -> Json:
    return {"data": items, "next_cursor": next_cursor}


def durable_frame(event: Json) -> bytes:
    return f"id: {event['seq']}\nevent: {event['type']}\ndata: {_encode(event)}\n\n".encode()


def passing_frame(type: str, data: Json) -> bytes:
    return f"event: {type}\ndata: {_encode(data)}\n\n".encode()


def started_frame(**changes: Any) -> bytes:
    return passing_frame("message.started", {"run_id": "r1", "agent": "Triage Agent", **changes})


def delta_frame(content: str, **changes: Any) -> bytes:
    return passing_frame("message.delta", {"run_id": "r1", "agent": "Triage Agent", "content": content, **changes})


def done_frame(run: Json) -> bytes:
    return passing_frame("done", run)


def _encode(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
