"""Functions for the offline model to choose from, and a run that is just long enough to try it."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from openai import OpenAI

from swarmkeep.events.codec import Json

T = TypeVar("T")


def make_tool(name: str, description: str = "", required: str = "", /, **properties: Any) -> Json:
    declared = {key: value if isinstance(value, dict) else {"type": value} for key, value in properties.items()}
    parameters = {"type": "object", "properties": declared, "required": required.split()}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def allow(*names: str, mode: str = "required") -> Json:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


WEATHER = make_tool(
    "get_weather",
    "Get the current weather in a given location. Location MUST be a city.",
    "location",
    location="string",
    time="string",
)
EMAIL = make_tool(
    "send_email", "Send an email.", "recipient subject body", recipient="string", subject="string", body="string"
)
TO_SALES = make_tool("transfer_to_sales")
TO_REFUNDS = make_tool("transfer_to_refunds")
REFUND = make_tool("process_refund", "Refund an item.", "item_id", item_id="string", reason="string")
DISCOUNT = make_tool("apply_discount", "Apply a discount to the user's cart.")
BACK = make_tool(
    "transfer_back_to_triage",
    "Call this function if a user is asking about a topic that is not handled by the current agent.",
)


HOTEL = make_tool(
    "book_room",
    "Book a hotel room.",
    "city nights arrival_date",
    city="string",
    nights="integer",
    arrival_date={"type": "string", "format": "date"},
    room={"enum": ["single", "double_bed"], "type": "string"},
    breakfast={"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    budget="number",
)


class MiniatureRun:
    """A run in miniature: calls are answered from `results`, and a handoff changes the agent."""

    def __init__(self, client: OpenAI, tools: list[Json], instructions: str = "You are a helpful agent.") -> None:
        self.client = client
        self.tools = tools
        self.messages: list[Any] = [{"role": "system", "content": instructions}]
        self.results: dict[str, str] = {}
        self.agents: dict[str, tuple[str, str, list[Json]]] = {}
        self.called: list[tuple[str, Json]] = []

    def ask(self, **options: Any) -> Any:
        if self.tools:
            options["tools"] = self.tools
        return self.client.chat.completions.create(model="gpt-4o", messages=self.messages, **options).choices[0].message

    def say(self, text: str) -> str:
        """The last words, after at most eight turns; the calls made are in `called`."""
        self.messages.append({"role": "user", "content": text})
        self.called = []
        for _ in range(8):
            message = self.ask()
            if not message.tool_calls:
                self.messages.append({"role": "assistant", "content": message.content})
                return str(message.content)
            (call,) = message.tool_calls
            self.messages.append({"role": "assistant", "content": None, "tool_calls": [call.model_dump()]})
            self.called.append((call.function.name, json.loads(call.function.arguments)))
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": self._run(call.function.name)})
        raise AssertionError(f"it goes on and on: {self.called}")

    def _run(self, name: str) -> str:
        if name not in self.agents:
            return self.results.get(name, "done")
        agent, instructions, self.tools = self.agents[name]
        self.messages[0] = {"role": "system", "content": instructions}
        return json.dumps({"assistant": agent})


def find_call(client: OpenAI, tools: list[Json], text: str, **options: Any) -> tuple[str, Json] | None:
    """The call that a first message leads to."""
    conversation = MiniatureRun(client, tools)
    conversation.messages.append({"role": "user", "content": text})
    calls = conversation.ask(**options).tool_calls
    return (calls[0].function.name, json.loads(calls[0].function.arguments)) if calls else None
