"""Which session and run the log lines of a task belong to."""

from __future__ import annotations

from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.events import RunStarted
from swarmkeep.domain.state import State
from swarmkeep.logs.context import bind_fields, current_fields
from swarmkeep.store.ports import SessionKey


def describe_session(key: SessionKey, state: State | None = None) -> None:
    """Say in log lines of this task what they are about. What its request said of itself stays."""
    run = None if state is None else state.run
    bind_fields(tenant=key.tenant, session_id=key.id, run_id=None if run is None else run.id)


def follow_run(event: RecordedEvent) -> None:
    """Say which run they are about, when another begins: it waited in the queue, and is of another request."""
    if isinstance(event.fact, RunStarted) and event.run_id != current_fields().get("run_id"):
        bind_fields(run_id=event.run_id, request_id=None, key=None)
