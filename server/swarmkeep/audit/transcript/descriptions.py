"""Describe each type of event in words: speaker, headline, text, tone."""

from __future__ import annotations

import json
from typing import assert_never

from msgspec import UNSET

from swarmkeep.audit.transcript.entry import TimelineEntry
from swarmkeep.audit.transcript.history_descriptions import describe_history_event
from swarmkeep.audit.transcript.run_descriptions import MakeEntry, describe_run_event, find_call_name, name_actor
from swarmkeep.domain.codec import Json
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import (
    FACTS,
    ContextUpdated,
    GuardrailTripped,
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
from swarmkeep.domain.facts.compaction import CompactionFailed, CompactionStarted, CompactionSummarised
from swarmkeep.domain.facts.history import MessageRemoved
from swarmkeep.domain.facts.records import read_usage, sum_usage
from swarmkeep.domain.facts.takeovers import SessionHandedBack, SessionTakenOver
from swarmkeep.domain.facts.tools import ToolsListed
from swarmkeep.domain.state import State
from swarmkeep.domain.wording import format_call, format_calls, join_content, put_name_first


def describe(make_entry: MakeEntry, before: State, event: RecordedEvent) -> TimelineEntry:
    """The entry of an event, given the state before it. Total."""
    fact = event.fact
    match fact:
        case MessageAdded():
            return _describe_message(make_entry, before, fact)
        case ToolStarted():
            return _describe_tool_start(make_entry, event, fact)
        case HandoffMade():
            return make_entry(speaker=fact.from_agent, headline=f"hands over to {fact.to_agent}", tone="notice")
        case HandoffIgnored():
            text = f"does not hand over to {fact.to_agent}: a later call of the same reply handed over instead"
            return make_entry(speaker=fact.from_agent, headline=text, tone="notice")
        case ContextUpdated():
            name = find_call_name(before, fact.tool_call_id)
            return make_entry(speaker=name, headline="changes the context" if name else "the context is changed")
        case MessageRemoved() | CompactionStarted() | CompactionSummarised() | CompactionFailed() | ToolsListed():
            return describe_history_event(make_entry, before, fact)
        case GuardrailTripped():
            return _describe_refusal(make_entry, before, fact)
        case (
            SessionCreated()
            | SessionForked()
            | SessionImported()
            | SessionUpdated()
            | SessionRedacted()
            | SessionTakenOver()
            | SessionHandedBack()
        ):
            return _describe_session_event(make_entry, fact)
        case UnknownFact():
            return _describe_unknown(make_entry, event, fact)
        case _:
            return describe_run_event(make_entry, before, event, fact)


def _describe_message(make_entry: MakeEntry, before: State, fact: MessageAdded) -> TimelineEntry:
    message = fact.message
    role = str(message.get("role") or "")
    text = join_content(message.get("content"))
    sender = str(message.get("sender") or role or "somebody")
    if role == "tool":
        return _describe_result(make_entry, before, message, fact, text)
    if fact.correction is not UNSET:
        return make_entry(
            speaker=sender, text=text, headline=f"sends the answer back ({fact.correction})", tone="notice"
        )
    if fact.person is not UNSET:
        said = "answers in the agent's place" if role == "assistant" else "tells the agent"
        return make_entry(speaker=put_name_first(fact.person), text=text, headline=said, tone="notice")
    if role != "assistant":
        return make_entry(speaker=sender, text=text, headline="" if role in (sender, "user") else f"({role})")
    completion = fact.completion
    calls = tuple(format_calls(message))
    if completion is None:
        headline = "" if fact.guardrail is UNSET else f"gives the answer of the guardrail {fact.guardrail}"
        return make_entry(speaker=sender, text=text, calls=calls, headline=headline)
    cut = completion.partial is True
    return make_entry(
        speaker=sender,
        text=text or join_content(message.get("refusal")),
        calls=calls,
        headline="was cut off" if cut else "",
        tone="bad" if cut else "plain",
        model=completion.model,
        usage=sum_usage(Usage(), read_usage(completion.usage)),
        duration_ms=None if cut else completion.duration_ms,
    )


def _describe_takeover(make_entry: MakeEntry, fact: SessionTakenOver | SessionHandedBack) -> TimelineEntry:
    text = "" if fact.note is UNSET else fact.note
    taken = isinstance(fact, SessionTakenOver)
    headline = "takes the conversation over from the agent" if taken else "hands the conversation back to the agent"
    return make_entry(speaker=name_actor(fact.by), headline=headline, text=text, tone="notice")


_REFUSED = {
    "input": "refuses what was said",
    "history": "refuses what was brought along: the run goes on without it",
    "output": "refuses the answer: it is not shown to anybody",
}


def _describe_refusal(make_entry: MakeEntry, before: State, fact: GuardrailTripped) -> TimelineEntry:
    name = None if fact.tool_call_id is UNSET else find_call_name(before, fact.tool_call_id)
    headline = _REFUSED.get(fact.stage) or f"refuses the call of {name or 'a function'}"
    text = fact.message if fact.error is UNSET else f"{fact.message} ({fact.error})"
    return make_entry(speaker=fact.name, headline=headline, text=text, tone="bad")


_TOOL_HEADLINES = {
    "ok": "answers",
    "error": "fails",
    "timeout": "did not answer in time",
    "unknown_outcome": "was cut off: its outcome is unknown",
    "denied": "was denied, and did not run",
    "refused": "was refused by a guardrail, and did not run",
    "superseded": "answers, but its handoff is ignored",
    "external": "is answered from outside",
}


def _describe_result(
    make_entry: MakeEntry, before: State, message: Json, fact: MessageAdded, text: str
) -> TimelineEntry:
    tool = fact.tool
    if tool is None:
        return make_entry(speaker=str(message.get("tool_name") or "tool"), headline="answers", text=text)
    calm = tool.status in ("ok", "external", "superseded")
    timed = tool.status in ("ok", "error", "timeout")
    headline = _TOOL_HEADLINES.get(tool.status, tool.status)
    if tool.output is True:
        headline = "takes the answer"
    elif fact.correction is not UNSET:
        headline = f"sends the answer back ({fact.correction})"
    elif tool.handoff is not UNSET:
        headline = f"returns the agent {tool.handoff}"
    return make_entry(
        speaker=tool.name,
        headline=headline,
        text=text,
        calls=_find_call_among_others(before, message.get("tool_call_id")),
        tone="plain" if calm else "bad",
        duration_ms=tool.duration_ms if timed else None,
    )


def _find_call_among_others(before: State, call_id: object) -> tuple[str, ...]:
    """The call that is answered, where calls ran at once: the function's name may be that of several."""
    calls = () if before.run is None else before.run.calls
    ended = next((place for place, call in enumerate(calls) if call.id == call_id), len(calls))
    # In turn, none that has started is open beside it, and none after it has ended.
    beside = (call for place, call in enumerate(calls) if place != ended and (place > ended or not call.done))
    if ended == len(calls) or not any(call.attempts for call in beside):
        return ()
    return (format_call(calls[ended].name, calls[ended].arguments),)


def _describe_tool_start(make_entry: MakeEntry, event: RecordedEvent, fact: ToolStarted) -> TimelineEntry:
    call = format_call(fact.name, fact.arguments)
    if fact.attempt > 1:
        headline = f"starts again, with the same id: attempt {fact.attempt}"
        return make_entry(speaker=event.agent, headline=headline, calls=(call,), tone="notice")
    headline = "calls" if fact.session_id is UNSET else f"asks another agent, in session {fact.session_id}, by"
    return make_entry(speaker=event.agent, headline=headline, calls=(call,))


def _describe_session_event(
    make_entry: MakeEntry,
    fact: SessionCreated | SessionForked | SessionImported | SessionUpdated | SessionRedacted | SessionTakenOver
    | SessionHandedBack,
) -> TimelineEntry:  # fmt: skip
    match fact:
        case SessionTakenOver() | SessionHandedBack():
            return _describe_takeover(make_entry, fact)
        case SessionCreated():
            asked = "" if fact.parent is UNSET else f", which session {fact.parent.session_id} asks"
            return make_entry(headline=f"the conversation begins with {fact.agent}{asked}")
        case SessionForked():
            text = f"from here on this is a fork of {fact.from_session_id}, which shares events 1 to {fact.from_seq}"
            return make_entry(headline=text, tone="notice")
        case SessionImported():
            told = f"events 1 to {fact.last_seq} were imported, so none of it was decided here"
            return make_entry(speaker=name_actor(fact.by), headline=told, text=_describe_file(fact), tone="notice")
        case SessionUpdated():
            new = "" if fact.agent is UNSET else f"{fact.agent} becomes the active agent"
            return make_entry(headline=new or "the metadata is changed", tone="notice" if new else "plain")
        case SessionRedacted():
            seqs = ", ".join(map(str, fact.seqs))
            speaker = "" if fact.by is None else put_name_first(fact.by)
            return make_entry(
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


def _describe_unknown(make_entry: MakeEntry, event: RecordedEvent, fact: UnknownFact) -> TimelineEntry:
    if event.type not in FACTS:
        warning = "this release does not know this type of event"
    elif fact.data is None:
        warning = "its content is gone: it was redacted, or damaged"
    else:
        warning = "this release does not know the form of its content"
    return make_entry(text="" if fact.data is None else json.dumps(fact.data, ensure_ascii=False), warning=warning)
