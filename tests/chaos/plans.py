"""A model that does what the user's message says: each message is a plan, one step for each reply.

It remembers nothing, so whichever server asks, and however often, gets the step that is next. What a test holds back,
it holds back by name.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from swarmkeep.events.codec import Json
from tests.support.scripted import Call, Completion, Raw, Reply
from tests.support.scripted.replies import split_pieces

PATIENCE_SECONDS = 60.0


def say_step(text: str, **options: Any) -> Json:
    """A step: these words. `hold` names a gate that the first reply to come there waits at; so does `pause`, but after
    the first word of a stream. With `always` every reply waits. `again`: what later replies there say instead."""
    return {"say": text, **options}


def call_step(*wanted: tuple[str, Mapping[str, Any]], **options: Any) -> Json:
    """A step: these calls in one reply."""
    return {"calls": [[name, dict(arguments)] for name, arguments in wanted], **options}


def refuse_step(status: int) -> Json:
    """A step: the provider refuses, for good."""
    return {"refuse": status}


def make_plan(*steps: Json) -> str:
    """The user's message that makes the model take these steps."""
    return json.dumps({"plan": steps})


class PlannedModel:
    """The `default` of a ScriptedModel."""

    def __init__(self) -> None:
        self._gates: dict[str, threading.Event] = {}
        self._arrived: Counter[str] = Counter()
        self._changed = threading.Condition()

    def __call__(self, request: Json) -> Reply:
        return self._reply(next_step(request["messages"]))

    def _reply(self, step: Json) -> Reply:
        if "refuse" in step:
            error = {"message": "refused", "type": "invalid_request_error", "param": None, "code": "no"}
            return Raw(
                body=json.dumps({"error": error}).encode(),
                status=step["refuse"],
                headers={"content-type": "application/json", "x-should-retry": "false"},
            )
        name = step.get("hold") or step.get("pause")
        gate = None if name is None else self._note_arrival(name, always=step.get("always", False))
        said = step.get("say")
        if name is not None and self._arrived[name] > 1:
            said = step.get("again", said)
        return Completion(
            pieces=() if said is None else split_pieces(said),
            calls=[Call(name, arguments) for name, arguments in step.get("calls", ())],
            gate=gate if "hold" in step else None,
            pause=gate if "pause" in step else None,
            delay=step.get("delay", 0.0),
        )

    def _note_arrival(self, name: str, *, always: bool) -> threading.Event | None:
        with self._changed:
            self._arrived[name] += 1
            self._changed.notify_all()
            first = self._arrived[name] == 1
            return self._gates.setdefault(name, threading.Event()) if first or always else None

    def wait_for(self, name: str, count: int = 1, seconds: float = PATIENCE_SECONDS) -> None:
        """Return once `count` requests have come to that gate."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._arrived[name] >= count, seconds):
                raise AssertionError(f"{self._arrived[name]} of {count} requests came to {name!r} in {seconds:g} s")

    def release(self, name: str) -> None:
        """Open a gate, for whoever waits there and for whoever comes."""
        with self._changed:
            self._gates.setdefault(name, threading.Event()).set()


def next_step(messages: Sequence[Json]) -> Json:
    """The next reply of the plan in the last user message, after those that are there already."""
    last = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=0)
    replies = sum(message["role"] == "assistant" for message in messages[last:])
    try:
        steps = json.loads(messages[last]["content"])["plan"]
    except (TypeError, ValueError, KeyError):
        steps = []
    return steps[replies] if replies < len(steps) else say_step("That is all.")


def wait_until(what: str, holds: Any, seconds: float = PATIENCE_SECONDS, every: float = 0.02) -> Any:
    """The first true value of `holds()`; fails after `seconds`, naming `what`."""
    deadline = time.monotonic() + seconds
    while not (value := holds()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds:g} s still not: {what}")
        time.sleep(every)
    return value
