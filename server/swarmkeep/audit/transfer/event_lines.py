"""Events as they stand in an export: one JSON object in a line, as the API shows events."""

from __future__ import annotations

import msgspec

from swarmkeep.domain.codec import decode, encode
from swarmkeep.domain.envelope import EventView, RecordedEvent
from swarmkeep.store.upcast import upcast


def parse_event_line(line: str | bytes) -> RecordedEvent:
    """The event that a line holds, its payload to the byte.

    Raises MalformedJson and msgspec.ValidationError for a line that is no event.
    """
    try:
        return to_recorded_event(msgspec.json.decode(line, type=EventView))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    # Lone surrogates in the envelope: Python's JSON reads them, and our own writes the payload as it was.
    plain = decode(line)
    if isinstance(plain, dict) and "data" in plain:
        plain = {**plain, "data": msgspec.Raw(encode(plain["data"]))}
    return to_recorded_event(msgspec.convert(plain, EventView))


def to_recorded_event(view: EventView) -> RecordedEvent:
    """The event behind its public form."""
    payload = bytes(view.data).decode()
    return RecordedEvent(
        session_id=view.session_id,
        seq=view.seq,
        type=view.type,
        version=view.version,
        run_id=view.run_id,
        agent=view.agent,
        at=view.at,
        hash=view.hash,
        payload=payload,
        fact=upcast(view.type, view.version, payload),
    )
