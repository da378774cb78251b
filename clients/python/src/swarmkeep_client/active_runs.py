"""Runs that have begun and not ended."""

from __future__ import annotations

from typing import Literal

import msgspec

from swarmkeep_client.models import Parent

ActiveStatus = Literal["running", "waiting"]


class ActiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """An active or waiting run, and the session that it is in.

    `since`: when it began, or went on after a wait; of one that waits, when something was recorded last. `server` is
    the process that has the session's lease, by an id of its own; `lease_seconds` is how long that lasts if it is not
    renewed, below 0 once it has expired. `lease_epoch` counts how often the lease went to another process. Calls and
    tokens are the run's own. `queued_runs` wait in the session for their turn.
    """

    id: str
    session_id: str
    status: str
    agent: str
    since: str
    title: str | None = None
    seq: int = 0
    server: str | None = None
    lease_epoch: int = 0
    lease_seconds: float | None = None
    queued_runs: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    parent: Parent | None = None
