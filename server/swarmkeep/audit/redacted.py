"""Tell which events have lost their content."""

from __future__ import annotations

from swarmkeep.domain.envelope import RecordedEvent, is_redacted
from swarmkeep.domain.events import FACTS, UnknownFact


def is_lost(event: RecordedEvent) -> bool:
    """Whether an event of a known type does not say any more what it said: redacted, or not readable."""
    return is_redacted(event) or (isinstance(event.fact, UnknownFact) and event.type in FACTS)
