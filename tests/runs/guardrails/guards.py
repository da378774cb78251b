"""Guardrails that refuse a secret, fail or never end, and what is read of their verdicts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from swarmkeep import Agent, Refusal, tool
from swarmkeep.events.facts import GuardrailTripped, MessageAdded
from swarmkeep.events.fold import fold
from swarmkeep.history.replay import rebuild_request, replay_session
from swarmkeep.request.request import Profile, build_request
from swarmkeep.runs.agents import Registry
from swarmkeep.runs.engine import Engine
from swarmkeep.store.records import SessionKey
from tests.runs.cluster import KEY, read_log
from tests.support.rules import find_body_faults
from tests.support.scripted import ScriptedModel

SECRET = "swordfish"


def no_secrets(passing: Any, context_variables: dict[str, Any]) -> Refusal | None:
    """Refuses whatever has the secret in it, whatever is about to pass."""
    text = json.dumps(passing)
    context_variables["seen"] = text
    return Refusal("Let us speak of something else.") if SECRET in text else None


async def no_secrets_async(passing: Any, context_variables: dict[str, Any]) -> Refusal | None:
    await asyncio.sleep(0)
    return no_secrets(passing, context_variables)


def broken(passing: Any, context_variables: dict[str, Any]) -> Refusal | None:
    raise LookupError(f"no idea what {json.dumps(passing)} is")


def careless(passing: Any, context_variables: dict[str, Any]) -> Any:
    return "no"


async def endless(passing: Any, context_variables: dict[str, Any]) -> Refusal | None:
    await asyncio.Event().wait()
    return None


def list_trips(events: Any) -> list[GuardrailTripped]:
    return [event.fact for event in events if isinstance(event.fact, GuardrailTripped)]


def refuse_all(passing: Any, context_variables: dict[str, Any]) -> Refusal:
    return Refusal("Nor here.")


def list_statuses(events: Any) -> list[str]:
    facts = [event.fact for event in events]
    return [fact.tool.status for fact in facts if isinstance(fact, MessageAdded) and fact.tool is not None]


async def list_kinds(engine: Engine, *agents: Agent) -> list[str]:
    return [kind for kind, _, _ in await find_divergences(engine, *agents)]


async def check_log(engine: Engine, model: ScriptedModel) -> None:
    """From the events up to any seq a valid request can be made, and each that was sent can be rebuilt."""
    events = await read_log(engine)
    for upto in range(1, len(events) + 1):
        request = build_request(fold(events[:upto]), Profile(name="A", model="m", instructions=""))
        assert find_body_faults(request.body()) == []
    answers = [
        event.seq
        for event in events
        if isinstance(event.fact, MessageAdded) and event.fact.completion is not None and event.fact.completion.request
    ]
    assert [await rebuild_request(engine.store, KEY, seq) for seq in answers] == model.raw_requests


async def find_divergences(engine: Engine, *agents: Agent, key: SessionKey = KEY) -> list[tuple[str, Any, Any]]:
    replayed = await replay_session(engine.store, Registry(agents), key)
    return [(found.kind, found.recorded, found.actual) for found in replayed.divergences]


def make_payer(calls: list[str], *guardrails: Any, **options: Any) -> Any:
    @tool(guardrails=guardrails, **options)
    def pay(to: str) -> str:
        """Pay somebody."""
        calls.append(to)
        return f"paid {to}"

    return pay
