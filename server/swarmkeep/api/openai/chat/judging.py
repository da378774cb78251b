"""Answers of a form that is checked: a client of chat completions is shown those that are right, and no others."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from swarmkeep.api.openai.chat.answer import ChatAnswer
from swarmkeep.domain.codec import Json
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import MessageAdded
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.streams.items import Item, MessageStarted


def judge_held(registry: Registry, answer: ChatAnswer, item: Item) -> Iterator[Json]:
    """What is shown before an item of what was held back until then; and whether what it says is held back."""
    if isinstance(item, MessageStarted):
        yield from answer.release_held()
        if _is_checked(registry, item.agent):
            answer.hold()
    elif isinstance(item, RecordedEvent):
        fact = item.fact
        if isinstance(fact, MessageAdded) and fact.message.get("role") == "assistant":
            if _is_checked(registry, item.agent):
                answer.hold()
        elif isinstance(fact, MessageAdded) and fact.correction is not UNSET:
            answer.drop_held()
        else:
            yield from answer.release_held()


def _is_checked(registry: Registry, agent: str) -> bool:
    return agent in registry and registry.get_active(agent).output_type is not None
