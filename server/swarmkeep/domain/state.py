"""The state of a session, and the fold that makes it from events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, assert_never

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from swarmkeep.domain.chain import Chain
from swarmkeep.domain.events import (
    ApprovalDecided,
    ApprovalRequested,
    ContextUpdated,
    Decision,
    HandoffIgnored,
    HandoffMade,
    MessageAdded,
    PendingCall,
    Recorded,
    RunCancelled,
    RunCompleted,
    RunEnded,
    RunError,
    RunFailed,
    RunInterrupted,
    RunOptions,
    RunQueued,
    RunResumed,
    RunStarted,
    RunWaiting,
    SessionCreated,
    SessionForked,
    SessionRedacted,
    SessionUpdated,
    StopReason,
    ToolStarted,
    UnknownFact,
    Usage,
)
from swarmkeep.domain.messages import SUPERSEDED, Entry, asked_calls
from swarmkeep.domain.patch import apply, merge

Json = dict[str, Any]
SessionStatus = Literal["idle", "running", "waiting"]
RunStatus = Literal["queued", "running", "waiting", "completed", "failed", "cancelled", "interrupted"]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of the current turn. `attempts` counts its starts; `handoff` is the agent that it returned."""

    id: str
    name: str
    arguments: str
    attempts: int = 0
    done: bool = False
    approval: Literal["requested"] | Decision | None = None
    approval_reason: str | None = None
    expires_at: str | None = None
    handoff: str | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run. While it is active, `agent` and `context_variables` are those it began with; then those it ended with.

    `answered`: the last model reply asked for no tools. `recoveries`: take-overs since the last model reply.
    Its messages are `state.messages[first_message:last_message]`.
    """

    id: str
    status: RunStatus
    options: RunOptions
    first_seq: int
    last_seq: int
    created_at: str
    agent: str
    first_message: int
    last_message: int
    context_variables: Json = {}
    idempotency_key: str | None = None
    turns: int = 0
    answered: bool = False
    calls: tuple[Call, ...] = ()
    pending: tuple[PendingCall, ...] = ()
    recoveries: int = 0
    usage: Usage = Usage()
    stop_reason: StopReason | None = None
    error: RunError | None = None
    finished_at: str | None = None

    @property
    def open_calls(self) -> tuple[Call, ...]:
        return tuple(call for call in self.calls if not call.done)


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    seq: int
    at: str
    fact: RunQueued


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a fork came from."""

    session_id: str
    seq: int
    hash: str


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A session after its first `seq` events; seq 0 is a session that does not exist yet."""

    seq: int = 0
    hash: str = ""
    agent: str = ""
    context_variables: Json = {}
    metadata: Json = {}
    messages: Chain[Entry] = msgspec.field(default_factory=Chain)
    run: Run | None = None
    queue: tuple[Queued, ...] = ()
    finished: Chain[Run] = msgspec.field(default_factory=Chain)
    usage: Usage = Usage()
    forked_from: Origin | None = None
    created_at: str = ""
    updated_at: str = ""
    size: int = 0
    """Bytes of payload folded so far."""

    @property
    def status(self) -> SessionStatus:
        if self.run is None:
            return "idle"
        return "waiting" if self.run.status == "waiting" else "running"


def fold(events: Iterable[Recorded], state: State | None = None) -> State:
    """The state after `events`, which follow `state` in the log."""
    folded = State() if state is None else state
    for event in events:
        folded = evolve(folded, event)
    return folded


def evolve(state: State, event: Recorded) -> State:
    """The state after one more event. Pure and total."""
    state = replace(state, seq=event.seq, hash=event.hash, updated_at=event.at, size=state.size + len(event.payload))
    fact = event.fact
    match fact:
        case MessageAdded():
            return _message_added(state, event, fact)
        case ToolStarted():
            return _with_call(state, fact.tool_call_id, attempts=fact.attempt)
        case ContextUpdated():
            nulls = () if fact.nulls is UNSET else fact.nulls
            return replace(state, context_variables=apply(state.context_variables, fact.patch, nulls))
        case HandoffMade():
            return replace(state, agent=fact.to_agent)
        case HandoffIgnored():
            return _handoff_ignored(state, fact)
        case SessionCreated():
            return replace(
                state,
                agent=fact.agent,
                context_variables=fact.context_variables,
                metadata=fact.metadata,
                created_at=event.at,
            )
        case SessionUpdated():
            return _session_updated(state, fact)
        case SessionForked():
            return _session_forked(state, event, fact)
        case SessionRedacted() | UnknownFact():
            return state
        case _:
            return _run_event(state, event, fact)


def _run_event(
    state: State,
    event: Recorded,
    fact: RunQueued | RunStarted | RunWaiting | RunResumed | ApprovalRequested | ApprovalDecided
    | RunCompleted | RunFailed | RunCancelled | RunInterrupted,
) -> State:  # fmt: skip
    match fact:
        case RunStarted():
            return _run_started(state, event, fact)
        case RunQueued():
            queued = Queued(run_id=event.run_id or "", seq=event.seq, at=event.at, fact=fact)
            return replace(state, queue=(*state.queue, queued))
        case RunWaiting():
            return _with_run(state, status="waiting", pending=fact.pending, last_seq=event.seq)
        case RunResumed():
            return _run_resumed(state, event, fact)
        case ApprovalRequested():
            return _with_call(state, fact.tool_call_id, approval="requested", expires_at=fact.expires_at)
        case ApprovalDecided():
            return _with_call(state, fact.tool_call_id, approval=fact.decision, approval_reason=fact.reason)
        case RunCompleted() | RunFailed() | RunCancelled() | RunInterrupted():
            return _run_ended(state, event, fact)
        case _:
            assert_never(fact)


def _with_run(state: State, **changes: Any) -> State:
    return state if state.run is None else replace(state, run=replace(state.run, **changes))


def _with_call(state: State, call_id: str | None, **changes: Any) -> State:
    if state.run is None:
        return state
    calls = tuple(replace(call, **changes) if call.id == call_id else call for call in state.run.calls)
    settled = {call.id for call in calls if call.done or call.approval in ("approve", "deny")}
    pending = tuple(waited for waited in state.run.pending if waited.tool_call_id not in settled)
    return _with_run(state, calls=calls, pending=pending)


def _message_added(state: State, event: Recorded, fact: MessageAdded) -> State:
    entry = Entry(
        seq=event.seq,
        at=event.at,
        run_id=event.run_id,
        message=fact.message,
        completion=fact.completion,
        tool=fact.tool,
    )
    state = replace(state, messages=state.messages.append(entry))
    if fact.completion is not None:
        state = replace(state, usage=add_usage(state.usage, fact.completion.usage))
    run = state.run
    if run is None or event.run_id != run.id:
        return state
    run = replace(run, last_seq=event.seq, last_message=len(state.messages))
    if fact.completion is not None:
        calls = calls_of(fact.message)
        run = replace(
            run,
            turns=run.turns + 1,
            recoveries=0,
            usage=add_usage(run.usage, fact.completion.usage),
            calls=calls,
            answered=not calls,
        )
    state = replace(state, run=run)
    if entry.role != "tool":
        return state
    handoff = fact.tool.handoff if fact.tool is not None and fact.tool.handoff is not UNSET else None
    return _with_call(state, fact.message.get("tool_call_id"), done=True, handoff=handoff)


def calls_of(message: Json) -> tuple[Call, ...]:
    """The tool calls an assistant message asks for, each id once."""
    return tuple(Call(id=call_id, name=name, arguments=arguments) for call_id, name, arguments in asked_calls(message))


def _handoff_ignored(state: State, fact: HandoffIgnored) -> State:
    # The result was recorded before it was known that a later call would hand over too. No model has seen it yet.
    for index in range(len(state.messages) - 1, -1, -1):
        entry = state.messages[index]
        if entry.role == "tool" and entry.message.get("tool_call_id") == fact.tool_call_id is not None:
            message = {**entry.message, "content": SUPERSEDED.format(agent=fact.to_agent)}
            tool = entry.tool and replace(entry.tool, status="superseded")
            return replace(state, messages=state.messages.replace_at(index, replace(entry, message=message, tool=tool)))
    return state


def _session_updated(state: State, fact: SessionUpdated) -> State:
    if fact.metadata is not UNSET:
        state = replace(state, metadata=merge(state.metadata, fact.metadata))
    return state if fact.agent is UNSET else replace(state, agent=fact.agent)


def _session_forked(state: State, event: Recorded, fact: SessionForked) -> State:
    # The run that the copied history may end in goes on in the original, not here.
    if state.run is not None:
        ended = RunInterrupted(stop_reason="interrupted", usage=state.run.usage)
        state = _end_active(state, state.run, event, ended)
    origin = Origin(session_id=fact.from_session_id, seq=fact.from_seq, hash=fact.from_hash)
    return replace(state, queue=(), forked_from=origin, created_at=event.at)


def _run_started(state: State, event: Recorded, fact: RunStarted) -> State:
    run_id = event.run_id or ""
    run = Run(
        id=run_id,
        status="running",
        options=fact.options,
        first_seq=event.seq,
        last_seq=event.seq,
        created_at=event.at,
        agent=state.agent,
        context_variables=state.context_variables,
        first_message=len(state.messages),
        last_message=len(state.messages),
        idempotency_key=fact.idempotency_key,
    )
    return replace(state, run=run, queue=tuple(queued for queued in state.queue if queued.run_id != run_id))


def _run_resumed(state: State, event: Recorded, fact: RunResumed) -> State:
    if state.run is None and state.finished and state.finished[-1].id == event.run_id:
        again = replace(state.finished[-1], recoveries=-1)
        state = replace(state, run=again, finished=state.finished.drop_last())
    if state.run is None:
        return state
    return _with_run(
        state,
        status="running",
        pending=(),
        stop_reason=None,
        error=None,
        finished_at=None,
        last_seq=event.seq,
        recoveries=state.run.recoveries + 1 if fact.reason == "recovery" else 0,
    )


_ENDED: dict[type[RunEnded], RunStatus] = {
    RunCompleted: "completed",
    RunFailed: "failed",
    RunCancelled: "cancelled",
    RunInterrupted: "interrupted",
}


def _run_ended(state: State, event: Recorded, fact: RunEnded) -> State:
    if state.run is not None and state.run.id == event.run_id:
        return _end_active(state, state.run, event, fact)
    for queued in state.queue:
        if queued.run_id == event.run_id:
            run = queued_run(state, queued)
            state = replace(state, queue=tuple(other for other in state.queue if other is not queued))
            return _finish(state, run, event, fact)
    return state


def queued_run(state: State, queued: Queued) -> Run:
    """A run that has not begun, in the form of one."""
    return Run(
        id=queued.run_id,
        status="queued",
        options=queued.fact.options,
        first_seq=queued.seq,
        last_seq=queued.seq,
        created_at=queued.at,
        agent=queued.fact.agent or state.agent,
        first_message=len(state.messages),
        last_message=len(state.messages),
        context_variables=state.context_variables,
        idempotency_key=queued.fact.idempotency_key,
    )


def _end_active(state: State, run: Run, event: Recorded, fact: RunEnded) -> State:
    run = replace(run, agent=state.agent, context_variables=state.context_variables)
    return _finish(replace(state, run=None), run, event, fact)


def _finish(state: State, run: Run, event: Recorded, fact: RunEnded) -> State:
    run = replace(
        run,
        status=_ENDED[type(fact)],
        stop_reason=fact.stop_reason,
        error=fact.error,
        pending=(),
        last_seq=event.seq,
        finished_at=event.at,
    )
    return replace(state, finished=state.finished.append(run))


def add_usage(usage: Usage, reported: Json | None) -> Usage:
    """Add what a provider reported; missing or odd figures count as nothing."""
    counts = {
        key: value if isinstance(value := (reported or {}).get(key), int) else 0
        for key in ("prompt_tokens", "completion_tokens", "total_tokens")
    }
    return Usage(
        prompt_tokens=usage.prompt_tokens + counts["prompt_tokens"],
        completion_tokens=usage.completion_tokens + counts["completion_tokens"],
        total_tokens=usage.total_tokens + counts["total_tokens"],
        model_calls=usage.model_calls + 1,
    )
