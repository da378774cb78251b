"""A session and its runs as callers see them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappush, heappushpop
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from swarmkeep.agent.output import is_too_large
from swarmkeep.events.codec import Json, MalformedJson, decode, digest, is_deeper_than
from swarmkeep.events.facts import Hold, Parent, PendingCall, RunError, StopReason, TakenOver
from swarmkeep.events.fold import make_queued_run
from swarmkeep.events.messages import Entry, list_shown, read_tool_calls
from swarmkeep.events.records import Usage, sum_usage
from swarmkeep.events.state import Origin, Run, RunStatus, SessionStatus, State, find_finished_runs
from swarmkeep.events.usage import Cost
from swarmkeep.events.wording import join_text
from swarmkeep.events.words import find_title

# An output that is nested as deeply is not taken apart.
_MAX_LEVELS = 200


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session as of one `seq`. `hash` is that event's: kept elsewhere, it proves the history up to there.

    `parent`: the call of another session that it was made for, if it was. `taken_over`: who answers in the agent's
    place, if anybody does. `hold`: why nothing of it may be redacted or deleted.
    `last_run_status` is that of the run that began last, whether it goes on or has ended; null before the first. The
    store has it in a column of its own, and not in the view that it keeps. `title`: its title, or else its first words;
    null before anything was said. `cost`, of the session's own calls, is added where it is read, by the prices of then.
    `queued_runs` wait for their turn, if any do. `damaged_seq`: from that event on, what is stored is not what was
    recorded, and nothing is added.
    """

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
    last_run_status: RunStatus | UnsetType | None = UNSET
    title: str | UnsetType | None = UNSET
    parent: Parent | UnsetType = UNSET
    cost: Cost | UnsetType = UNSET
    taken_over: TakenOver | UnsetType = UNSET
    hold: Hold | UnsetType = UNSET
    queued_runs: int | UnsetType = UNSET
    damaged_seq: int | UnsetType = UNSET


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
    title: str | UnsetType | None = UNSET
    parent: Parent | UnsetType = UNSET
    taken_over: TakenOver | UnsetType = UNSET
    hold: Hold | UnsetType = UNSET
    queued_runs: int | UnsetType = UNSET


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A place where a search found something: a message by its `seq`; null means the session's id and metadata.

    `snippet` is the text around it, empty if that is too large to be read for a list; `ranges` are where the words are
    in it, as start and end in code points.
    """

    seq: int | None
    snippet: str
    ranges: list[tuple[int, int]]


class ListedSession(SessionSummary, frozen=True, kw_only=True):
    """A session in a list. `context_variables` are included only on request, `matches` only in a search."""

    context_variables: Json | UnsetType = UNSET
    last_run_status: RunStatus | UnsetType | None = UNSET
    matches: list[Match] | UnsetType = UNSET
    damaged_seq: int | UnsetType = UNSET


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run. `messages` are its own, its input included; `output_text` is what its last assistant message says.

    `output`: the value of that text, once the run is completed, if JSON was asked for. `total_usage`: its own usage and
    that of the agents that it asked, which is counted in their own sessions. `cost`, of its own usage, is added where
    it is read.
    """

    id: str
    session_id: str
    status: RunStatus
    stop_reason: str | None
    agent: str
    messages: list[Json]
    output_text: str
    output: Any
    context_variables: Json
    usage: Usage
    error: RunError | None
    pending: tuple[PendingCall, ...]
    first_seq: int
    last_seq: int
    created_at: str
    finished_at: str | None
    total_usage: Usage | UnsetType = UNSET
    cost: Cost | UnsetType = UNSET


def view_session(session_id: str, state: State) -> SessionView:
    damaged = UNSET if state.damage is None else state.damage.seq
    view = view_stored_session(session_id, state)
    return replace(view, last_run_status=find_last_run_status(state), damaged_seq=damaged)


def view_stored_session(session_id: str, state: State) -> SessionView:
    """View a session as the store keeps it, and as lists show it with the columns beside it."""
    return SessionView(
        id=session_id,
        status=state.status,
        agent=state.agent,
        context_variables=state.context_variables,
        metadata=state.metadata,
        seq=state.seq,
        hash=state.hash,
        active_run_id=None if state.run is None else state.run.id,
        message_count=state.message_count,
        usage=state.usage,
        forked_from=state.forked_from,
        parent=UNSET if state.parent is None else state.parent,
        taken_over=UNSET if state.taken_over is None else state.taken_over,
        hold=UNSET if state.hold is None else state.hold,
        created_at=state.created_at,
        updated_at=state.updated_at,
        title=find_title(state),
        queued_runs=len(state.queue) or UNSET,
    )


def find_last_run_status(state: State) -> RunStatus | None:
    """The status of the run that began last. One that was taken out of the queue never began, and another one was
    active then, which ends after it."""
    if state.run is not None:
        return state.run.status
    return state.finished[-1].status if len(state.finished) else None


def find_run(state: State, run_id: str) -> Run | None:
    """Return the run with that id, in any state."""
    begun = find_begun_run(state, run_id)
    if begun is not None or not state.queue:
        return begun
    return next((make_queued_run(state, queued) for queued in state.queue if queued.run_id == run_id), None)


def find_begun_run(state: State, run_id: str) -> Run | None:
    """The run with that id, if it does not wait in the queue."""
    if state.run is not None and state.run.id == run_id:
        return state.run
    places = find_finished_runs(state.finished).find(run_id)
    return state.finished[places[-1]] if places else None


def collect_runs(state: State) -> list[Run]:
    """Every run, oldest first."""
    active = [] if state.run is None else [state.run]
    return [*state.finished, *active, *(make_queued_run(state, queued) for queued in state.queue)]


def list_latest_runs(state: State, limit: int, before: int | None = None) -> list[Run]:
    """The runs that began last, newest first; with `before`, of those that began before that event."""
    # The first of a heap began first.
    begun: list[tuple[int, int, Run]] = []
    for place, run in enumerate(_iterate_backwards(state)):
        # All that ended earlier began earlier, too.
        if run.finished_at is not None and len(begun) == limit and begun[0][0] > run.last_seq:
            break
        if before is not None and run.first_seq >= before:
            continue
        (heappush if len(begun) < limit else heappushpop)(begun, (run.first_seq, -place, run))
    return [run for _, _, run in sorted(begun, reverse=True)]


def _iterate_backwards(state: State) -> Iterator[Run]:
    """Every run: first those that have not ended, then the others, the last one first."""
    yield from (make_queued_run(state, queued) for queued in reversed(state.queue))
    if state.run is not None:
        yield state.run
    yield from reversed(state.finished)


def view_run(session_id: str, state: State, run: Run) -> RunView:
    # Between an interrupted run's messages and those after its resumption may be others: a note of handing back.
    entries = [entry for entry in state.messages[run.first_message : run.last_message] if entry.run_id == run.id]
    answer = find_answer(entries)
    active = state.run is not None and state.run.id == run.id
    waiting = run.status == "waiting" and run.pending
    return RunView(
        id=run.id,
        session_id=session_id,
        status=run.status,
        stop_reason=_find_wait_reason(run) if waiting else run.stop_reason,
        agent=state.agent if active else run.agent,
        messages=[entry.view() for entry in list_shown(entries)],
        output_text=answer.text,
        output=answer.read_value() if run.stop_reason == "end_turn" else None,
        context_variables=state.context_variables if active else run.context_variables,
        usage=run.usage,
        error=run.error,
        pending=tuple(map(_show_pending, run.pending)),
        first_seq=run.first_seq,
        last_seq=run.last_seq,
        created_at=run.created_at,
        finished_at=run.finished_at,
        total_usage=_sum_asked(run, entries),
    )


def _show_pending(call: PendingCall) -> PendingCall:
    """A call with the digests that a decision may give back."""
    if call.reason == "approval":
        return replace(call, arguments_digest=digest(call.arguments))
    if call.approvals is UNSET:
        return call
    below = tuple(replace(each, arguments_digest=digest(each.arguments)) for each in call.approvals)
    return replace(call, approvals=below)


def _sum_asked(run: Run, entries: Sequence[Entry]) -> Usage | UnsetType:
    """The run's usage with that of the agents it has asked; UNSET if it has asked none."""
    total: Usage | UnsetType = UNSET
    for entry in entries:
        if entry.tool is not None and entry.tool.usage is not UNSET:
            total = sum_usage(run.usage if total is UNSET else total, entry.tool.usage)
    return total


class Answer(msgspec.Struct, frozen=True):
    """The last text of a run, and whether it was asked for in JSON."""

    text: str = ""
    is_json: bool = False

    def read_value(self) -> Any:
        """The value of it; None if it has none, or is too large to be taken apart."""
        if not self.is_json or is_too_large(self.text):
            return None
        try:
            return None if is_deeper_than(_MAX_LEVELS, self.text) else decode(self.text)
        except MalformedJson:
            return None


def find_answer(entries: Sequence[Entry]) -> Answer:
    """The last thing that an assistant says in these messages, or gives by the call that takes the output."""
    given = None
    for entry in reversed(entries):
        if entry.tool is not None and entry.tool.output is True:
            given = entry.message.get("tool_call_id")
        if entry.role != "assistant":
            continue
        if entry.removed:
            return Answer()
        for call_id, _, arguments in read_tool_calls(entry.message):
            if call_id == given:
                return Answer(arguments, is_json=True)
        return Answer(join_text(entry.message.get("content")), is_json=_was_asked_for_json(entry))
    return Answer()


def _was_asked_for_json(entry: Entry) -> bool:
    request = None if entry.completion is None else entry.completion.request
    wanted = None if request is None else request.params.get("response_format")
    return isinstance(wanted, dict) and wanted.get("type") in ("json_schema", "json_object")


def _find_wait_reason(run: Run) -> StopReason:
    reason = run.pending[0].reason
    return "person" if reason == "person" else "approval" if reason in ("approval", "session") else "tool_calls"
