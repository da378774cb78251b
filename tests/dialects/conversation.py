"""The one conversation that is held in every dialect, and what must have come of it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swarmkeep.events.codec import Json
from tests.support.dialects import DIALECTS, Answer

RULES = "Be kind."
WEATHER, REFUND, CRASH = "Weather in Rome and Oslo?", "I want my money back.", "Refund B-2 as well."
FORK, THANKS = "Refund nothing else. Weather in Bern?", "Thank you."
SUMMARY = "Two orders were refunded."

# The dialects in which the conversation is held.
READY = tuple(DIALECTS)

# What the model answers to each message, reply by reply.
SCRIPT: Mapping[str, Sequence[Answer]] = {
    WEATHER: (
        Answer("Let me look 😀.", (("get_weather", {"city": "Rome"}), ("get_weather", {"city": "Oslo", "unit": "F"}))),
        Answer("Sunny ☀ in both, 😀 ha ha."),
    ),
    REFUND: (
        Answer(calls=(("transfer_to_refunds", {}),)),
        Answer(calls=(("refund", {"order": "A-1", "amount": 5}),)),
        Answer("A-1 is refunded."),
    ),
    CRASH: (Answer(calls=(("refund", {"order": "B-2", "amount": 7.5}),)), Answer("B-2 is refunded.")),
    FORK: (
        Answer(calls=(("transfer_to_triage", {}),)),
        Answer(calls=(("get_weather", {"city": "Bern"}),)),
        Answer("Sunny in Bern."),
    ),
    THANKS: (Answer("You are welcome."),),
}
EFFECTS: Mapping[str, Sequence[list[Any]]] = {
    WEATHER: (["get_weather", {"city": "Rome", "unit": "C"}], ["get_weather", {"city": "Oslo", "unit": "F"}]),
    REFUND: (["transfer_to_refunds", {}], ["refund", {"order": "A-1", "amount": 5.0}]),
    CRASH: (["refund", {"order": "B-2", "amount": 7.5}],),
    FORK: (["transfer_to_triage", {}], ["get_weather", {"city": "Bern", "unit": "C"}]),
    THANKS: (),
}
RESULTS = {
    "get_weather": "sunny in {city}",
    "refund": "refunded {order}",
    "transfer_to_refunds": '{{"assistant": "Refunds"}}',
    "transfer_to_triage": '{{"assistant": "Triage"}}',
}


class Script:
    """The `reply_to` of a DialectModel. Its last reply to CRASH waits at a gate the first time that it is wanted."""

    def __init__(self) -> None:
        self.crashing = threading.Event()
        self.released = threading.Event()

    def __call__(self, messages: Sequence[Json]) -> Answer:
        if read_text(messages[0]).startswith("You sum up a conversation"):
            return Answer(SUMMARY)
        last = max(place for place, message in enumerate(messages) if message["role"] == "user")
        replies = sum(message["role"] == "assistant" for message in messages[last:])
        text = read_text(messages[last])
        answer = SCRIPT[text][replies]
        if text == CRASH and replies == 1 and not self.crashing.is_set():
            self.crashing.set()
            return Answer(answer.text, gate=self.released)
        return answer


def read_text(message: Json) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def tell(*texts: str) -> list[tuple[str, Any]]:
    """What a log must hold of these messages: role and text, or the calls."""
    found: list[tuple[str, Any]] = []
    for text in texts:
        found.append(("user", text))
        for answer in SCRIPT[text]:
            found.append(("assistant", (answer.text, [(name, dict(arguments)) for name, arguments in answer.calls])))
            found += [("tool", RESULTS[name].format(**arguments)) for name, arguments in answer.calls]
    return found


def read_messages(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, Any]]:
    """Messages as `tell` has them."""
    found: list[tuple[str, Any]] = []
    for message in messages:
        if message["role"] == "assistant":
            functions = [call["function"] for call in message.get("tool_calls") or ()]
            calls = [(function["name"], json.loads(function["arguments"] or "{}")) for function in functions]
            found.append(("assistant", (message["content"] or "", calls)))
        elif message["role"] != "system":
            found.append((message["role"], message["content"]))
    return found


def read_effects(path: Path) -> Counter[str]:
    return Counter(path.read_text().splitlines() if path.exists() else ())


def count_effects(*texts: str) -> Counter[str]:
    return Counter(json.dumps(effect) for text in texts for effect in EFFECTS[text])
