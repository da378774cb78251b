"""Tell the next steps that follow from a state by themselves from those that need something outside.

Outside steps are three: to ask the model for what comes next, to ask it for a summary, and to run calls whose starts
are recorded. All other steps are follow-ups, and are recorded in the commit that they follow from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from swarmkeep.decide import steps
from swarmkeep.decide.commands import start_queued
from swarmkeep.decide.drafts import apply_drafts, draft_events
from swarmkeep.decide.people import tell_note
from swarmkeep.decide.turns import (
    deny_call,
    end_run,
    make_changes,
    make_pending_call,
    record_result,
    request_approval,
    request_approvals,
    start_tool,
)
from swarmkeep.events.facts import (
    IMPORTED,
    EventDraft,
    RunCompleted,
    RunError,
    RunFailed,
    RunInterrupted,
    RunWaiting,
    SessionEvent,
    SessionImported,
)
from swarmkeep.events.records import Usage
from swarmkeep.events.state import Run, State, ToolCall


def _name_nothing(state: State) -> Collection[str]:
    return ()


def _start_alone(state: State, run: Run) -> Sequence[ToolCall]:
    return ()


def _ask_nobody(state: State, call: ToolCall) -> str | None:
    return None


class Approvals(msgspec.Struct, frozen=True, kw_only=True):
    """The approvals that are requested before a call starts. `find_guarded` names the tools that need an approval by
    today's code: a call may be older than that. `expires_at` is until when a request made now may be answered.
    `find_bare` names the tools without parameters. `find_batch` gives the calls that start together, if it is time for
    any; `find_session` names the session of a call that asks another agent.
    """

    find_guarded: Callable[[State], Collection[str]] = _name_nothing
    find_bare: Callable[[State], Collection[str]] = _name_nothing
    expires_at: str | None = None
    find_batch: Callable[[State, Run], Sequence[ToolCall]] = _start_alone
    find_session: Callable[[State, ToolCall], str | None] = _ask_nobody


NO_APPROVALS = Approvals()


def settle(
    state: State,
    drafts: Sequence[EventDraft],
    *,
    may_start_queued: Callable[[State], bool] = lambda state: True,
    approvals: Approvals = NO_APPROVALS,
) -> list[EventDraft]:
    """The drafts, and every follow-up. What is queued may be left to others.

    So a reply and its tool's start, or the last message and the run's end, share one commit.
    """
    drafts = list(drafts)
    state = apply_drafts(state, drafts)
    while more := draft_follow_up(state, may_start_queued=may_start_queued, approvals=approvals):
        state = apply_drafts(state, more)
        drafts += more
    return drafts


def draft_follow_up(
    state: State,
    *,
    may_start_queued: Callable[[State], bool] = lambda state: True,
    approvals: Approvals = NO_APPROVALS,
) -> list[EventDraft] | None:
    """The next step, if it follows from the state by itself. What is queued may be left to others."""
    run = state.run
    if run is not None and run.status == "running" and (refused := draft_cut_results(state, run, approvals)):
        return refused
    match steps.next_step(state):
        case steps.Deny(call=call) if run is not None:
            return draft_events(state.agent, record_result(state, run, call, deny_call(call)), run.id)
        case steps.CallTool(call=call) if run is not None and call.attempts == 0:
            asked = request_approvals(run, approvals.find_guarded(state), approvals.expires_at)
            return draft_events(call.agent or state.agent, asked or _start_tools(state, run, approvals, call), run.id)
        case steps.Wait(pending=pending) if run is not None:
            # One that waits for an approval keeps none back that may run beside it; a person who took over keeps all.
            begun = [] if state.taken_over is not None else _start_tools(state, run, approvals)
            facts = begun or [RunWaiting(pending=pending)]
            return draft_events(state.agent, facts, run.id)
        case steps.Finish(stop_reason=stop_reason, error=error) if run is not None:
            ending = RunCompleted if error is None else RunFailed
            return draft_events(state.agent, end_run(state, run, ending, stop_reason, error), run.id)
        case steps.TellNote() if state.handback_note is not None:
            return draft_events(state.agent, [tell_note(state.handback_note)], None if run is None else run.id)
        case steps.StartQueued() if may_start_queued(state):
            return start_queued(state)
        case _:
            return None


def draft_cut_results(state: State, run: Run, approvals: Approvals = NO_APPROVALS) -> list[EventDraft]:
    """Draft the results of the calls that the end of a reply cut, before anything else becomes of its calls."""
    drafts: list[EventDraft] = []
    for call in steps.list_cut_calls(state, run, approvals.find_bare):
        if state.run is not None:
            added = draft_events(state.agent, steps.refuse_cut_call(state, state.run, call), run.id)
            drafts += added
            state = apply_drafts(state, added)
    return drafts


def _start_tools(state: State, run: Run, approvals: Approvals, *alone: ToolCall) -> list[SessionEvent]:
    """The starts of the calls that are to begin now, all in one commit."""
    batch = approvals.find_batch(state, run) if len(run.own_open_calls) > 1 else ()
    return [start_tool(call, approvals.find_session(state, call)) for call in batch or alone]


def find_outside_step(state: State) -> steps.AskModel | steps.Compact | steps.CallTool | steps.CallTools | None:
    """Return the next step, if it needs something outside: a model, or tools."""
    match steps.next_step(state):
        case steps.AskModel() | steps.Compact() | steps.CallTools() as step:
            return step
        case steps.CallTool(call=call) as step if call.attempts:
            return step
        case _:
            return None


# Imports: what a session that was taken in from a file ends with.


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
