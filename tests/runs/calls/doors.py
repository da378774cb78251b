"""Calls that run at once and stand at their doors until a test opens them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from swarmkeep import Agent, Result, tool
from swarmkeep.events.facts import MessageAdded, RecordedEvent, ToolStarted
from tests.runs.cluster import KEY, Server
from tests.support.scripted import Call, ScriptedModel

SECONDS = 20.0


class Doors:
    """Calls that stand at their door until it is opened, each under its name; what was entered and left is kept."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self._open: dict[str, asyncio.Event] = {}
        self._moved = asyncio.Condition()

    def find_door(self, name: str) -> asyncio.Event:
        return self._open.setdefault(name, asyncio.Event())

    def open(self, *names: str) -> None:
        for name in names:
            self.find_door(name).set()

    async def pass_through(self, name: str) -> None:
        await self._note(self.begun, name)
        try:
            await self.find_door(name).wait()
        except asyncio.CancelledError:
            await self._note(self.cancelled, name)
            raise

    async def _note(self, names: list[str], name: str) -> None:
        async with self._moved:
            names.append(name)
            self._moved.notify_all()

    async def wait_until_begun(self, *names: str) -> None:
        await self._wait_for(self.begun, names)

    async def wait_until_cancelled(self, *names: str) -> None:
        await self._wait_for(self.cancelled, names)

    async def _wait_for(self, found: list[str], names: Sequence[str]) -> None:
        async with asyncio.timeout(SECONDS), self._moved:
            await self._moved.wait_for(lambda: set(names) <= set(found))


def make_agent(doors: Doors, **options: Any) -> Agent:
    """An agent with one function that may run beside others, one that may run again, and one that does neither."""

    @tool(concurrent=True, **options)
    async def look(name: str, context_variables: dict[str, Any]) -> Result:
        seen = sorted(context_variables)
        await doors.pass_through(name)
        return Result(f"{name} saw {seen}", context_variables={name: True, "last": name})

    @tool(concurrent=True, idempotent=True)
    async def again(name: str, context_variables: dict[str, Any]) -> Result:
        await doors.pass_through(name)
        return Result(f"{name} again", context_variables={name: True, "last": name})

    async def alone(name: str, context_variables: dict[str, Any]) -> str:
        await doors.pass_through(name)
        return f"alone with {sorted(context_variables)}"

    return Agent(name="A", functions=[look, again, alone], concurrent_tools=True)


def ask_for(model: ScriptedModel, *names: str, function: str = "look") -> None:
    model.calls([Call(function, {"name": name}, id=name) for name in names])


def list_results(events: Sequence[RecordedEvent]) -> list[tuple[str, str]]:
    facts = [event.fact for event in events]
    return [
        (str(fact.message["tool_call_id"]), fact.tool.status)
        for fact in facts
        if isinstance(fact, MessageAdded) and fact.tool is not None
    ]


def list_starts(events: Sequence[RecordedEvent]) -> list[tuple[str, int]]:
    facts = [event.fact for event in events]
    return [(fact.tool_call_id, fact.attempt) for fact in facts if isinstance(fact, ToolStarted)]


async def wait_for_results(engine: Server, *call_ids: str) -> None:
    """Follow the session until these calls have their results."""
    async with asyncio.timeout(SECONDS), aclosing(engine.reader.follow(KEY, after=0)) as items:
        left = set(call_ids)
        async for item in items:
            if isinstance(item, RecordedEvent):
                left -= {call_id for call_id, _ in list_results([item])}
            if not left:
                return


def find_sent_results(model: ScriptedModel) -> list[str]:
    """The calls that the results of the last request answer."""
    return [message["tool_call_id"] for message in model.requests[-1]["messages"] if message["role"] == "tool"]
