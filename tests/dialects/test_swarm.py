"""The same conversation in every dialect without a server: its messages are kept as JSON between the runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swarmkeep import Agent
from swarmkeep.events.codec import Json
from tests.dialects.conversation import (
    CRASH,
    FORK,
    READY,
    REFUND,
    RULES,
    THANKS,
    WEATHER,
    Script,
    count_effects,
    read_effects,
    read_messages,
    tell,
)
from tests.dialects.team import triage
from tests.runs.swarm.runners import AsyncRunner, Runner, SyncRunner
from tests.support.dialects import DIALECTS, DialectModel
from tests.support.scripted import ScriptedModel

WAYS = [(kind, stream) for kind in (SyncRunner, AsyncRunner) for stream in (True, False)]
CASES = [(name, *WAYS[(number + shift) % len(WAYS)]) for shift in range(len(WAYS)) for number, name in enumerate(READY)]


class Program:
    """A program that keeps a conversation in a file, and goes on with it."""

    def __init__(self, runner: Runner, model: str, stream: bool) -> None:
        self.agent = triage
        self.kept = json.dumps([{"role": "system", "content": RULES}])
        self._runner = runner
        self._model = model
        self._stream = stream

    def say(self, *texts: str, **options: Any) -> None:
        messages = [*json.loads(self.kept), *({"role": "user", "content": text} for text in texts)]
        options |= {"model_override": self._model}
        if self._stream:
            frames = self._runner.stream(self.agent, messages, **options)
            response = frames[-1]["response"]
            assert join_frames(frames) == read_messages([m for m in response.messages if m["role"] == "assistant"])
        else:
            response = self._runner.run(self.agent, messages, **options)
        self.agent: Agent = response.agent
        self.kept = json.dumps([*messages, *response.messages])

    @property
    def messages(self) -> list[tuple[str, Any]]:
        return read_messages(json.loads(self.kept))


def join_frames(frames: list[Json]) -> list[tuple[str, Any]]:
    """The replies, put together from their deltas."""
    replies: list[Json] = []
    for frame in frames:
        if frame.get("delim") == "start":
            replies.append({"role": "assistant", "content": "", "tool_calls": []})
        if frame.get("content"):
            replies[-1]["content"] += frame["content"]
        for piece in frame.get("tool_calls") or []:
            calls = replies[-1]["tool_calls"]
            while len(calls) <= piece["index"]:
                calls.append({"function": {"name": "", "arguments": ""}})
            for key in ("name", "arguments"):
                calls[piece["index"]]["function"][key] += piece["function"].get(key) or ""
    return read_messages(replies)


def hold_conversation(runner: Runner, model: str, stream: bool) -> tuple[Program, Program]:
    """The whole of it, and a fork after its second message."""
    program, fork = Program(runner, model, stream), Program(runner, model, stream)
    program.say(WEATHER)
    program.say(REFUND)
    fork.agent, fork.kept = program.agent, program.kept
    program.say(CRASH, max_turns=1)
    program.say()
    program.say(THANKS)
    fork.say(FORK)
    return program, fork


@pytest.mark.parametrize(("name", "kind", "stream"), CASES)
def test_conversation_same_in_swarm(
    name: str, kind: Any, stream: bool, model: ScriptedModel, fake: DialectModel, script: Script, effects: Path
) -> None:
    # Nothing waits here: a program that is cut is one that did not come to its next reply.
    script.crashing.set()
    program, fork = hold_conversation(kind(model.url), DIALECTS[name].model, stream)
    assert fake.refused == []
    assert program.messages == tell(WEATHER, REFUND, CRASH, THANKS)
    assert fork.messages == tell(WEATHER, REFUND, FORK)
    assert (program.agent.name, fork.agent.name) == ("Refunds", "Triage")
    assert read_effects(effects) == count_effects(WEATHER, REFUND, CRASH, FORK, THANKS)


@pytest.mark.parametrize("kind", [SyncRunner, AsyncRunner])
@pytest.mark.parametrize("name", READY)
def test_a_conversation_may_change_its_model(
    name: str, kind: Any, model: ScriptedModel, fake: DialectModel, script: Script, effects: Path
) -> None:
    script.crashing.set()
    names = [*READY, *READY][READY.index(name) :][:2]
    programs = [Program(kind(model.url), DIALECTS[other].model, stream=True) for other in names]
    texts = [WEATHER, REFUND, CRASH, FORK, THANKS]
    for number, text in enumerate(texts):
        one, other = programs[number % len(programs)], programs[(number + 1) % len(programs)]
        one.say(text)
        other.agent, other.kept = one.agent, one.kept
    assert fake.refused == []
    assert other.messages == tell(*texts)
    assert read_effects(effects) == count_effects(*texts)
