"""One event as it is shown to people, whichever way it is shown."""

from __future__ import annotations

from typing import Literal

import msgspec

from swarmkeep.audit.changes import Change
from swarmkeep.domain.events import Usage

Tone = Literal["plain", "good", "notice", "bad"]


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of a timeline.

    `speaker` is whoever speaks or acts (a user, an agent, a tool), or empty; `headline` a line about it; `text` what
    was said, whole; `calls` the calls that it is about, as Python writes calls; `changes` what it changed in context
    variables or metadata. `model`, `usage` and `duration_ms` are of a model call, a tool call or a run. `warning` says
    why there is less to tell than there was.
    """

    seq: int
    at: str
    type: str
    run_id: str | None = None
    agent: str = ""
    speaker: str = ""
    headline: str = ""
    text: str = ""
    calls: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    tone: Tone = "plain"
    model: str | None = None
    usage: Usage | None = None
    duration_ms: float | None = None
    warning: str = ""
