"""Holds back the text of answers whose form is checked: chat completions stream those that passed, and no others."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from swarmkeep.api.openai.chat.answer import ChatAnswer
from swarmkeep.domain.codec import Json
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import MessageAdded
from swarmkeep.engine.agents.registry import Registry
from swarmkeep.engine.streams.items import Item, MessageStarted


def release_or_hold(registry: Registry, answer: ChatAnswer, item: Item) -> Iterator[Json]:
    """Before an item is read: the chunks that it releases. It also decides whether its own text is held back."""
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
