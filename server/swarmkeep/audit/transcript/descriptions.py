"""Describe each type of event in words: speaker, headline, text, tone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import assert_never

from msgspec import UNSET

from swarmkeep.audit.transcript.entry import TimelineEntry
from swarmkeep.domain.codec import Json
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import (
    FACTS,
    ApprovalDecided,
    ApprovalRequested,
    ContextUpdated,
    HandoffIgnored,
    HandoffMade,
    MessageAdded,
    PendingCall,
    RunCancelled,
    RunCompleted,
    RunEnded,
    RunFailed,
    RunInterrupted,
    RunOptions,
    RunQueued,
    RunResumed,
    RunStarted,
    RunWaiting,
    SessionCreated,
    SessionForked,
    SessionImported,
    SessionRedacted,
    SessionUpdated,
    ToolStarted,
    UnknownFact,
    Usage,
)
from swarmkeep.domain.state import State, add_usage
from swarmkeep.domain.timestamps import parse_timestamp
from swarmkeep.domain.wording import format_call, format_calls, join_content

MakeEntry = Callable[..., TimelineEntry]
"""Makes the entry of one event: all that is the same whatever the event says is given already."""


def describe(entry: MakeEntry, before: State, event: RecordedEvent) -> TimelineEntry:
    """The entry of an event, given the state before it. Total."""
    fact = event.fact
    match fact:
        case MessageAdded():
            return _describe_message(entry, fact)
        case ToolStarted():
            return _describe_tool_start(entry, event, fact)
        case HandoffMade():
            return entry(speaker=fact.from_agent, headline=f"hands over to {fact.to_agent}", tone="notice")
        case HandoffIgnored():
            text = f"does not hand over to {fact.to_agent}: a later call of the same reply handed over instead"
            return entry(speaker=fact.from_agent, headline=text, tone="notice")
        case ContextUpdated():
            name = _find_call_name(before, fact.tool_call_id)
            return entry(speaker=name, headline="changes the context" if name else "the context is changed")
        case SessionCreated() | SessionForked() | SessionImported() | SessionUpdated() | SessionRedacted():
            return _describe_session_event(entry, fact)
        case UnknownFact():
            return _describe_unknown(entry, event, fact)
        case _:
            return _describe_run_event(entry, before, event, fact)


def _describe_message(entry: MakeEntry, fact: MessageAdded) -> TimelineEntry:
    message = fact.message
    role = str(message.get("role") or "")
    text = join_content(message.get("content"))
    sender = str(message.get("sender") or role or "somebody")
    if role == "tool":
        return _describe_result(entry, message, fact, text)
    if role != "assistant":
        return entry(speaker=sender, text=text, headline="" if role in (sender, "user") else f"({role})")
    completion = fact.completion
    calls = tuple(format_calls(message))
    if completion is None:
        return entry(speaker=sender, text=text, calls=calls)
    cut = completion.partial is True
    return entry(
        speaker=sender,
        text=text or join_content(message.get("refusal")),
        calls=calls,
        headline="was cut off" if cut else "",
        tone="bad" if cut else "plain",
        model=completion.model,
        usage=add_usage(Usage(), completion.usage),
        duration_ms=None if cut else completion.duration_ms,
    )


_TOOL_HEADLINES = {
    "ok": "answers",
    "error": "fails",
    "timeout": "did not answer in time",
    "unknown_outcome": "was cut off: its outcome is unknown",
    "denied": "was denied, and did not run",
    "superseded": "answers; its handoff is not made",
    "external": "is answered from outside",
}


def _describe_result(entry: MakeEntry, message: Json, fact: MessageAdded, text: str) -> TimelineEntry:
    tool = fact.tool
    if tool is None:
        return entry(speaker=str(message.get("tool_name") or "tool"), headline="answers", text=text)
    calm = tool.status in ("ok", "external", "superseded")
    timed = tool.status in ("ok", "error", "timeout")
    headline = _TOOL_HEADLINES.get(tool.status, tool.status)
    if tool.handoff is not UNSET:
        headline = f"returns the agent {tool.handoff}"
    return entry(
        speaker=tool.name,
        headline=headline,
        text=text,
        tone="plain" if calm else "bad",
        duration_ms=tool.duration_ms if timed else None,
    )


def _describe_tool_start(entry: MakeEntry, event: RecordedEvent, fact: ToolStarted) -> TimelineEntry:
    call = format_call(fact.name, fact.arguments)
    if fact.attempt > 1:
        headline = f"starts again, with the same id: attempt {fact.attempt}"
        return entry(speaker=event.agent, headline=headline, calls=(call,), tone="notice")
    return entry(speaker=event.agent, headline="calls", calls=(call,))


def _describe_session_event(
    entry: MakeEntry, fact: SessionCreated | SessionForked | SessionImported | SessionUpdated | SessionRedacted
) -> TimelineEntry:
    match fact:
        case SessionCreated():
            return entry(headline=f"the conversation begins with {fact.agent}")
        case SessionForked():
            text = f"from here on this is a fork of {fact.from_session_id}, which shares events 1 to {fact.from_seq}"
            return entry(headline=text, tone="notice")
        case SessionImported():
            told = f"events 1 to {fact.last_seq} were imported, so none of it was decided here"
            return entry(speaker=fact.by or "somebody", headline=told, text=_describe_file(fact), tone="notice")
        case SessionUpdated():
            new = "" if fact.agent is UNSET else f"{fact.agent} becomes the active agent"
            return entry(headline=new or "the metadata is changed", tone="notice" if new else "plain")
        case SessionRedacted():
            seqs = ", ".join(map(str, fact.seqs))
            return entry(headline=f"redacted: {seqs}", text=fact.reason, tone="notice")
        case _:
            assert_never(fact)


def _describe_file(fact: SessionImported) -> str:
    digest = f", SHA-256 {fact.digest}" if fact.digest else ""
    return f"the file: {fact.source}{digest}"


def _describe_run_event(
    entry: MakeEntry,
    before: State,
    event: RecordedEvent,
    fact: RunQueued | RunStarted | RunWaiting | RunResumed | ApprovalRequested | ApprovalDecided
    | RunCompleted | RunFailed | RunCancelled | RunInterrupted,
) -> TimelineEntry:  # fmt: skip
    match fact:
        case RunStarted():
            return entry(headline=" ".join(("a run starts", *_describe_options(fact.options))))
        case RunQueued():
            said = "\n".join(join_content(message.get("content")) for message in fact.messages)
            return entry(headline=" ".join(("a run is queued", *_describe_options(fact.options))), text=said)
        case RunWaiting():
            return entry(headline=_describe_wait(fact.pending), calls=_list_pending_calls(fact.pending), tone="notice")
        case RunResumed():
            return _describe_resume(entry, fact)
        case ApprovalRequested():
            until = f" until {fact.expires_at}" if fact.expires_at else ""
            call = format_call(fact.name, fact.arguments)
            return entry(headline=f"an approval is asked for{until}", calls=(call,), tone="notice")
        case ApprovalDecided():
            return _describe_decision(entry, before, fact)
        case RunCompleted() | RunFailed() | RunCancelled() | RunInterrupted():
            return _describe_end(entry, before, event, fact)
        case _:
            assert_never(fact)


def _describe_options(options: RunOptions) -> tuple[str, ...]:
    """How the run is asked for, where that is not as usual."""
    said = []
    if options.model:
        said.append(f"with the model {options.model}")
    if options.max_turns is not None:
        said.append(f"for {options.max_turns} turns at most")
    if not options.execute_tools:
        said.append("without running its tools")
    return tuple(said)


def _describe_wait(pending: tuple[PendingCall, ...]) -> str:
    approval = any(call.reason == "approval" for call in pending)
    return f"the run waits for {'an approval' if approval else 'results from outside'}:"


def _list_pending_calls(pending: tuple[PendingCall, ...]) -> tuple[str, ...]:
    return tuple(format_call(call.name, call.arguments) for call in pending)


def _describe_resume(entry: MakeEntry, fact: RunResumed) -> TimelineEntry:
    if fact.reason == "recovery":
        return entry(headline="the run is taken over, and goes on where it was cut off", tone="notice")
    return entry(headline=f"the run goes on with {'a decision' if fact.reason == 'approval' else 'results'}")


def _describe_decision(entry: MakeEntry, before: State, fact: ApprovalDecided) -> TimelineEntry:
    name = _find_call_name(before, fact.tool_call_id) or fact.tool_call_id
    approved = fact.decision == "approve"
    return entry(
        speaker=fact.by or "somebody",
        headline=f"{'approves' if approved else 'denies'} {name}",
        text=fact.reason or "",
        tone="good" if approved else "bad",
    )


_END_HEADLINES: dict[type[RunEnded], str] = {
    RunCompleted: "the run is completed",
    RunFailed: "the run failed",
    RunCancelled: "the run was cancelled",
    RunInterrupted: "the run was interrupted",
}


def _describe_end(
    entry: MakeEntry,
    before: State,
    event: RecordedEvent,
    fact: RunCompleted | RunFailed | RunCancelled | RunInterrupted,
) -> TimelineEntry:
    why = f" ({fact.stop_reason})" if isinstance(fact, RunCompleted) and fact.stop_reason != "end_turn" else ""
    error = fact.error
    return entry(
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


def _describe_unknown(entry: MakeEntry, event: RecordedEvent, fact: UnknownFact) -> TimelineEntry:
    if event.type not in FACTS:
        warning = "this release does not know this type of event"
    elif fact.data is None:
        warning = "its content is not there any more: it was redacted, or damaged"
    else:
        warning = "its content is not in a form that this release knows"
    return entry(text="" if fact.data is None else json.dumps(fact.data, ensure_ascii=False), warning=warning)


def _find_call_name(state: State, call_id: str | None) -> str:
    calls = () if state.run is None else state.run.calls
    return next((call.name for call in calls if call.id == call_id), "")
