"""The names of sessions."""

from __future__ import annotations

import msgspec

DEFAULT_TENANT = "default"


class SessionKey(msgspec.Struct, frozen=True):
    """A session's full name. What belongs to one tenant does not exist for another."""

    tenant: str
    id: str
