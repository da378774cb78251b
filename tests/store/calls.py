"""Recorded model and tool calls, for tests of what is counted of them."""

from __future__ import annotations

from typing import Any

from swarmkeep.decide.commands import create_session
from swarmkeep.decide.drafts import draft_events
from swarmkeep.events.facts import MessageAdded
from swarmkeep.events.records import CompletionRecord, ToolRecord
from swarmkeep.events.state import State
from swarmkeep.store.opening import SqlStore
from swarmkeep.store.records import SessionKey

REPLY = {"role": "assistant", "content": "Hi"}


def make_reply(model: str | None = "m", ms: float = 10.0, **usage: Any) -> MessageAdded:
    return MessageAdded(message=REPLY, completion=CompletionRecord(model=model, usage=usage, duration_ms=ms))


def make_tool_result(ms: float = 5.0) -> MessageAdded:
    message = {"role": "tool", "tool_call_id": "c", "content": "ok"}
    return MessageAdded(message=message, tool=ToolRecord(name="t", status="ok", duration_ms=ms))


async def record_calls(
    store: SqlStore, key: SessionKey, *facts: MessageAdded, agent: str = "Ann", run: str = "r"
) -> State:
    begun = draft_events(agent, create_session(agent, {}, {}, []), None)
    return (await store.append(key, State(), [*begun, *draft_events(agent, facts, run)])).state
