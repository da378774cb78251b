"""Reads a request for the offline model: the last user message, what came of it, and the tools."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from swarmkeep.domain.files.results import HEADING as FILES_HEADING
from swarmkeep.engine.models.offline.schema import list_choices
from swarmkeep.engine.models.offline.words import find_stems, spell_out

# Enough to understand a person; a pasted book would only cost time.
MAX_TEXT_CHARACTERS = 4000
MAX_EARLIER_MESSAGES = 40
MAX_EARLIER_TEXTS = 8

_HANDOFF_WORDS = frozenset(find_stems("transfer handoff handover escalate reroute"))
_ELSEWHERE = find_stems("handled different another outside other else triage back topic")


@dataclass(frozen=True)
class OfferedTool:
    """A function on offer, with the words it can be known by."""

    name: str
    description: str
    parameters: dict[str, Any]

    @cached_property
    def spoken_name(self) -> str:
        return spell_out(self.name)

    @cached_property
    def name_stems(self) -> frozenset[str]:
        return find_stems(self.name)

    @cached_property
    def other_stems(self) -> frozenset[str]:
        properties = self.parameters.get("properties")
        texts = [self.description]
        for name, schema in properties.items() if isinstance(properties, dict) else ():
            texts.append(name)
            if isinstance(schema, dict):
                texts += [str(value) for value in list_choices(schema)]
                texts.append(str(schema.get("description") or ""))
        return find_stems(" ".join(texts)[:MAX_TEXT_CHARACTERS])

    @property
    def is_handoff(self) -> bool:
        """Whether it looks like a handoff, by its name: `transfer_to_sales`, `escalate_to_agent`, `handoff`."""
        return bool(self.name_stems & _HANDOFF_WORDS) or self.spoken_name.startswith(("hand off", "hand over"))

    @property
    def is_way_out(self) -> bool:
        """Whether it is a handoff for what the present agent has no answer to."""
        words = self.name_stems | find_stems(self.description)
        return self.is_handoff and len(words & _ELSEWHERE) >= 2


@dataclass(frozen=True)
class CallResult:
    """A call made since the last user message, and what came back."""

    name: str
    arguments: str
    content: str

    @cached_property
    def handoff_agent(self) -> str | None:
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
    earlier_texts: tuple[str, ...]  # user messages before it, newest first
    last_reply: str  # what the assistant said just before it
    results: tuple[CallResult, ...]  # since it, oldest first
    unseen_results: tuple[CallResult, ...]  # those no model has seen yet
    assistant_has_spoken: bool  # whether the assistant has said anything at all yet
    tools: tuple[OfferedTool, ...]

    @property
    def handoff_agent(self) -> str | None:
        """The agent that has just taken over for this user message; it has not spoken yet."""
        names = [result.handoff_agent for result in self.unseen_results if result.handoff_agent]
        return names[-1] if names else None

    @property
    def was_handed_over(self) -> bool:
        return any(result.handoff_agent for result in self.results)


def read_turn(body: dict[str, Any]) -> Turn:
    """The turn a valid request asks for."""
    messages: list[dict[str, Any]] = body["messages"]
    last_user = next((i for i in range(len(messages) - 1, -1, -1) if _is_said(messages[i])), -1)
    results, fresh = _collect_results(messages[last_user + 1 :])
    asked, earlier = _collect_before(messages[max(0, last_user - MAX_EARLIER_MESSAGES) : max(0, last_user)])
    return Turn(
        instructions=_find_instructions(messages),
        text=read_text(messages[last_user]) if last_user >= 0 else "",
        earlier_texts=earlier,
        last_reply=asked,
        results=results,
        unseen_results=fresh,
        assistant_has_spoken=any(message["role"] == "assistant" and message.get("content") for message in messages),
        tools=tuple(_iterate_tools(body.get("tools") or ())),
    )


def read_text(message: dict[str, Any]) -> str:
    """The text of a message, of all its text parts if it has parts; cut where it is longer than anyone would say."""
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content if part.get("type") == "text")
    return (content or "")[:MAX_TEXT_CHARACTERS]


def _find_instructions(messages: list[dict[str, Any]]) -> str:
    for message in messages[:2]:
        if message["role"] in ("system", "developer"):
            return read_text(message)
    return ""


def _collect_results(tail: list[dict[str, Any]]) -> tuple[tuple[CallResult, ...], tuple[CallResult, ...]]:
    calls: dict[str, tuple[str, str]] = {}
    results: list[CallResult] = []
    seen = 0
    for message in tail:
        if message["role"] == "assistant":
            seen = len(results)
            for call in message.get("tool_calls") or ():
                calls[call["id"]] = (call["function"]["name"], call["function"]["arguments"])
        elif message["role"] == "tool":
            name, arguments = calls[message["tool_call_id"]]
            results.append(CallResult(name, arguments, read_text(message)))
    return tuple(results), tuple(results[seen:])


def _collect_before(messages: list[dict[str, Any]]) -> tuple[str, tuple[str, ...]]:
    asked = next((read_text(m) for m in reversed(messages) if m["role"] == "assistant" and m.get("content")), "")
    texts = [read_text(message) for message in reversed(messages) if _is_said(message)]
    return asked, tuple(texts[:MAX_EARLIER_TEXTS])


def _is_said(message: dict[str, Any]) -> bool:
    """Whether a user said it: not what stands there for files that functions gave."""
    return message["role"] == "user" and not read_text(message).startswith(FILES_HEADING)


def _iterate_tools(definitions: Iterable[dict[str, Any]]) -> Iterator[OfferedTool]:
    for definition in definitions:
        function = definition["function"]
        yield OfferedTool(function["name"], function.get("description", ""), function.get("parameters", {}))
