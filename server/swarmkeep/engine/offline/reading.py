"""What the offline model reads of a request: the last user message, what came of it so far, and the tools."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from swarmkeep.engine.offline.schema import choices_of
from swarmkeep.engine.offline.words import in_words, stems

# Enough to understand a person; a pasted book would only cost time.
LONGEST_TEXT = 4000
EARLIER_MESSAGES = 40
EARLIER_TEXTS = 8

_HANDOFF_WORDS = frozenset(stems("transfer handoff handover escalate reroute"))
_ELSEWHERE = stems("handled different another outside other else triage back topic")


@dataclass(frozen=True)
class Tool:
    """A function on offer, with the words it can be known by."""

    name: str
    description: str
    parameters: dict[str, Any]

    @cached_property
    def spoken(self) -> str:
        return in_words(self.name)

    @cached_property
    def name_stems(self) -> frozenset[str]:
        return stems(self.name)

    @cached_property
    def other_stems(self) -> frozenset[str]:
        properties = self.parameters.get("properties")
        texts = [self.description]
        for name, schema in properties.items() if isinstance(properties, dict) else ():
            texts.append(name)
            if isinstance(schema, dict):
                texts += [str(value) for value in choices_of(schema)]
                texts.append(str(schema.get("description") or ""))
        return stems(" ".join(texts)[:LONGEST_TEXT])

    @property
    def hands_over(self) -> bool:
        """Whether it looks like a handoff, by its name: `transfer_to_sales`, `escalate_to_agent`, `handoff`."""
        return bool(self.name_stems & _HANDOFF_WORDS) or self.spoken.startswith(("hand off", "hand over"))

    @property
    def leads_elsewhere(self) -> bool:
        """Whether it is a handoff for what the present agent has no answer to."""
        words = self.name_stems | stems(self.description)
        return self.hands_over and len(words & _ELSEWHERE) >= 2


@dataclass(frozen=True)
class Result:
    """A call made since the last user message, and what came back."""

    name: str
    arguments: str
    content: str

    @cached_property
    def handed_to(self) -> str | None:
        """The agent's name, if the result is that of a handoff."""
        if not self.content.startswith("{"):
            return None
        try:
            value = msgspec.json.decode(self.content)
        except (msgspec.DecodeError, RecursionError):
            return None
        match value:
            case {"assistant": str(agent)} if len(value) == 1:
                return agent
        return None


@dataclass(frozen=True)
class Turn:
    """The tail of a conversation, as one question with its circumstances."""

    instructions: str
    text: str  # the last user message
    earlier: tuple[str, ...]  # user messages before it, newest first
    asked: str  # what the assistant said just before it
    results: tuple[Result, ...]  # since it, oldest first
    fresh: tuple[Result, ...]  # those no model has seen yet
    has_spoken: bool  # whether the assistant has said anything at all yet
    tools: tuple[Tool, ...]

    @property
    def handed_to(self) -> str | None:
        """The agent that has just taken over for this user message; it has not spoken yet."""
        names = [result.handed_to for result in self.fresh if result.handed_to]
        return names[-1] if names else None

    @property
    def was_handed_over(self) -> bool:
        return any(result.handed_to for result in self.results)


def read(body: dict[str, Any]) -> Turn:
    """The turn a valid request asks for."""
    messages: list[dict[str, Any]] = body["messages"]
    last_user = next((i for i in range(len(messages) - 1, -1, -1) if messages[i]["role"] == "user"), -1)
    results, fresh = _results(messages[last_user + 1 :])
    asked, earlier = _before(messages[max(0, last_user - EARLIER_MESSAGES) : max(0, last_user)])
    return Turn(
        instructions=_instructions(messages),
        text=text_of(messages[last_user]) if last_user >= 0 else "",
        earlier=earlier,
        asked=asked,
        results=results,
        fresh=fresh,
        has_spoken=any(message["role"] == "assistant" and message.get("content") for message in messages),
        tools=tuple(_tools(body.get("tools") or ())),
    )


def text_of(message: dict[str, Any]) -> str:
    """The text of a message, of all its text parts if it has parts; cut where it is longer than anyone would say."""
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content if part.get("type") == "text")
    return (content or "")[:LONGEST_TEXT]


def _instructions(messages: list[dict[str, Any]]) -> str:
    for message in messages[:2]:
        if message["role"] in ("system", "developer"):
            return text_of(message)
    return ""


def _results(tail: list[dict[str, Any]]) -> tuple[tuple[Result, ...], tuple[Result, ...]]:
    calls: dict[str, tuple[str, str]] = {}
    results: list[Result] = []
    seen = 0
    for message in tail:
        if message["role"] == "assistant":
            seen = len(results)
            for call in message.get("tool_calls") or ():
                calls[call["id"]] = (call["function"]["name"], call["function"]["arguments"])
        elif message["role"] == "tool":
            name, arguments = calls[message["tool_call_id"]]
            results.append(Result(name, arguments, text_of(message)))
    return tuple(results), tuple(results[seen:])


def _before(messages: list[dict[str, Any]]) -> tuple[str, tuple[str, ...]]:
    asked = next((text_of(m) for m in reversed(messages) if m["role"] == "assistant" and m.get("content")), "")
    texts = [text_of(message) for message in reversed(messages) if message["role"] == "user"]
    return asked, tuple(texts[:EARLIER_TEXTS])


def _tools(definitions: Iterable[dict[str, Any]]) -> Iterator[Tool]:
    for definition in definitions:
        function = definition["function"]
        yield Tool(function["name"], function.get("description", ""), function.get("parameters", {}))
