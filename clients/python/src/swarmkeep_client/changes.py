"""Changes of sessions."""

from __future__ import annotations

import msgspec

from swarmkeep_client.models import SessionStatus


class ChangedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is new or other than it was. `last_run_status` is that of the run that began last, if any."""

    id: str
    status: SessionStatus
    last_run_status: str | None = None


class SessionChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions that have changed since the item before, and the ids of deleted ones. With `more`, others may have
    changed, too: read the list."""

    sessions: tuple[ChangedSession, ...] = ()
    deleted: tuple[str, ...] = ()
    more: bool = False
