"""A session as older releases recorded it: an approval was asked for calls that the token limit had cut."""

from __future__ import annotations

from swarmkeep.decide.commands import create_session
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.codec import Json
from swarmkeep.events.facts import (
    ApprovalRequested,
    EventDraft,
    MessageAdded,
    PendingCall,
    RunStarted,
    RunWaiting,
    SessionEvent,
)
from swarmkeep.events.records import CompletionRecord, RunOptions


def draft_cut_calls(agent: str, *calls: Json) -> list[EventDraft]:
    """Its run `r1` waits for an approval of all these calls."""
    pending = tuple(PendingCall(tool_call_id=call["id"], reason="approval", **call["function"]) for call in calls)
    reply = {"role": "assistant", "content": None, "tool_calls": list(calls), "sender": agent}
    facts: list[SessionEvent] = [
        RunStarted(options=RunOptions()),
        MessageAdded(message={"role": "user", "content": "Please."}),
        MessageAdded(message=reply, completion=CompletionRecord(finish_reason="length")),
        *(ApprovalRequested(tool_call_id=call["id"], **call["function"]) for call in calls),
        RunWaiting(pending=pending),
    ]
    return [*draft_events(agent, create_session(agent, {}, {}, []), None), *draft_events(agent, facts, "r1")]
