"""Tell which events have lost their content."""

from __future__ import annotations

from swarmkeep.domain.codec import MalformedJson, decode
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import FACTS, UnknownFact


def is_lost(event: RecordedEvent) -> bool:
    """Whether an event of a known type does not say any more what it said: redacted, or not readable."""
    return is_redacted(event) or (isinstance(event.fact, UnknownFact) and event.type in FACTS)


def is_redacted(event: RecordedEvent) -> bool:
    """Whether a stand-in took the place of what was recorded; it says so beside its fields."""
    if '"redacted"' not in event.payload:
        return False
    try:
        value = decode(event.payload)
    except MalformedJson:
        return False
    return isinstance(value, dict) and value.get("redacted") is True
