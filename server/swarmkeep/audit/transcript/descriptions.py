"""What there is to say of each type of event."""

from __future__ import annotations

import json
from typing import Any, Literal, assert_never

import msgspec
from msgspec import UNSET

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
    SessionRedacted,
    SessionUpdated,
    ToolStarted,
    UnknownFact,
    Usage,
)
from swarmkeep.domain.state import State, add_usage
from swarmkeep.domain.wording import format_call, format_calls, join_content

Json = dict[str, Any]


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What a scene says beyond where it stands in the log."""

    headline: str = ""
    speaker: str = ""
    text: str = ""
    calls: tuple[str, ...] = ()
    tone: Literal["plain", "good", "notice", "bad"] = "plain"
    model: str | None = None
    usage: Usage | None = None
    duration_ms: float | None = None
    warning: str = ""
    ends_run: bool = False


def describe(before: State, event: RecordedEvent) -> Description:
    """What there is to say of an event, given the state before it. Total."""
    fact = event.fact
    match fact:
        case MessageAdded():
            return _describe_message(fact)
        case ToolStarted():
            return _describe_tool_start(event, fact)
        case HandoffMade():
            return Description(speaker=fact.from_agent, headline=f"hands over to {fact.to_agent}", tone="notice")
        case HandoffIgnored():
            text = f"does not hand over to {fact.to_agent}: a later call of the same reply handed over instead"
            return Description(speaker=fact.from_agent, headline=text, tone="notice")
        case ContextUpdated():
            name = _find_call_name(before, fact.tool_call_id)
            return Description(speaker=name, headline="changes the context" if name else "the context is changed")
        case SessionCreated() | SessionForked() | SessionUpdated() | SessionRedacted():
            return _describe_session_event(fact)
        case UnknownFact():
            return _describe_unknown(event, fact)
        case _:
            return _describe_run_event(before, fact)


def _describe_message(fact: MessageAdded) -> Description:
    message = fact.message
    role = str(message.get("role") or "")
    text = join_content(message.get("content"))
    sender = str(message.get("sender") or role or "somebody")
    if role == "tool":
        return _describe_result(message, fact, text)
    if role != "assistant":
        return Description(speaker=sender, text=text, headline="" if role in (sender, "user") else f"({role})")
    completion = fact.completion
    calls = tuple(format_calls(message))
    if completion is None:
        return Description(speaker=sender, text=text, calls=calls)
    cut = completion.partial is True
    return Description(
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


def _describe_result(message: Json, fact: MessageAdded, text: str) -> Description:
    tool = fact.tool
    if tool is None:
        return Description(speaker=str(message.get("tool_name") or "tool"), headline="answers", text=text)
    calm = tool.status in ("ok", "external", "superseded")
    timed = tool.status in ("ok", "error", "timeout")
    headline = _TOOL_HEADLINES.get(tool.status, tool.status)
    if tool.handoff is not UNSET:
        headline = f"returns the agent {tool.handoff}"
    return Description(
        speaker=tool.name,
        headline=headline,
        text=text,
        tone="plain" if calm else "bad",
        duration_ms=tool.duration_ms if timed else None,
    )


def _describe_tool_start(event: RecordedEvent, fact: ToolStarted) -> Description:
    call = format_call(fact.name, fact.arguments)
    if fact.attempt > 1:
        headline = f"starts again, with the same id: attempt {fact.attempt}"
        return Description(speaker=event.agent, headline=headline, calls=(call,), tone="notice")
    return Description(speaker=event.agent, headline="calls", calls=(call,))


def _describe_session_event(fact: SessionCreated | SessionForked | SessionUpdated | SessionRedacted) -> Description:
    match fact:
        case SessionCreated():
            return Description(headline=f"the conversation begins with {fact.agent}")
        case SessionForked():
            text = f"from here on this is a fork of {fact.from_session_id}, which shares events 1 to {fact.from_seq}"
            return Description(headline=text, tone="notice")
        case SessionUpdated():
            new = "" if fact.agent is UNSET else f"{fact.agent} becomes the active agent"
            return Description(headline=new or "the metadata is changed", tone="notice" if new else "plain")
        case SessionRedacted():
            seqs = ", ".join(map(str, fact.seqs))
            return Description(headline=f"redacted: {seqs}", text=fact.reason, tone="notice")
        case _:
            assert_never(fact)


def _describe_run_event(
    before: State,
    fact: RunQueued | RunStarted | RunWaiting | RunResumed | ApprovalRequested | ApprovalDecided
    | RunCompleted | RunFailed | RunCancelled | RunInterrupted,
) -> Description:  # fmt: skip
    match fact:
        case RunStarted():
            return Description(headline=" ".join(("a run starts", *_describe_options(fact.options))))
        case RunQueued():
            said = "\n".join(join_content(message.get("content")) for message in fact.messages)
            return Description(headline=" ".join(("a run is queued", *_describe_options(fact.options))), text=said)
        case RunWaiting():
            return Description(
                headline=_describe_wait(fact.pending), calls=_list_pending_calls(fact.pending), tone="notice"
            )
        case RunResumed():
            return _describe_resume(fact)
        case ApprovalRequested():
            until = f" until {fact.expires_at}" if fact.expires_at else ""
            call = format_call(fact.name, fact.arguments)
            return Description(headline=f"an approval is asked for{until}", calls=(call,), tone="notice")
        case ApprovalDecided():
            return _describe_decision(before, fact)
        case RunCompleted() | RunFailed() | RunCancelled() | RunInterrupted():
            return _describe_end(fact)
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


def _describe_resume(fact: RunResumed) -> Description:
    if fact.reason == "recovery":
        return Description(headline="the run is taken over, and goes on where it was cut off", tone="notice")
    return Description(headline=f"the run goes on with {'a decision' if fact.reason == 'approval' else 'results'}")


def _describe_decision(before: State, fact: ApprovalDecided) -> Description:
    name = _find_call_name(before, fact.tool_call_id) or fact.tool_call_id
    approved = fact.decision == "approve"
    return Description(
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


def _describe_end(fact: RunCompleted | RunFailed | RunCancelled | RunInterrupted) -> Description:
    why = f" ({fact.stop_reason})" if isinstance(fact, RunCompleted) and fact.stop_reason != "end_turn" else ""
    error = fact.error
    return Description(
        headline=_END_HEADLINES[type(fact)] + why,
        text="" if error is None else f"{error.code}: {error.message}",
        tone="plain" if isinstance(fact, RunCompleted) else "bad",
        usage=fact.usage,
        ends_run=True,
    )


def _describe_unknown(event: RecordedEvent, fact: UnknownFact) -> Description:
    if event.type not in FACTS:
        warning = "this release does not know this type of event"
    elif fact.data is None:
        warning = "its content is not there any more: it was redacted, or damaged"
    else:
        warning = "its content is not in a form that this release knows"
    return Description(text="" if fact.data is None else json.dumps(fact.data, ensure_ascii=False), warning=warning)


def _find_call_name(state: State, call_id: str | None) -> str:
    calls = () if state.run is None else state.run.calls
    return next((call.name for call in calls if call.id == call_id), "")
