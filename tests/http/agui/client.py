"""A client of `POST /agui/{agent}` with the protocol's own models, which has each stream checked by its rules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import httpx2
from ag_ui.core import Event, RunAgentInput
from ag_ui_validate import ValidatorOptions, create_validator
from pydantic import TypeAdapter

from swarmkeep.events.codec import Json
from tests.http.server import PATIENCE_SECONDS, RunningServer

_EVENT: TypeAdapter[Any] = TypeAdapter(Event)
_runs = count(1)


def user(text: Any, id: str) -> Json:
    return {"id": id, "role": "user", "content": text}


def make_input(thread: str, messages: list[Json], **more: Any) -> Json:
    """A request as the protocol's own models write it."""
    body = {"threadId": thread, "runId": f"client-run-{next(_runs)}", "messages": messages, **more}
    written: Json = json.loads(RunAgentInput.model_validate(body).model_dump_json(by_alias=True))
    return written


def find_faults(events: list[Json]) -> list[str]:
    """What the rules report of a stream, down to hints."""
    validator = create_validator(ValidatorOptions(features=["shared-state"]))
    for event in events:
        validator.feed(event)
    validator.finalize()
    return [f"{found.rule_id} {found.message}" for found in validator.report().diagnostics]


def check_events(events: list[Json]) -> list[Json]:
    for event in events:
        _EVENT.validate_python(event)
    assert find_faults(events) == []
    return events


class EventReader:
    """The events of a stream as they come."""

    def __init__(self, answer: httpx2.Response) -> None:
        self._lines = answer.aiter_lines()
        self.events: list[Json] = []

    async def next(self) -> Json:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                line = await anext(self._lines)
                if line.startswith("data: "):
                    self.events.append(json.loads(line[6:]))
                    return self.events[-1]
                assert not line or line.startswith(":")

    async def until(self, kind: str) -> list[Json]:
        """The events so far, up to the first of this kind that comes."""
        while (await self.next())["type"] != kind:
            pass
        return self.events

    async def read_rest(self) -> list[Json]:
        try:
            while True:
                await self.next()
        except StopAsyncIteration:
            return check_events(self.events)


@asynccontextmanager
async def open_stream(
    service: RunningServer, body: Json, agent: str = "Front", **headers: str
) -> AsyncIterator[EventReader]:
    async with service.client.stream("POST", f"/agui/{agent}", json=body, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield EventReader(answer)


async def run(
    service: RunningServer, thread: str, messages: list[Json], agent: str = "Front", headers: Any = None, **more: Any
) -> list[Json]:
    """All events of a run."""
    async with open_stream(service, make_input(thread, messages, **more), agent, **(headers or {})) as stream:
        return await stream.read_rest()


def list_types(events: list[Json]) -> list[str]:
    return [event["type"] for event in events]


def find_event(events: list[Json], kind: str) -> Json:
    """The only event of a kind."""
    (found,) = [event for event in events if event["type"] == kind]
    return found


def apply_events(events: list[Json], messages: list[Json]) -> list[Json]:
    """The conversation as a client holds it after these events."""
    held = {message["id"]: dict(message) for message in messages}
    for event in events:
        match event["type"]:
            case "MESSAGES_SNAPSHOT":
                held = {message["id"]: dict(message) for message in event["messages"]}
            case "TEXT_MESSAGE_START":
                name = event["messageId"]
                held.setdefault(name, {"id": name, "role": event["role"], "content": "", "name": event.get("name")})
            case "TEXT_MESSAGE_CONTENT":
                held[event["messageId"]]["content"] += event["delta"]
            case "TOOL_CALL_START":
                function = {"name": event["toolCallName"], "arguments": ""}
                call = {"id": event["toolCallId"], "type": "function", "function": function}
                held[event["parentMessageId"]].setdefault("toolCalls", []).append(call)
            case "TOOL_CALL_ARGS":
                calls = [call for message in held.values() for call in message.get("toolCalls", ())]
                (found,) = [call for call in calls if call["id"] == event["toolCallId"]]
                found["function"]["arguments"] += event["delta"]
            case "TOOL_CALL_RESULT":
                name = event["messageId"]
                result = {"id": name, "role": "tool", "toolCallId": event["toolCallId"], "content": event["content"]}
                held[name] = result
            case _:
                pass
    return [{key: value for key, value in message.items() if value is not None} for message in held.values()]
