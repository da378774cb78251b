"""A server's answers about removed data, as frozen values."""

from __future__ import annotations

import msgspec

from swarmkeep_client.models import Json, SessionState


class RedactedCopy(msgspec.Struct, frozen=True, kw_only=True):
    """Another session that holds the same events. `redacted`: there they are gone, too."""

    session_id: str
    seqs: list[int]
    redacted: bool = False


class Redaction(msgspec.Struct, frozen=True, kw_only=True):
    """The removed events: `seqs`, recorded in event `seq` (None: there was nothing left to remove).

    `forks` are the other sessions that hold the same events: forks, and those that this one was forked from.
    """

    session: SessionState
    seqs: list[int]
    seq: int | None = None
    forks: list[RedactedCopy] = []


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the audit log: what was done to a session that is gone, by whom (None: unknown), and why."""

    seq: int
    type: str
    by: str | None = None
    at: str = ""
    data: Json = {}
    hash: str = ""
