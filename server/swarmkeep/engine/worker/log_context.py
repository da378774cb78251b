"""Which session and run the log lines of a task belong to, and the line of a run that did not come to its end."""

from __future__ import annotations

import logging

from swarmkeep.domain.decisions.outputs import OUTPUT_INVALID
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import RunFailed, RunInterrupted, RunStarted
from swarmkeep.domain.state import State
from swarmkeep.logs.context import bind_fields, current_fields
from swarmkeep.store.ports import SessionKey

log = logging.getLogger(__name__)


def describe_session(key: SessionKey, state: State | None = None) -> None:
    """Say in log lines of this task what they are about. What its request said of itself stays."""
    run = None if state is None else state.run
    bind_fields(tenant=key.tenant, session_id=key.id, run_id=None if run is None else run.id)


def follow_run(event: RecordedEvent) -> None:
    """Say which run they are about, when another begins: it waited in the queue, and is of another request."""
    if isinstance(event.fact, RunStarted) and event.run_id != current_fields().get("run_id"):
        bind_fields(run_id=event.run_id, request_id=None, key=None)


def log_trouble(key: SessionKey, event: RecordedEvent) -> None:
    """Tell whoever runs the server of a run that has failed or was interrupted: its caller is answered with 200."""
    fact = event.fact
    if isinstance(fact, RunFailed | RunInterrupted) and fact.error is not None:
        how = "failed" if isinstance(fact, RunFailed) else "was interrupted"
        # What is wrong with a form is told in the words of the answer, which are not for whoever reads logs.
        why = "" if fact.error.code == OUTPUT_INVALID else f": {fact.error.message}"
        described = {"tenant": key.tenant, "session_id": key.id, "run_id": event.run_id}
        log.warning("session %s: the run %s (%s)%s", key.id, how, fact.error.code, why, extra=described)
