"""Where a fact was recorded: the envelope around it, on its way to the log and back."""

from __future__ import annotations

import msgspec

from swarmkeep.domain.codec import MalformedJson, decode, encode, encode_text
from swarmkeep.domain.events import FACTS, SessionEvent, UnknownFact
from swarmkeep.domain.facts.fact import Fact


class EventDraft(msgspec.Struct, frozen=True):
    """A fact on its way to the log. `agent` is the one active when it happened."""

    fact: SessionEvent
    run_id: str | None
    agent: str


class RecordedEvent(msgspec.Struct, frozen=True, gc=False):
    """A fact in the log. `payload` is its exact stored text, which the hash covers; `at` is information, not order."""

    session_id: str
    seq: int
    type: str
    version: int
    run_id: str | None
    agent: str
    at: str
    hash: str
    payload: str
    fact: SessionEvent


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """An event as the API shows it."""

    session_id: str
    seq: int
    type: str
    version: int
    run_id: str | None
    agent: str
    at: str
    data: msgspec.Raw
    hash: str


def view_event(event: RecordedEvent) -> EventView:
    """The public form; `data` is the stored text itself."""
    return EventView(
        session_id=event.session_id,
        seq=event.seq,
        type=event.type,
        version=event.version,
        run_id=event.run_id,
        agent=event.agent,
        at=event.at,
        data=msgspec.Raw(read_data(event)),
        hash=event.hash,
    )


def read_data(event: RecordedEvent) -> bytes:
    """The stored text as JSON in one line: itself; or, if it is damaged and not JSON, as a JSON string."""
    if isinstance(event.fact, UnknownFact) and event.fact.data is None:
        try:
            decode(event.payload)
        except MalformedJson:
            return encode(event.payload)
    if "\r" in event.payload or "\n" in event.payload:
        # No server writes any; what came out of a file may have them between its values, where they say nothing.
        return event.payload.encode().translate(None, b"\r\n")
    return event.payload.encode()


def encode_payload(fact: Fact) -> str:
    """The text that is stored and hashed."""
    return encode_text(fact)


def decode_fact(type_: str, payload: str) -> SessionEvent:
    """Read a stored payload of the current version. Unknown types pass through; unknown fields are ignored."""
    cls = FACTS.get(type_)
    if cls is None:
        return UnknownFact(data=decode(payload))
    return decode(payload, cls)  # type: ignore[return-value]


def is_redacted(event: RecordedEvent) -> bool:
    """Whether a stand-in took the place of what was recorded; it says so beside its fields."""
    if '"redacted"' not in event.payload:
        return False
    try:
        value = decode(event.payload)
    except MalformedJson:
        return False
    return isinstance(value, dict) and value.get("redacted") is True
