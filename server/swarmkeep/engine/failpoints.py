"""Failpoints: named places where crash tests kill the process; armed through the environment only.

`SWARMKEEP_KILL_AT=tool.started:2` kills the process, as `kill -9` would, when it gets there for the second time.
Points: every event type (right after its commit), and the ones below.
"""

from __future__ import annotations

import os
import signal

REQUEST_PARSED = "request.parsed"
MODEL_SENT = "model.sent"
MODEL_DELTA = "model.delta"
TOOL_DONE = "tool.done"
ANSWER_READY = "answer.ready"

_armed_point, _, _visits = os.environ.get("SWARMKEEP_KILL_AT", "").partition(":")
_visits_left = int(_visits or 1)


def reach(point: str) -> None:
    """Die here if this is the armed point and its turn has come."""
    global _visits_left
    if point != _armed_point:
        return
    _visits_left -= 1
    if _visits_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
