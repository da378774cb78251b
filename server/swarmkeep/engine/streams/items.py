"""What happens of a session, as it happens: what is recorded, and what passes."""

from __future__ import annotations

import msgspec

from swarmkeep.domain.codec import Json
from swarmkeep.domain.envelope import RecordedEvent


class MessageStarted(msgspec.Struct, frozen=True):
    """A model call has begun on the history up to `seq`; what it says follows as deltas."""

    run_id: str
    agent: str
    seq: int


class MessageDelta(msgspec.Struct, frozen=True):
    """A piece of what a model says on the history up to `seq`; passing, never recorded."""

    run_id: str
    agent: str
    seq: int
    delta: Json


Item = RecordedEvent | MessageStarted | MessageDelta
