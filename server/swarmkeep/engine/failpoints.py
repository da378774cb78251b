"""Named places to die at. Crash tests arm one through the environment; nothing else ever does.

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

_name, _, _count = os.environ.get("SWARMKEEP_KILL_AT", "").partition(":")
_left = int(_count or 1)


def reach(point: str) -> None:
    """Die here if this is the armed point and its turn has come."""
    global _left
    if point != _name:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
