"""How much a session of a file may hold at once: each event that follows costs what it holds."""

from __future__ import annotations

from swarmkeep.domain.state import State
from swarmkeep.domain.wording import pluralize

MAX_QUEUED_RUNS = 10_000
"""In one session, where no setting says how many: more than any server has let wait."""
MAX_REPLY_CALLS = 1000
"""Of one reply: far more than any server takes of a model."""


def find_excess(state: State, max_queued_runs: int) -> str | None:
    """What a state has too much of."""
    if len(state.queue) > max_queued_runs:
        waiting = pluralize(max_queued_runs, "run waits", "runs wait")
        return f"more than {waiting} in the session's queue (SWARMKEEP_MAX_QUEUED_RUNS)"
    if state.run is not None and len(state.run.calls) > MAX_REPLY_CALLS:
        return f"one reply of a model asks for more than {MAX_REPLY_CALLS} calls"
    return None
