"""Facts about a person who speaks in the agent's place."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.domain.facts.fact import Fact


class SessionTakenOver(Fact, frozen=True, kw_only=True):
    """From here on no model is asked, and no call begins. `note` is for those who look on, not for any model."""

    type: ClassVar[str] = "session.taken_over"
    by: str | None = None
    note: str | UnsetType = UNSET


class SessionHandedBack(Fact, frozen=True, kw_only=True):
    """The agent answers again. Its model reads `note` as a message, which is recorded as soon as no call is open."""

    type: ClassVar[str] = "session.handed_back"
    by: str | None = None
    note: str | UnsetType = UNSET


class TakenOver(msgspec.Struct, frozen=True, kw_only=True):
    """Who answers in the agent's place, and since when."""

    by: str | None
    at: str
    note: str | None = None


class HandbackNote(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent is told by whoever handed back, before its model is asked again."""

    text: str
    by: str | None
