"""Whether a run is over, for now or for good, as far as an event or a state tells."""

from __future__ import annotations

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import RunEnded, RunResumed, RunStarted, RunWaiting
from swarmkeep.domain.state import STATUS_BY_ENDING, Run, State
from swarmkeep.domain.views import RunView, find_run

TURNING_POINTS: tuple[str, ...] = (
    RunStarted.type,
    RunWaiting.type,
    RunResumed.type,
    *(ending.type for ending in STATUS_BY_ENDING),
)
"""The events that a run begins, waits, goes on and ends with."""


def is_open(run: Run | RunView | None) -> bool:
    """Whether a run goes on by itself, now or when its turn comes."""
    return run is not None and run.status in ("running", "queued")


def may_be_last(event: RecordedEvent) -> bool:
    """Whether a run ended or waited with this event."""
    return isinstance(event.fact, RunEnded | RunWaiting)


def has_stayed(run: Run, event: RecordedEvent) -> bool:
    """Whether a run that ended or waited with this event has not gone on since, and is not about to.

    While it waits, some of what it waits for may have been recorded.
    """
    return not is_open(run) and event.seq >= (run.last_wait if run.status == "waiting" else run.last_seq)


def is_as_it_was(state: State, run_id: str, at: int) -> bool:
    """Whether a state says what a run was after event `at`: it was over by then, and its messages are as they were."""
    run = find_run(state, run_id)
    is_over = run is not None and run.finished_at is not None and run.last_seq <= at
    return state.seq == at or (is_over and state.last_change <= at <= state.seq)
