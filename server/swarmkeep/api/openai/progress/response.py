"""The response as an object: every field that the Open Responses specification requires, null where it says so."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.api.openai.errors import is_of_input, is_too_many
from swarmkeep.api.openai.items.ids import ResponseId
from swarmkeep.api.openai.progress.usage import UsageSum
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.cut_calls import REPLY_CUT
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import RunCompleted, RunEnded, RunError, RunWaiting
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.domain.timestamps import parse_timestamp

_EVENT_TYPES = {"completed": "response.completed", "failed": "response.failed"}
_OVER = ("completed", "failed", "incomplete", "cancelled")
# How the last reply ended, in OpenAI's words for a response that is not whole.
_TOKENS = "max_output_tokens"
_INCOMPLETE = {"length": _TOKENS, "content_filter": "content_filter"}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How far a response has come. Times are those of events; `last_seq` is its last event. `has_cut_call`: the end of
    the last reply cut a call that was the caller's to carry out."""

    status: str = "in_progress"
    created_at: str = ""
    completed_at: str | None = None
    reason: str | None = None
    error: RunError | None = None
    last_seq: int = 0
    has_cut_call: bool = False

    @property
    def is_over(self) -> bool:
        return self.status in _OVER

    @property
    def event_type(self) -> str:
        """The event that says how it ended. There is none for one that was cancelled: it is incomplete."""
        return _EVENT_TYPES.get(self.status, "response.incomplete")

    def note_finish(self, ending: str | None, *, has_cut_call: bool) -> Outcome:
        reason = _TOKENS if has_cut_call else _INCOMPLETE.get(ending or "")
        return replace(self, reason=reason, has_cut_call=has_cut_call)


def describe_ending(outcome: Outcome, event: RecordedEvent, fact: RunWaiting | RunEnded) -> Outcome:
    """The outcome once a run waits, or has ended."""
    ended = replace(outcome, last_seq=event.seq)
    if isinstance(fact, RunWaiting):
        if outcome.has_cut_call:
            return replace(ended, status="incomplete", reason=_TOKENS)
        return replace(ended, status="completed", completed_at=event.at, reason=None)
    if isinstance(fact, RunCompleted):
        reason = outcome.reason if fact.stop_reason in ("end_turn", "guardrail") else fact.stop_reason
        if reason is not None:
            return replace(ended, status="incomplete", reason=reason)
        return replace(ended, status="completed", completed_at=event.at)
    if fact.stop_reason == "cancelled":
        return replace(ended, status="cancelled", reason=None)
    if fact.error is not None and fact.error.code == "content_filter" and fact.error.provider_status is None:
        # The provider stopped the answer; one that refuses the request has a status.
        return replace(ended, status="incomplete", reason="content_filter")
    if fact.error is not None and fact.error.code == REPLY_CUT:
        return replace(ended, status="incomplete", reason=_TOKENS)
    error = fact.error or RunError(code=fact.stop_reason, message="the run was cut off")
    return replace(ended, status="failed", reason=None, error=error)


def make_response(
    response_id: ResponseId,
    options: RunOptions,
    agent: str,
    outcome: Outcome,
    output: list[Json],
    usage: UsageSum,
    *,
    stored: bool,
) -> Json:
    asked = {} if options.request is UNSET else options.request
    return {
        "id": str(response_id),
        "object": "response",
        "created_at": to_seconds(outcome.created_at),
        "completed_at": None if outcome.completed_at is None else to_seconds(outcome.completed_at),
        "status": outcome.status,
        "incomplete_details": _show_incomplete(outcome),
        "model": asked.get("model") or agent,
        "previous_response_id": asked.get("previous_response_id"),
        "conversation": asked.get("conversation"),
        "instructions": asked.get("instructions"),
        "output": list(output),
        "error": None if outcome.error is None else _show_error(outcome.error),
        "tools": [_show_tool(tool) for tool in msgspec.to_builtins(options.caller_tools)],
        "tool_choice": asked.get("tool_choice") or "auto",
        "truncation": asked.get("truncation") or "disabled",
        "parallel_tool_calls": _or(asked.get("parallel_tool_calls"), True),
        "text": asked.get("text") or {"format": {"type": "text"}},
        "temperature": _or(asked.get("temperature"), 1.0),
        "top_p": _or(asked.get("top_p"), 1.0),
        "presence_penalty": _or(asked.get("presence_penalty"), 0.0),
        "frequency_penalty": _or(asked.get("frequency_penalty"), 0.0),
        "top_logprobs": _or(asked.get("top_logprobs"), 0),
        "reasoning": asked.get("reasoning"),
        "user": asked.get("user"),
        "usage": usage.to_response() if outcome.is_over else None,
        "max_output_tokens": asked.get("max_output_tokens"),
        "max_tool_calls": None,
        "store": stored,
        "background": bool(asked.get("background")),
        "service_tier": asked.get("service_tier") or "default",
        "metadata": asked.get("metadata") or {},
        "safety_identifier": asked.get("safety_identifier"),
        "prompt_cache_key": asked.get("prompt_cache_key"),
    }


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _show_incomplete(outcome: Outcome) -> Json | None:
    return {"reason": outcome.reason} if outcome.status == "incomplete" and outcome.reason else None


def _show_error(error: RunError) -> Json:
    """An error in one of OpenAI's codes; its own code is the `type`."""
    code = "rate_limit_exceeded" if is_too_many(error) else "invalid_prompt" if is_of_input(error) else "server_error"
    return {"code": code, "message": error.message, "type": error.code, "param": None}


def _show_tool(tool: Json) -> Json:
    function = tool["function"]
    return {
        "type": "function",
        "name": function["name"],
        "description": function.get("description"),
        "parameters": function.get("parameters"),
        "strict": function.get("strict"),
    }


def to_seconds(at: str) -> int:
    found = parse_timestamp(at)
    return int((found or datetime.fromtimestamp(0)).timestamp())
