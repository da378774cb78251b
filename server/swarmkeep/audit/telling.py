"""What there is to say of each type of event."""

from __future__ import annotations

import json
from typing import Any, Literal, assert_never

import msgspec
from msgspec import UNSET

from swarmkeep.domain.envelope import Recorded
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
from swarmkeep.domain.wording import call_text, calls_in, text_of

Json = dict[str, Any]


class Told(msgspec.Struct, frozen=True, kw_only=True):
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


def told(before: State, event: Recorded) -> Told:
    """What there is to say of an event, given the state before it. Total."""
    fact = event.fact
    match fact:
        case MessageAdded():
            return _message(fact)
        case ToolStarted():
            return _tool_started(event, fact)
        case HandoffMade():
            return Told(speaker=fact.from_agent, headline=f"hands over to {fact.to_agent}", tone="notice")
        case HandoffIgnored():
            text = f"does not hand over to {fact.to_agent}: a later call of the same reply handed over instead"
            return Told(speaker=fact.from_agent, headline=text, tone="notice")
        case ContextUpdated():
            name = _call_name(before, fact.tool_call_id)
            return Told(speaker=name, headline="changes the context" if name else "the context is changed")
        case SessionCreated() | SessionForked() | SessionUpdated() | SessionRedacted():
            return _session(fact)
        case UnknownFact():
            return _unknown(event, fact)
        case _:
            return _run(before, fact)


def _message(fact: MessageAdded) -> Told:
    message = fact.message
    role = str(message.get("role") or "")
    text = text_of(message.get("content"))
    sender = str(message.get("sender") or role or "somebody")
    if role == "tool":
        return _result(message, fact, text)
    if role != "assistant":
        return Told(speaker=sender, text=text, headline="" if role in (sender, "user") else f"({role})")
    completion = fact.completion
    calls = tuple(calls_in(message))
    if completion is None:
        return Told(speaker=sender, text=text, calls=calls)
    cut = completion.partial is True
    return Told(
        speaker=sender,
        text=text or text_of(message.get("refusal")),
        calls=calls,
        headline="was cut off" if cut else "",
        tone="bad" if cut else "plain",
        model=completion.model,
        usage=add_usage(Usage(), completion.usage),
        duration_ms=None if cut else completion.duration_ms,
    )


_STATUS = {
    "ok": "answers",
    "error": "fails",
    "timeout": "did not answer in time",
    "unknown_outcome": "was cut off: its outcome is unknown",
    "denied": "was denied, and did not run",
    "superseded": "answers; its handoff is not made",
    "external": "is answered from outside",
}


def _result(message: Json, fact: MessageAdded, text: str) -> Told:
    tool = fact.tool
    if tool is None:
        return Told(speaker=str(message.get("tool_name") or "tool"), headline="answers", text=text)
    calm = tool.status in ("ok", "external", "superseded")
    timed = tool.status in ("ok", "error", "timeout")
    headline = _STATUS.get(tool.status, tool.status)
    if tool.handoff is not UNSET:
        headline = f"returns the agent {tool.handoff}"
    return Told(
        speaker=tool.name,
        headline=headline,
        text=text,
        tone="plain" if calm else "bad",
        duration_ms=tool.duration_ms if timed else None,
    )


def _tool_started(event: Recorded, fact: ToolStarted) -> Told:
    call = call_text(fact.name, fact.arguments)
    if fact.attempt > 1:
        headline = f"starts again, with the same id: attempt {fact.attempt}"
        return Told(speaker=event.agent, headline=headline, calls=(call,), tone="notice")
    return Told(speaker=event.agent, headline="calls", calls=(call,))


def _session(fact: SessionCreated | SessionForked | SessionUpdated | SessionRedacted) -> Told:
    match fact:
        case SessionCreated():
            return Told(headline=f"the conversation begins with {fact.agent}")
        case SessionForked():
            text = f"from here on this is a fork of {fact.from_session_id}, which shares events 1 to {fact.from_seq}"
            return Told(headline=text, tone="notice")
        case SessionUpdated():
            new = "" if fact.agent is UNSET else f"{fact.agent} becomes the active agent"
            return Told(headline=new or "the metadata is changed", tone="notice" if new else "plain")
        case SessionRedacted():
            seqs = ", ".join(map(str, fact.seqs))
            return Told(headline=f"redacted: {seqs}", text=fact.reason, tone="notice")
        case _:
            assert_never(fact)


def _run(
    before: State,
    fact: RunQueued | RunStarted | RunWaiting | RunResumed | ApprovalRequested | ApprovalDecided
    | RunCompleted | RunFailed | RunCancelled | RunInterrupted,
) -> Told:  # fmt: skip
    match fact:
        case RunStarted():
            return Told(headline=" ".join(("a run starts", *_options(fact.options))))
        case RunQueued():
            said = "\n".join(text_of(message.get("content")) for message in fact.messages)
            return Told(headline=" ".join(("a run is queued", *_options(fact.options))), text=said)
        case RunWaiting():
            return Told(headline=_waits(fact.pending), calls=_pending(fact.pending), tone="notice")
        case RunResumed():
            return _resumed(fact)
        case ApprovalRequested():
            until = f" until {fact.expires_at}" if fact.expires_at else ""
            call = call_text(fact.name, fact.arguments)
            return Told(headline=f"an approval is asked for{until}", calls=(call,), tone="notice")
        case ApprovalDecided():
            return _decided(before, fact)
        case RunCompleted() | RunFailed() | RunCancelled() | RunInterrupted():
            return _ended(fact)
        case _:
            assert_never(fact)


def _options(options: RunOptions) -> tuple[str, ...]:
    """How the run is asked for, where that is not as usual."""
    said = []
    if options.model:
        said.append(f"with the model {options.model}")
    if options.max_turns is not None:
        said.append(f"for {options.max_turns} turns at most")
    if not options.execute_tools:
        said.append("without running its tools")
    return tuple(said)


def _waits(pending: tuple[PendingCall, ...]) -> str:
    approval = any(call.reason == "approval" for call in pending)
    return f"the run waits for {'an approval' if approval else 'results from outside'}:"


def _pending(pending: tuple[PendingCall, ...]) -> tuple[str, ...]:
    return tuple(call_text(call.name, call.arguments) for call in pending)


def _resumed(fact: RunResumed) -> Told:
    if fact.reason == "recovery":
        return Told(headline="the run is taken over, and goes on where it was cut off", tone="notice")
    return Told(headline=f"the run goes on with {'a decision' if fact.reason == 'approval' else 'results'}")


def _decided(before: State, fact: ApprovalDecided) -> Told:
    name = _call_name(before, fact.tool_call_id) or fact.tool_call_id
    approved = fact.decision == "approve"
    return Told(
        speaker=fact.by or "somebody",
        headline=f"{'approves' if approved else 'denies'} {name}",
        text=fact.reason or "",
        tone="good" if approved else "bad",
    )


_ENDS: dict[type[RunEnded], str] = {
    RunCompleted: "the run is completed",
    RunFailed: "the run failed",
    RunCancelled: "the run was cancelled",
    RunInterrupted: "the run was interrupted",
}


def _ended(fact: RunCompleted | RunFailed | RunCancelled | RunInterrupted) -> Told:
    why = f" ({fact.stop_reason})" if isinstance(fact, RunCompleted) and fact.stop_reason != "end_turn" else ""
    error = fact.error
    return Told(
        headline=_ENDS[type(fact)] + why,
        text="" if error is None else f"{error.code}: {error.message}",
        tone="plain" if isinstance(fact, RunCompleted) else "bad",
        usage=fact.usage,
        ends_run=True,
    )


def _unknown(event: Recorded, fact: UnknownFact) -> Told:
    if event.type not in FACTS:
        warning = "this release does not know this type of event"
    elif fact.data is None:
        warning = "its content is not there any more: it was redacted, or damaged"
    else:
        warning = "its content is not in a form that this release knows"
    return Told(text="" if fact.data is None else json.dumps(fact.data, ensure_ascii=False), warning=warning)


def _call_name(state: State, call_id: str | None) -> str:
    calls = () if state.run is None else state.run.calls
    return next((call.name for call in calls if call.id == call_id), "")
