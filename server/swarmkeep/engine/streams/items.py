"""What happens of a session, as it happens: what is recorded, and what passes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from swarmkeep.domain.codec import Json
from swarmkeep.domain.envelope import RecordedEvent


class MessageStarted(msgspec.Struct, frozen=True):
    """A model call has begun on the history up to `seq`; what it says follows as deltas."""

    run_id: str
    agent: str
    seq: int


class MessageDeltas(msgspec.Struct, frozen=True):
    """Pieces of what a model says on the history up to `seq`, those that came at once; passing, never recorded."""

    run_id: str
    agent: str
    seq: int
    deltas: list[Json]


Item = RecordedEvent | MessageStarted | MessageDeltas


def join_text(deltas: Iterable[Json]) -> str:
    """The text that pieces add up to."""
    return "".join([delta.get("content") or "" for delta in deltas])


def merge_texts(deltas: Iterable[Json]) -> list[Json]:
    """The same pieces, with texts that follow each other in one."""
    merged: list[Json] = []
    texts: list[str] = []
    for delta in deltas:
        if not any(value for key, value in delta.items() if key not in ("role", "content")):
            texts.append(delta.get("content") or "")
            continue
        if any(texts):
            merged.append({"content": "".join(texts)})
        texts = []
        merged.append(delta)
    if any(texts):
        merged.append({"content": "".join(texts)})
    return merged
