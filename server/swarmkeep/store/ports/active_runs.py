"""The runs of a tenant that have begun and not ended, over all of its sessions."""

from __future__ import annotations

import sys
from typing import Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.domain.events import Parent

ActiveStatus = Literal["running", "waiting"]


class ActiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is active or waits for somebody, with its session.

    `since`: when it began, or continued after a wait; for a waiting run, when something was last recorded. `seq` is the
    session's last. `server` is the id of the process that has the session's lease, made as the process starts; null
    while nobody has it. `lease_seconds` is how long that lease lasts if it is not renewed, below 0 once it has expired.
    `lease_epoch` counts how often the lease has moved to another process. Calls and tokens are the run's own.
    `queued_runs` is how many runs wait in the session for their turn.
    """

    id: str
    session_id: str
    title: str | None
    status: ActiveStatus
    agent: str
    since: str
    seq: int
    server: str | None
    lease_epoch: int
    lease_seconds: float | None
    queued_runs: int
    model_calls: int
    tool_calls: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    parent: Parent | UnsetType = UNSET


class ActiveRunPage(msgspec.Struct, frozen=True):
    runs: list[ActiveRun]
    next_cursor: str | None


class ActiveRuns(Protocol):
    """The list of a tenant's active runs."""

    async def list_active_runs(
        self,
        tenant: str,
        status: ActiveStatus,
        *,
        limit: int = 50,
        cursor: str | None = None,
        max_bytes: int = sys.maxsize,
    ) -> ActiveRunPage:
        """Runs in that state, those first whose sessions were made last. A page may have fewer than `limit`, or none,
        and yet a cursor.

        Raises InvalidRequest for a cursor that this store did not make.
        """
        ...
