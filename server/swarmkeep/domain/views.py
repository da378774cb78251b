"""A session and its runs as callers see them."""

from __future__ import annotations

import msgspec

from swarmkeep.domain.codec import Json
from swarmkeep.domain.events import PendingCall, RunError, StopReason, Usage
from swarmkeep.domain.state import Origin, Run, RunStatus, SessionStatus, State, make_queued_run


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session as of one `seq`. `hash` is that event's: noted down, it proves the history up to there."""

    id: str
    status: SessionStatus
    agent: str
    context_variables: Json
    metadata: Json
    seq: int
    hash: str
    active_run_id: str | None
    message_count: int
    usage: Usage
    forked_from: Origin | None
    created_at: str
    updated_at: str


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A session as of one `seq`, without what may be large: read from a SessionView, that is passed over."""

    id: str
    status: SessionStatus
    agent: str
    metadata: Json
    seq: int
    hash: str
    active_run_id: str | None
    message_count: int
    usage: Usage
    forked_from: Origin | None
    created_at: str
    updated_at: str


class ListedSession(SessionSummary, frozen=True, kw_only=True):
    """A session in a list. `context_variables` are there only if they were asked for."""

    context_variables: Json | msgspec.UnsetType = msgspec.UNSET


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run. `messages` are its own, its input included; `output_text` is what its last assistant message says."""

    id: str
    session_id: str
    status: RunStatus
    stop_reason: str | None
    agent: str
    messages: list[Json]
    output_text: str
    context_variables: Json
    usage: Usage
    error: RunError | None
    pending: tuple[PendingCall, ...]
    first_seq: int
    last_seq: int
    created_at: str
    finished_at: str | None


def view_session(session_id: str, state: State) -> SessionView:
    return SessionView(
        id=session_id,
        status=state.status,
        agent=state.agent,
        context_variables=state.context_variables,
        metadata=state.metadata,
        seq=state.seq,
        hash=state.hash,
        active_run_id=None if state.run is None else state.run.id,
        message_count=len(state.messages),
        usage=state.usage,
        forked_from=state.forked_from,
        created_at=state.created_at,
        updated_at=state.updated_at,
    )


def find_run(state: State, run_id: str) -> Run | None:
    """The run with that id, in whatever state it is."""
    if state.run is not None and state.run.id == run_id:
        return state.run
    for index in range(len(state.finished) - 1, -1, -1):
        if state.finished[index].id == run_id:
            return state.finished[index]
    return next((make_queued_run(state, queued) for queued in state.queue if queued.run_id == run_id), None)


def collect_runs(state: State) -> list[Run]:
    """Every run, oldest first."""
    active = [] if state.run is None else [state.run]
    return [*state.finished, *active, *(make_queued_run(state, queued) for queued in state.queue)]


def view_run(session_id: str, state: State, run: Run) -> RunView:
    entries = state.messages[run.first_message : run.last_message]
    contents = [entry.message.get("content") for entry in entries if entry.role == "assistant"]
    active = state.run is not None and state.run.id == run.id
    waiting = run.status == "waiting" and run.pending
    return RunView(
        id=run.id,
        session_id=session_id,
        status=run.status,
        stop_reason=_find_wait_reason(run) if waiting else run.stop_reason,
        agent=state.agent if active else run.agent,
        messages=[entry.view() for entry in entries],
        output_text=_join_text(contents[-1]) if contents else "",
        context_variables=state.context_variables if active else run.context_variables,
        usage=run.usage,
        error=run.error,
        pending=run.pending,
        first_seq=run.first_seq,
        last_seq=run.last_seq,
        created_at=run.created_at,
        finished_at=run.finished_at,
    )


def _find_wait_reason(run: Run) -> StopReason:
    return "approval" if run.pending[0].reason == "approval" else "tool_calls"


def _join_text(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
