"""What a caller says was said before, looked at by input guardrails: nobody here knows whether that ever passed one."""

from __future__ import annotations

from collections.abc import Sequence

from swarmkeep.agent import Agent
from swarmkeep.domain.codec import Json
from swarmkeep.engine.agents.guardrails import Guards

_INSTRUCTING = ("system", "developer")
_ANSWERING = ("assistant", "tool")


async def find_passing(guards: Guards, agent: Agent, messages: Sequence[Json]) -> list[int]:
    """The places of the messages that may go to the agent's model. What is refused goes with the answer to it.

    All are looked at together first, and only if they are refused so, each exchange by itself.
    """
    everything = list(range(len(messages)))
    if not agent.input_guardrails or await _passes(guards, agent, messages, everything):
        return everything
    passing: list[int] = []
    for exchange in split_exchanges(messages):
        instructing = [place for place in exchange if messages[place]["role"] in _INSTRUCTING]
        if await _passes(guards, agent, messages, exchange):
            passing += exchange
        elif instructing and await _passes(guards, agent, messages, instructing):
            passing += instructing
    return passing


async def _passes(guards: Guards, agent: Agent, messages: Sequence[Json], places: Sequence[int]) -> bool:
    said = [messages[place] for place in places if messages[place]["role"] not in _ANSWERING]
    return not said or await guards.check_messages(agent, said, {}) is None


def split_exchanges(messages: Sequence[Json]) -> list[list[int]]:
    """The places of what was said, and then answered, one after the other."""
    exchanges: list[list[int]] = []
    for place, message in enumerate(messages):
        was_answered = bool(place) and messages[place - 1]["role"] in _ANSWERING
        if not place or (was_answered and message["role"] not in _ANSWERING):
            exchanges.append([])
        exchanges[-1].append(place)
    return exchanges
