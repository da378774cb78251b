"""Describe what happens to a run in words: its beginning, waits, decisions and end."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from msgspec import UNSET

from swarmkeep.audit.transcript.entry import TimelineEntry
from swarmkeep.domain.codec import encode_text
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import (
    ApprovalDecided,
    ApprovalRequested,
    PendingCall,
    RunCancelled,
    RunCompleted,
    RunEnded,
    RunFailed,
    RunHidden,
    RunInterrupted,
    RunQueued,
    RunResumed,
    RunStarted,
    RunWaiting,
)
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.domain.state import State
from swarmkeep.domain.timestamps import parse_timestamp
from swarmkeep.domain.wording import format_call, join_content, pluralize, put_name_first

MakeEntry = Callable[..., TimelineEntry]
"""Makes the entry of one event: all that is the same whatever the event says is given already."""


def describe_run_event(
    make_entry: MakeEntry,
    before: State,
    event: RecordedEvent,
    fact: RunQueued | RunStarted | RunWaiting | RunResumed | ApprovalRequested | ApprovalDecided
    | RunCompleted | RunFailed | RunCancelled | RunInterrupted | RunHidden,
) -> TimelineEntry:  # fmt: skip
    match fact:
        case RunStarted():
            return _describe_begin(make_entry, fact, "starts a run", "a run starts")
        case RunQueued():
            said = "\n".join(join_content(message.get("content")) for message in fact.messages)
            return _describe_begin(make_entry, fact, "queues a run", "a run is queued", text=said)
        case RunWaiting():
            return make_entry(
                headline=_describe_wait(fact.pending), calls=_list_pending_calls(fact.pending), tone="notice"
            )
        case RunResumed():
            return _describe_resume(make_entry, fact)
        case ApprovalRequested():
            until = f" until {fact.expires_at}" if fact.expires_at else ""
            call = format_call(fact.name, fact.arguments)
            return make_entry(headline=f"an approval is asked for{until}", calls=(call,), tone="notice")
        case ApprovalDecided():
            return _describe_decision(make_entry, before, fact)
        case RunCompleted() | RunFailed() | RunCancelled() | RunInterrupted():
            return _describe_end(make_entry, before, event, fact)
        case RunHidden():
            part = "" if fact.part is UNSET else f"part {fact.part} of "
            hidden = f"makes {part}run {event.run_id} unfindable as a response"
            return make_entry(speaker=name_actor(fact.by), headline=hidden, tone="notice")
        case _:
            assert_never(fact)


def _describe_begin(
    make_entry: MakeEntry, fact: RunStarted | RunQueued, done: str, happened: str, text: str = ""
) -> TimelineEntry:
    """Who began a run, where that is known; `happened` says it without anybody."""
    speaker = put_name_first(fact.by) if fact.by else ""
    said = (done if speaker else happened, *_describe_options(fact.options))
    return make_entry(speaker=speaker, headline=" ".join(said), text=text)


def _describe_options(options: RunOptions) -> tuple[str, ...]:
    """How the run is asked for, where that is not as usual."""
    said = []
    if options.model:
        said.append(f"with the model {options.model}")
    if options.max_turns is not None:
        said.append(f"for at most {pluralize(options.max_turns, 'turn')}")
    if not options.execute_tools:
        said.append("without running its tools")
    if options.caller_tools:
        said.append(f"with functions of the caller: {', '.join(sorted(options.caller_tool_names))}")
    if options.model_settings:
        said.append(f"with {encode_text(options.model_settings)}")
    if options.response_format:
        said.append(f"for an answer of the form {options.response_format.get('type')}")
    if options.instructions:
        said.append("with instructions of its own")
    return tuple(said)


def _describe_wait(pending: tuple[PendingCall, ...]) -> str:
    below = [str(call.session_id or "of another agent") for call in pending if call.reason == "session"]
    if below:
        return f"the run waits for a decision in session{'s' if len(below) > 1 else ''} {', '.join(below)}:"
    if any(call.reason == "person" for call in pending):
        return f"the run waits for the person who has taken over{'' if len(pending) == 1 else ', and for a decision:'}"
    approval = any(call.reason == "approval" for call in pending)
    return f"the run waits for {'an approval' if approval else 'results from outside'}:"


def _list_pending_calls(pending: tuple[PendingCall, ...]) -> tuple[str, ...]:
    return tuple(format_call(call.name, call.arguments) for call in pending if call.reason != "person")


def _describe_resume(make_entry: MakeEntry, fact: RunResumed) -> TimelineEntry:
    if fact.reason == "recovery":
        return make_entry(headline="the run is taken over, and continues where it was cut off", tone="notice")
    if fact.reason == "person":
        return make_entry(headline="the run continues with the agent")
    what = {"approval": "a decision", "session": "what was decided in another session"}.get(fact.reason, "results")
    return make_entry(headline=f"the run continues with {what}")


def _describe_decision(make_entry: MakeEntry, before: State, fact: ApprovalDecided) -> TimelineEntry:
    name = find_call_name(before, fact.tool_call_id) or fact.tool_call_id
    approved = fact.decision == "approve"
    edited = None if fact.arguments is UNSET else fact.arguments
    return make_entry(
        speaker=name_actor(fact.by),
        headline=f"{'approves' if approved else 'denies'} {name}{'' if edited is None else ', with other arguments:'}",
        text=fact.reason or "",
        calls=() if edited is None else (format_call(name, edited),),
        tone="good" if approved else "bad",
    )


_END_HEADLINES: dict[type[RunEnded], str] = {
    RunCompleted: "the run is completed",
    RunFailed: "the run failed",
    RunCancelled: "the run was cancelled",
    RunInterrupted: "the run was interrupted",
}


def _describe_end(
    make_entry: MakeEntry,
    before: State,
    event: RecordedEvent,
    fact: RunCompleted | RunFailed | RunCancelled | RunInterrupted,
) -> TimelineEntry:
    why = f" ({fact.stop_reason})" if isinstance(fact, RunCompleted) and fact.stop_reason != "end_turn" else ""
    error = fact.error
    return make_entry(
        headline=_END_HEADLINES[type(fact)] + why,
        text="" if error is None else f"{error.code}: {error.message}",
        tone="plain" if isinstance(fact, RunCompleted) else "bad",
        usage=fact.usage,
        duration_ms=_measure_run(before, event),
    )


def _measure_run(before: State, event: RecordedEvent) -> float | None:
    """How long the run that the event ends has taken, in milliseconds."""
    if before.run is None or before.run.id != event.run_id:
        return None
    started, ended = parse_timestamp(before.run.created_at), parse_timestamp(event.at)
    return None if started is None or ended is None else round((ended - started).total_seconds() * 1000, 3)


def name_actor(by: str | None) -> str:
    return put_name_first(by) if by else "somebody"


def find_call_name(state: State, call_id: str | None) -> str:
    calls = () if state.run is None else state.run.calls
    return next((call.name for call in calls if call.id == call_id), "")
