"""The agents of the servers that are killed. Every effect goes to a file and to the disk before the tool goes on.

Served by path, so it imports nothing of the tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from swarmkeep import Agent, Refusal, Result, ToolCallId, tool

EFFECTS = Path(os.environ["CHAOS_EFFECTS"])
DOORS = Path(os.environ["CHAOS_DOORS"])


def record_effect(call_id: str, name: str, what: str) -> None:
    """Add a line to the file of effects: whole, and on the disk when this returns."""
    line = json.dumps({"id": call_id, "tool": name, "what": what, "pid": os.getpid(), "at": time.time()})
    file = os.open(EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode() + b"\n")
        os.fsync(file)
    finally:
        os.close(file)


def wait_for_door(door: str) -> None:
    """Stand before a closed door until somebody opens it."""
    while door and not (DOORS / door).exists():
        time.sleep(0.01)


def pay(what: str, tool_call_id: ToolCallId, door: str = "") -> str:
    """Something that must not happen twice."""
    record_effect(tool_call_id, "pay", "begin")
    wait_for_door(door)
    record_effect(tool_call_id, "pay", "end")
    return f"paid {what}"


@tool(idempotent=True)
def put(what: str, tool_call_id: ToolCallId, door: str = "") -> str:
    """Something that may happen twice."""
    record_effect(tool_call_id, "put", "begin")
    wait_for_door(door)
    record_effect(tool_call_id, "put", "end")
    return f"put {what}"


async def visit(what: str, tool_call_id: ToolCallId, door: str = "", farewell_seconds: float = 0.0) -> str:
    """Something that must not happen twice, on the event loop, and that takes its time to say good-bye."""
    record_effect(tool_call_id, "visit", "begin")
    try:
        # Another process opens it.
        while door and not (DOORS / door).exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    finally:
        await asyncio.sleep(farewell_seconds)
    record_effect(tool_call_id, "visit", "end")
    return f"visited {what}"


def remember(key: str, value: str, context_variables: dict[str, Any]) -> Result:
    """Keep a value."""
    return Result(value="kept", context_variables={key: value})


@tool(requires_approval=True)
def refund(what: str, tool_call_id: ToolCallId) -> str:
    """Something that must not happen twice, nor unasked."""
    record_effect(tool_call_id, "refund", "begin")
    record_effect(tool_call_id, "refund", "end")
    return f"refunded {what}"


def refuse_classified(passing: Any, context_variables: dict[str, Any]) -> Refusal | None:
    return Refusal("Not here.") if "classified" in json.dumps(passing) else None


def refuse_secret_input(messages: Any, context_variables: dict[str, Any]) -> Refusal | None:
    return Refusal("Not here.") if "top secret" in json.dumps(messages) else None


@tool(guardrails=[refuse_classified], idempotent=True)
def publish(what: str, tool_call_id: ToolCallId) -> str:
    """Something that must not happen to everything."""
    record_effect(tool_call_id, "publish", "begin")
    record_effect(tool_call_id, "publish", "end")
    return f"published {what}"


def to_clerk() -> Agent:
    """Hand over to the clerk."""
    return clerk


def to_boss() -> Agent:
    """Hand over to the boss."""
    return boss


TOOLS = [pay, put, visit, remember, refund, publish, to_clerk, to_boss]
clerk = Agent(name="Clerk", instructions="Do as you are told.", functions=TOOLS, input_guardrails=[refuse_secret_input])
boss = Agent(name="Boss", instructions="Do as you are told, but slowly.", functions=TOOLS)
lead = Agent(
    name="Lead",
    instructions="Ask others.",
    functions=[clerk.as_tool("ask_clerk", "Ask the clerk.", concurrent=True)],
    concurrent_tools=True,
)
