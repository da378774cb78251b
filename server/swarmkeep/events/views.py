"""A session and its runs as callers see them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappush, heappushpop
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from swarmkeep.agent.output import is_too_large
from swarmkeep.events.active_run import make_queued_run
from swarmkeep.events.codec import Json, MalformedJson, decode, digest, is_deeper_than
from swarmkeep.events.facts import Hold, Parent, PendingCall, RunError, StopReason, TakenOver
from swarmkeep.events.messages import Entry, list_shown, read_tool_calls
from swarmkeep.events.records import Cost, Usage, sum_usage
from swarmkeep.events.state import Feedback, Origin, Run, RunStatus, SessionStatus, State, find_finished_runs
from swarmkeep.events.wording import join_text
from swarmkeep.events.words import find_title

# An output that is nested as deeply is not taken apart.
_MAX_LEVELS = 200


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session as of one `seq`. Fields that do not apply are absent."""

    id: str
    """Its id."""
    status: SessionStatus
    """`idle`, `running` or `waiting`."""
    agent: str
    """The active agent."""
    context_variables: Json
    """Data of its functions."""
    metadata: Json
    """Your own labels."""
    seq: int
    """The number of its last event."""
    hash: str
    """That event's hash. A copy of it, kept elsewhere, proves the history up to there."""
    active_run_id: str | None
    """The run that is running or waiting, or null."""
    message_count: int
    """How many messages there are."""
    usage: Usage
    """Tokens as the provider counted them, over all model calls, shared ones of a fork included."""
    forked_from: Origin | None
    """Null, or the last event that both share."""
    created_at: str
    """When it was made."""
    updated_at: str
    """When something was last recorded."""
    last_run_status: RunStatus | UnsetType | None = UNSET
    """The status of the run that began last; null before the first."""
    title: str | UnsetType | None = UNSET
    """`metadata.title`, or the beginning of the first user message, in 80 characters; null before there is one. Absent
    in lists for sessions of a release without titles."""
    parent: Parent | UnsetType = UNSET
    """If an agent made it to ask another one: that call."""
    cost: Cost | UnsetType = UNSET
    """The cost of its own calls, where it is read by itself and a price is known."""
    taken_over: TakenOver | UnsetType = UNSET
    """If a person has taken over: who, and since when."""
    hold: Hold | UnsetType = UNSET
    """If it is on hold: why, by whom and since when."""
    assignee: str | UnsetType = UNSET
    """The person or queue that looks after it; absent if no one in particular does."""
    feedback: Feedback | UnsetType = UNSET
    """How many of its answers people found good, and how many not; absent without any."""
    queued_runs: int | UnsetType = UNSET
    """How many runs wait for their turn; absent while none does."""
    damaged_seq: int | UnsetType = UNSET
    """From this event on, what is stored is not what was recorded, and nothing is added; else absent."""


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
    assignee: str | UnsetType = UNSET
    feedback: Feedback | UnsetType = UNSET
    queued_runs: int | UnsetType = UNSET


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A place where a search found something."""

    seq: int | None
    """The message; null: the session's id and metadata."""
    snippet: str
    """The text around it, never markup; empty for a message above 300 kB."""
    ranges: list[tuple[int, int]]
    """The positions of the words in it, start and end, in code points."""


class ListedSession(SessionSummary, frozen=True, kw_only=True):
    """A session in a list."""

    context_variables: Json | UnsetType = UNSET
    """Only on request."""
    last_run_status: RunStatus | UnsetType | None = UNSET
    matches: list[Match] | UnsetType = UNSET
    """In a search: up to three places where it found something."""
    damaged_seq: int | UnsetType = UNSET


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run."""

    id: str
    """Its id."""
    session_id: str
    """Its session."""
    status: RunStatus
    """`queued`, `running`, `waiting`, `completed`, `failed`, `cancelled` or `interrupted`."""
    stop_reason: str | None
    """Why it ended or waits: `end_turn`, `max_turns`, `loop_detected`, `guardrail`, `tool_calls`, `approval`, `person`,
    `error`, `cancelled`, `interrupted`; null while it runs."""
    agent: str
    """The active agent, now or when the run ended."""
    messages: list[Json]
    """Its own, its input included."""
    output_text: str
    """The text of its last assistant message."""
    output: Any
    """Of a completed run whose answer was requested as JSON: the value. Null if the answer is not JSON after all, or
    has more than 1,000,000 characters or 20,000 values."""
    context_variables: Json
    """As they are now, or were when the run ended."""
    usage: Usage
    """The tokens of its own model calls."""
    error: RunError | None
    """Null, or why it failed."""
    pending: tuple[PendingCall, ...]
    """The calls that wait."""
    first_seq: int
    """Its first event."""
    last_seq: int
    """Its last event so far at which it said something, waited or continued."""
    created_at: str
    """When it was asked for."""
    finished_at: str | None
    """When it ended, or null."""
    total_usage: Usage | UnsetType = UNSET
    """`usage`, including that of the agents that it has asked; absent if none."""
    cost: Cost | UnsetType = UNSET
    """The cost of its own calls, where it is read by itself and a price is known."""


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
        assignee=UNSET if state.assignee is None else state.assignee,
        feedback=UNSET if state.feedback.verdict is None else state.feedback,
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
