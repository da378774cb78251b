"""Describe each type of event in words: speaker, headline, text, tone."""

from __future__ import annotations

import json
from typing import assert_never

from msgspec import UNSET

from swarmkeep.audit.transcript.entry import TimelineEntry
from swarmkeep.audit.transcript.run_descriptions import MakeEntry, describe_run_event, find_call_name, name_actor
from swarmkeep.domain.codec import Json
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import (
    FACTS,
    ContextUpdated,
    HandoffIgnored,
    HandoffMade,
    MessageAdded,
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
from swarmkeep.domain.wording import format_call, format_calls, join_content, put_name_first


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
            name = find_call_name(before, fact.tool_call_id)
            return entry(speaker=name, headline="changes the context" if name else "the context is changed")
        case SessionCreated() | SessionForked() | SessionImported() | SessionUpdated() | SessionRedacted():
            return _describe_session_event(entry, fact)
        case UnknownFact():
            return _describe_unknown(entry, event, fact)
        case _:
            return describe_run_event(entry, before, event, fact)


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
            return entry(speaker=name_actor(fact.by), headline=told, text=_describe_file(fact), tone="notice")
        case SessionUpdated():
            new = "" if fact.agent is UNSET else f"{fact.agent} becomes the active agent"
            return entry(headline=new or "the metadata is changed", tone="notice" if new else "plain")
        case SessionRedacted():
            seqs = ", ".join(map(str, fact.seqs))
            speaker = "" if fact.by is None else put_name_first(fact.by)
            return entry(
                speaker=speaker,
                headline=f"redacts {seqs}" if speaker else f"redacted: {seqs}",
                text=fact.reason,
                tone="notice",
            )
        case _:
            assert_never(fact)


def _describe_file(fact: SessionImported) -> str:
    digest = f", SHA-256 {fact.digest}" if fact.digest else ""
    return f"the file: {fact.source}{digest}"


def _describe_unknown(entry: MakeEntry, event: RecordedEvent, fact: UnknownFact) -> TimelineEntry:
    if event.type not in FACTS:
        warning = "this release does not know this type of event"
    elif fact.data is None:
        warning = "its content is not there any more: it was redacted, or damaged"
    else:
        warning = "its content is not in a form that this release knows"
    return entry(text="" if fact.data is None else json.dumps(fact.data, ensure_ascii=False), warning=warning)
