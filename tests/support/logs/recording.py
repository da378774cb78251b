"""Drafts recorded as a log, without a store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from swarmkeep.events.codec import encode_text
from swarmkeep.events.facts import EventDraft, RecordedEvent, UnknownFact, encode_payload


def record_drafts(drafts: Iterable[EventDraft]) -> list[RecordedEvent]:
    """The drafts as a log: numbered from 1, hashed one onto the other."""
    events: list[RecordedEvent] = []
    for draft in drafts:
        events.append(record_draft(draft, events[-1].seq if events else 0, events[-1].hash if events else ""))
    return events


def record_draft(draft: EventDraft, seq: int, previous: str) -> RecordedEvent:
    """The draft as the event after event `seq`."""
    fact = draft.fact
    payload = encode_text(fact.data) if isinstance(fact, UnknownFact) else encode_payload(fact)
    seq += 1
    return RecordedEvent(
        session_id="session",
        seq=seq,
        type="agent.dreamed" if isinstance(fact, UnknownFact) else fact.type,
        version=fact.version,
        run_id=draft.run_id,
        agent=draft.agent,
        at=f"2026-01-01T{seq // 3600:02}:{seq // 60 % 60:02}:{seq % 60:02}.000000Z",
        hash=hashlib.sha256(f"{previous}{payload}".encode()).hexdigest(),
        payload=payload,
        fact=fact,
    )
