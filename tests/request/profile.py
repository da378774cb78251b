"""The profile that requests are built with, and the messages of such a request."""

from __future__ import annotations

from swarmkeep.events.codec import Json
from swarmkeep.events.facts import MessageAdded
from swarmkeep.events.state import State
from swarmkeep.request.request import Profile, build_request
from tests.support.rules import find_body_faults, find_faults

PROFILE = Profile(name="triage", model="m", instructions="You help.")
TOOLS = '[{"type":"function","function":{"name":"look_up","parameters":{}}}]'


def build_messages(state: State) -> list[Json]:
    """The messages of the request after the instructions."""
    asked = build_request(state, PROFILE)
    assert find_faults(asked.messages) == []
    assert find_body_faults(asked.body()) == []
    return asked.messages[1:]


def message_by(role: str, **keys: object) -> MessageAdded:
    return MessageAdded(message={"role": role, "content": "text", **keys})


def tool_message(call_id: str, content: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}
