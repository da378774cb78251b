"""A session as older releases recorded it: an approval was asked for calls that the token limit had cut."""

from __future__ import annotations

from swarmkeep.decide.commands import create_session
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events import facts
from swarmkeep.events.codec import Json
from swarmkeep.events.records import CompletionRecord, RunOptions


def draft_cut_calls(agent: str, *calls: Json) -> list[facts.EventDraft]:
    """Its run `r1` waits for an approval of all these calls."""
    pending = tuple(facts.PendingCall(tool_call_id=call["id"], reason="approval", **call["function"]) for call in calls)
    reply = {"role": "assistant", "content": None, "tool_calls": list(calls), "sender": agent}
    found: list[facts.SessionEvent] = [
        facts.RunStarted(options=RunOptions()),
        facts.MessageAdded(message={"role": "user", "content": "Please."}),
        facts.MessageAdded(message=reply, completion=CompletionRecord(finish_reason="length")),
        *(facts.ApprovalRequested(tool_call_id=call["id"], **call["function"]) for call in calls),
        facts.RunWaiting(pending=pending),
    ]
    return [*draft_events(agent, create_session(agent, {}, {}, []), None), *draft_events(agent, found, "r1")]
