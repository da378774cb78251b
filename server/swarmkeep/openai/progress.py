"""Builds a response of a run's events: the object, and the stream of events that leads to it.

Retrieving and streaming are the same: a builder reads the run's items, from the first event on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.decide.steps import REPLY_CUT
from swarmkeep.events import facts
from swarmkeep.events.codec import Json, parse_timestamp
from swarmkeep.events.errors import SessionNotFound
from swarmkeep.events.messages import Entry
from swarmkeep.events.records import RunOptions, read_count
from swarmkeep.openai.event_writer import EventWriter
from swarmkeep.openai.items import ResponseId, list_requests_below, show_request_below
from swarmkeep.openai.output_items import (
    ItemReader,
    is_cut_item,
    show_approval_request,
    show_approval_response,
    show_message,
)
from swarmkeep.openai.problems import is_of_input, is_too_many
from swarmkeep.runs.hub import Item, MessageDeltas, MessageStarted
from swarmkeep.runs.reader import Batch

# Tokens as responses and chat completions show them, with details where the provider told them.


class UsageSum:
    """The sum of what the model calls of one response reported."""

    def __init__(self) -> None:
        self.calls = 0
        self._input = self._output = self._total = 0
        self._cached = self._cache_written = self._reasoning = 0

    def add(self, reported: Json | None) -> None:
        counts = reported or {}
        self.calls += 1
        self._input += _count(counts, "prompt_tokens")
        self._output += _count(counts, "completion_tokens")
        self._total += _count(counts, "total_tokens")
        self._cached += _count(counts.get("prompt_tokens_details"), "cached_tokens")
        self._cache_written += _count(counts.get("prompt_tokens_details"), "cache_write_tokens")
        self._reasoning += _count(counts.get("completion_tokens_details"), "reasoning_tokens")

    def to_response(self) -> Json:
        return {
            "input_tokens": self._input,
            "input_tokens_details": {"cached_tokens": self._cached, "cache_write_tokens": self._cache_written},
            "output_tokens": self._output,
            "output_tokens_details": {"reasoning_tokens": self._reasoning},
            "total_tokens": self._total,
        }

    def to_chat(self) -> Json:
        return {
            "prompt_tokens": self._input,
            "completion_tokens": self._output,
            "total_tokens": self._total,
            "prompt_tokens_details": {"cached_tokens": self._cached, "cache_write_tokens": self._cache_written},
            "completion_tokens_details": {"reasoning_tokens": self._reasoning},
        }


def _count(counts: object, name: str) -> int:
    return read_count(counts.get(name)) if isinstance(counts, dict) else 0


# The response as an object: every field that the Open Responses specification requires, null where it says so.

_EVENT_TYPES = {"completed": "response.completed", "failed": "response.failed"}
_OVER = ("completed", "failed", "incomplete", "cancelled")
# How the last reply ended, in OpenAI's words for a response that is not whole.
_TOKENS = "max_output_tokens"
_INCOMPLETE = {"length": _TOKENS, "content_filter": "content_filter"}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a response. Times are those of events; `last_seq` is its last event. `has_cut_call`: the end of
    the last reply cut a call that was the caller's to carry out."""

    status: str = "in_progress"
    created_at: str = ""
    completed_at: str | None = None
    reason: str | None = None
    error: facts.RunError | None = None
    last_seq: int = 0
    has_cut_call: bool = False

    @property
    def event_type(self) -> str:
        """The event that says how it ended. There is none for one that was cancelled: it is incomplete."""
        return _EVENT_TYPES.get(self.status, "response.incomplete")

    def note_finish(self, ending: str | None, *, has_cut_call: bool) -> Outcome:
        reason = _TOKENS if has_cut_call else _INCOMPLETE.get(ending or "")
        return replace(self, reason=reason, has_cut_call=has_cut_call)


def describe_ending(outcome: Outcome, event: facts.RecordedEvent, fact: facts.RunWaiting | facts.RunEnded) -> Outcome:
    """The outcome once a run waits, or has ended."""
    ended = replace(outcome, last_seq=event.seq)
    if isinstance(fact, facts.RunWaiting):
        if outcome.has_cut_call:
            return replace(ended, status="incomplete", reason=_TOKENS)
        return replace(ended, status="completed", completed_at=event.at, reason=None)
    if isinstance(fact, facts.RunCompleted):
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
    error = fact.error or facts.RunError(code=fact.stop_reason, message="the run was cut off")
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
        "usage": usage.to_response() if outcome.status in _OVER else None,
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


def _show_error(error: facts.RunError) -> Json:
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


class ResponseBuilder:
    """One part of a run as a response. The stream leaves out events with numbers up to `after`.

    `stored` is false for a run that is in no log.
    """

    def __init__(self, response_id: ResponseId, *, after: int = -1, stored: bool = True) -> None:
        self.id = response_id
        self.stored = stored
        self._reader = ItemReader(response_id.session_id)
        self._part = 0
        self._options = RunOptions()
        self._agent = ""
        self._writer = EventWriter(after)
        self.outcome = Outcome()
        self.is_over = False
        """The response has ended, as far as was read."""
        self._input: list[Json | Entry] = []
        self.usage = UsageSum()
        self.below: dict[str, facts.AwaitedApproval] = {}
        """The approvals that it waits for in other sessions, by the ids of their items."""
        self.first_index = 0
        """How many items the parts before it had, for a reader who counts those of the whole run."""

    def begin_behind(self, part: int, turns: int, options: RunOptions, agent: str) -> None:
        """Begin with the reply after so many turns, which is in that part, in the place of the run's first event."""
        self._part, self._options, self._agent = part, options, agent
        self._reader.skip_turns(self.id.run_id, turns)

    def make_next(self, *, after: int = -1) -> ResponseBuilder:
        """The builder of what its run does once it goes on: for a reader of the whole run, when it has read this part
        to its end."""
        following = ResponseBuilder(replace(self.id, part=self._part), after=after, stored=self.stored)
        following._reader, following._part = self._reader, self._part
        following._options, following._agent = self._options, self._agent
        following.first_index = self.first_index + self._writer.next_index
        return following

    @property
    def next_message_id(self) -> str:
        """The id that the message of its run's next reply has, if that says anything."""
        return self._reader.next_place(self.id.run_id).make_id("msg")

    @property
    def output(self) -> list[Json]:
        """The finished items, without wrong answers that were given again."""
        return self._writer.valid_output

    def is_cut(self, item_id: str) -> bool:
        """Return whether this is a call that the end of a reply cut: no client may carry it out."""
        return item_id in self._writer.cut_items

    @property
    def input(self) -> list[Json]:
        """The response's input, as items."""
        # Made on demand: messages may have tens of thousands of parts, and few requests want them.
        session_id = self.id.session_id
        return [show_message(session_id, item) if isinstance(item, Entry) else item for item in self._input]

    def snapshot(self) -> Json:
        """The response as it is by now."""
        return make_response(
            self.id, self._options, self._agent, self.outcome, self.output, self.usage, stored=self.stored
        )

    def read(self, item: Item) -> list[Json]:
        """Take in an item of the run. Returns the events of the stream that it makes, with their numbers."""
        if isinstance(item, MessageStarted):
            if self._is_wanted and self.outcome.created_at:
                return self._writer.begin_message(self._reader.next_place(item.run_id))
            return []
        if isinstance(item, MessageDeltas):
            return self._writer.add_pieces(item.deltas)
        events = self._read_event(item)
        self.is_over = self.outcome.status in _OVER
        return events

    async def read_to_end(self, batches: AsyncGenerator[Batch], passes: Callable[[Batch], Awaitable[bool]]) -> Json:
        """Read items until the response has ended, and give it. Raises SessionNotFound when it will not."""
        async with aclosing(batches):
            async for batch in batches:
                if not await passes(batch):
                    break
                for item in batch:
                    self.read(item)
                if self.is_over:
                    break
        if not self.is_over:
            raise SessionNotFound(self.id.session_id)
        return self.snapshot()

    @property
    def _is_wanted(self) -> bool:
        return self._part == self.id.part

    def _read_event(self, event: facts.RecordedEvent) -> list[Json]:
        fact = event.fact
        match fact:
            case facts.RunQueued():
                self._options, self._agent = fact.options, fact.agent or event.agent
                return self._begin(event, "queued")
            case facts.RunStarted():
                self._options, self._agent = fact.options, event.agent
                return self._begin(event, "in_progress")
            case facts.RunResumed():
                self._options = self._options if fact.options is UNSET else fact.options
                if fact.reason == "recovery" and self._is_wanted:
                    self._writer.note_recovery()
                return self._begin(event, "in_progress")
            case facts.MessageAdded():
                return self._read_message(event, fact)
            case facts.ApprovalRequested():
                return self._read_approval(fact)
            case facts.ApprovalDecided():
                return self._read_decision(fact)
            case facts.RunWaiting() | facts.RunEnded():
                return self._end(event, fact)
            case _:
                return self._writer.settle()

    def _begin(self, event: facts.RecordedEvent, status: str) -> list[Json]:
        if not self._is_wanted:
            return []
        first = not self.outcome.created_at
        # No reader is told that another server took over: one who followed the first counted what came after it.
        is_taken_over = not first and self.outcome.status == status
        self.outcome = Outcome(status=status, created_at=self.outcome.created_at or event.at, last_seq=event.seq)
        events = self._writer.settle()
        if is_taken_over:
            return events
        events += self._write_response("response.created") if first else []
        return events + self._write_response(f"response.{status}")

    def _end(self, event: facts.RecordedEvent, fact: facts.RunWaiting | facts.RunEnded) -> list[Json]:
        events: list[Json] = []
        if self._is_wanted and self.outcome.created_at:
            events += self._writer.close_open_message()
            if isinstance(fact, facts.RunWaiting):
                events += self._write_requests_below(event, fact)
            self.outcome = describe_ending(self.outcome, event, fact)
            events += self._writer.write_end(
                self.outcome.event_type, self.snapshot(), self._reader.next_place(self.id.run_id)
            )
        if isinstance(fact, facts.RunWaiting):
            self._part += 1
        return events

    def _write_requests_below(self, event: facts.RecordedEvent, fact: facts.RunWaiting) -> list[Json]:
        self.below = dict(list_requests_below(self.id.session_id, event.seq, fact.pending))
        return [
            each
            for item_id, approval in self.below.items()
            for each in self._writer.write_item(show_request_below(item_id, approval))
        ]

    def _write_response(self, kind: str) -> list[Json]:
        # A snapshot is not cheap, and the reader may have this event.
        return self._writer.write(kind, response=self.snapshot() if self._writer.is_next_new else {})

    def _read_message(self, event: facts.RecordedEvent, fact: facts.MessageAdded) -> list[Json]:
        entry = Entry(
            seq=event.seq,
            at=event.at,
            run_id=event.run_id,
            message=fact.message,
            completion=fact.completion,
            tool=fact.tool,
        )
        if entry.role not in ("assistant", "tool"):
            if self._is_wanted and fact.correction is UNSET:
                self._input.append(entry)
            elif self._is_wanted:
                self._writer.take_back_answer()
            return self._writer.settle()
        place = self._reader.next_place(self.id.run_id)
        items = self._reader.read(entry, self._options)
        if not self._is_wanted:
            return []
        if entry.role == "tool":
            return self._read_result(fact, items)
        if fact.completion is None and fact.guardrail is UNSET:
            # What an agent said elsewhere, which a caller brings along.
            self._input += items
            return []
        if not self.outcome.created_at:
            return []
        if fact.completion is not None:
            self.usage.add(fact.completion.usage)
            has_cut_call = any(is_cut_item(item) for item in items)
            self.outcome = self.outcome.note_finish(fact.completion.ending, has_cut_call=has_cut_call)
        return self._writer.write_reply(items, place)

    def _read_result(self, fact: facts.MessageAdded, items: list[Json]) -> list[Json]:
        call = self._reader.calls.get(str(fact.message.get("tool_call_id")))
        if call is None or not call.cut:
            # The result of one that was cut is not the caller's.
            self._input += [item for item in items if item["type"] == "function_call_output"]
        events = [event for item in items for event in self._writer.write_result(item)]
        if fact.correction is not UNSET:
            self._writer.take_back_call()
        return events

    def _read_approval(self, fact: facts.ApprovalRequested) -> list[Json]:
        self._reader.with_approval.add(fact.tool_call_id)
        call = self._reader.calls.get(fact.tool_call_id)
        if call is None or not self._is_wanted:
            return []
        return self._writer.write_item(show_approval_request(call))

    def _read_decision(self, fact: facts.ApprovalDecided) -> list[Json]:
        """Record the decision as input: the response that goes on was asked for with it."""
        call = self._reader.calls.get(fact.tool_call_id)
        if call is not None and self._is_wanted:
            self._input.append(show_approval_response(call, fact.decision == "approve", fact.reason))
        return []
