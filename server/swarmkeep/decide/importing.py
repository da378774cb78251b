"""Record the import at the end of a session that was taken in from a file: that it was, and what becomes of its
runs."""

from __future__ import annotations

from swarmkeep.decide.drafts import apply_drafts, draft_events
from swarmkeep.decide.settle import draft_cut_results
from swarmkeep.decide.turns import make_changes, make_pending_call, request_approval
from swarmkeep.events.facts import IMPORTED, EventDraft, RunError, RunInterrupted, RunWaiting, SessionImported
from swarmkeep.events.records import Usage
from swarmkeep.events.state import Run, State


def finish_import(state: State, *, source: str, digest: str, by: str | None) -> list[EventDraft]:
    """The import, and what follows from it: nothing runs by being imported, and what waits is asked for again.

    The list of pending calls of a waiting run, and its deadline, are not taken over: both are made from its calls.
    """
    imported = SessionImported(source=source, digest=digest, last_seq=state.seq, by=by)
    drafts = draft_events(state.agent, [imported], None)
    state = apply_drafts(state, drafts)
    run = state.run
    if run is not None and run.status == "waiting" and (refused := draft_cut_results(state, run)):
        drafts += refused
        state = apply_drafts(state, refused)
        run = state.run
    if run is not None and run.status == "waiting" and run.open_calls:
        return [*drafts, *_interrupt(state, [queued.run_id for queued in state.queue]), *_wait_anew(state, run)]
    # The active one last: only the latest run to end can be tried again.
    active = [] if run is None else [run.id]
    return [*drafts, *_interrupt(state, [*(queued.run_id for queued in state.queue), *active])]


def _interrupt(state: State, run_ids: list[str]) -> list[EventDraft]:
    error = RunError(code=IMPORTED, message="the session was imported in the middle of this run", retryable=True)
    drafts: list[EventDraft] = []
    for run_id in run_ids:
        run = state.run if state.run is not None and state.run.id == run_id else None
        changes = [] if run is None else make_changes(state, run)
        usage = Usage() if run is None else run.usage
        fact = RunInterrupted(stop_reason="interrupted", usage=usage, error=error)
        drafts += draft_events(state.agent, [*changes, fact], run_id)
    return drafts


def _wait_anew(state: State, run: Run) -> list[EventDraft]:
    pending = (
        *(make_pending_call(call, "approval") for call in run.own_open_calls),
        *(make_pending_call(call, "tool_calls") for call in run.outside_open_calls),
    )
    asked = [request_approval(call, None) for call in run.own_open_calls]
    return draft_events(state.agent, [*asked, RunWaiting(pending=pending)], run.id)
