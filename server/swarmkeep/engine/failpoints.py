"""Failpoints: named places where crash tests kill the process; armed through the environment only.

`SWARMKEEP_KILL_AT=tool.started:2` kills the process, as `kill -9` would, when it gets there for the second time.
`SWARMKEEP_KILL_AT=a@tool.started:2,b@run.started` does so when the sessions a and b have both got there: whichever is
first goes no step further.
Points: every event type (right after its commit), and the ones below.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextvars import ContextVar

REQUEST_PARSED = "request.parsed"
MODEL_SENT = "model.sent"
MODEL_DELTA = "model.delta"
TOOL_DONE = "tool.done"
CHILD_ENDED = "child.ended"
ANSWER_READY = "answer.ready"


def _read_visits(armed: str) -> dict[tuple[str, str], int]:
    """How often each point is still to be reached, by session, of which an empty one is any."""
    visits = {}
    for entry in filter(None, armed.split(",")):
        place, _, count = entry.partition(":")
        session_id, _, point = place.rpartition("@")
        visits[session_id, point] = int(count or 1)
    return visits


_visits_left = _read_visits(os.environ.get("SWARMKEEP_KILL_AT", ""))
_session_id: ContextVar[str] = ContextVar("session_id", default="")
_never = asyncio.Event()


async def reach(point: str, session_id: str = "", *, visits: int = 1) -> None:
    """Die here if this is an armed point and its turn has come; without a session it is the last one's of this task."""
    if not _visits_left:
        return
    if session_id:
        _session_id.set(session_id)
    for place in (("", point), (_session_id.get(), point)):
        if place in _visits_left:
            await _count_visits(place, visits)


async def _count_visits(place: tuple[str, str], visits: int) -> None:
    _visits_left[place] -= visits
    if _visits_left[place] > 0:
        return
    del _visits_left[place]
    if not _visits_left:
        os.kill(os.getpid(), signal.SIGKILL)
    await _never.wait()
