"""Convert between the objects of the store and the types of the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from swarmkeep.audit.transfer.event_lines import to_recorded_event
from swarmkeep.domain.codec import decode, encode
from swarmkeep.domain.envelope import EventView, RecordedEvent, view_event
from swarmkeep.domain.views import ListedSession, SessionView
from swarmkeep.store.ports.index import SessionCounts as StoredCounts
from swarmkeep_client import Event, SessionCounts, SessionState, Verification

if TYPE_CHECKING:
    from swarmkeep.audit.verify.problems import Verification as StoredVerification


def from_client_event(event: Event) -> RecordedEvent:
    """The event as it was recorded, from what a server says of it."""
    return to_recorded_event(
        EventView(
            session_id=event.session_id,
            seq=event.seq,
            type=event.type,
            version=event.version,
            run_id=event.run_id,
            agent=event.agent or "",
            at=event.at,
            data=msgspec.Raw(encode(event.data)),
            hash=event.hash,
        )
    )


def to_client_event(event: RecordedEvent) -> Event:
    return decode(encode(view_event(event)), Event)


def to_session_state(view: SessionView | ListedSession) -> SessionState:
    # Through plain JSON values, which leave out what was not asked for.
    return msgspec.convert(msgspec.to_builtins(view), SessionState)


def to_client_verification(found: StoredVerification) -> Verification:
    return msgspec.convert(found, Verification, from_attributes=True)


def to_session_counts(found: StoredCounts) -> SessionCounts:
    return msgspec.convert(msgspec.to_builtins(found), SessionCounts)
