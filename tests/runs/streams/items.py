"""Events and deltas to publish, and how the tests of feeds read them."""

from __future__ import annotations

from typing import Any

from swarmkeep.events.facts import ContextUpdated, EventDraft, MessageAdded, RecordedEvent
from swarmkeep.events.records import CompletionRecord
from swarmkeep.runs.hub import Feed, Item, MessageDeltas
from tests.support.logs import record_draft

SECONDS = 20.0


def make_event(seq: int, fact: Any = None, run_id: str | None = "r1") -> RecordedEvent:
    return record_draft(EventDraft(fact or ContextUpdated(patch={}), run_id, "A"), seq - 1, "")


async def get(feed: Feed, seconds: float) -> Item | None:
    """The next item, if one comes within that time."""
    assert await feed.wait(seconds) is None
    return feed.take() if feed.items else None


def make_delta(text: str, seq: int = 1, run_id: str = "r1") -> MessageDeltas:
    return MessageDeltas(run_id, "A", seq, [{"content": text}])


REPLY = MessageAdded(message={"role": "assistant", "content": "hi"}, completion=CompletionRecord())
