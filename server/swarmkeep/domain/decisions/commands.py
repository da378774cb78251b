"""Commands decide: a state and a command in, facts out, or a refusal. Ids and times come with the command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from swarmkeep.domain.checking.inputs import refuse_stray_results
from swarmkeep.domain.checking.known_ids import find_finished_runs
from swarmkeep.domain.codec import Json
from swarmkeep.domain.decisions.drafts import apply_drafts, draft_events
from swarmkeep.domain.decisions.partial import NOTHING_SAID, PartialReply
from swarmkeep.domain.decisions.turns import end_run
from swarmkeep.domain.envelope import EventDraft
from swarmkeep.domain.errors import RunNotFound, SessionBusy
from swarmkeep.domain.events import (
    ContextUpdated,
    MessageAdded,
    Parent,
    RunCancelled,
    RunQueued,
    RunStarted,
    SessionCreated,
    SessionEvent,
    SessionUpdated,
)
from swarmkeep.domain.patch import has_effect
from swarmkeep.domain.run_options import RunOptions
from swarmkeep.domain.state import State

OnBusy = Literal["reject", "queue", "interrupt"]


class StartRun(msgspec.Struct, frozen=True, kw_only=True):
    """A command to run. `messages` are the input, `context_variables` a merge patch applied first.

    `on_busy`, where another run is active or queued: `reject` refuses this one, `queue` puts it at the end of the
    queue, `interrupt` cancels the active run and begins this one in its place, before whatever is queued. One that is
    not to be `behind_waiting` is refused where it would queue behind a run that waits for somebody, and so is one that
    is to follow `after_run` where that is not the last run any more. `by`: who asks; `traceparent`: in which trace.
    """

    run_id: str
    messages: tuple[Json, ...]
    options: RunOptions = RunOptions()
    agent: str | None = None
    context_variables: Json = {}
    idempotency_key: str | None = None
    on_busy: OnBusy = "reject"
    behind_waiting: bool = True
    after_run: str | None = None
    by: str | UnsetType = UNSET
    traceparent: str | UnsetType = UNSET


def create_session(
    agent: str,
    context_variables: Json,
    metadata: Json,
    messages: Sequence[Json],
    parent: Parent | UnsetType = UNSET,
) -> list[SessionEvent]:
    """The first facts of a session; `messages` is a history to begin with, `parent` the call that it is made for."""
    created = SessionCreated(agent=agent, context_variables=context_variables, metadata=metadata, parent=parent)
    return [created, *(MessageAdded(message=add_sender(message)) for message in messages)]


def add_sender(message: Json) -> Json:
    """A message from outside, with a sender: its own if it names one."""
    return message if "sender" in message else {**message, "sender": message.get("role", "")}


def add_messages(state: State, messages: Sequence[Json]) -> list[SessionEvent]:
    """Messages outside of any run. Raises SessionBusy, and InvalidRequest for a result that answers no call."""
    refuse_if_busy(state)
    refuse_stray_results(messages, "/messages", state.messages)
    return [MessageAdded(message=add_sender(message)) for message in messages]


def update_session(
    state: State, *, agent: str | None = None, context_variables: Json | None = None, metadata: Json | None = None
) -> list[SessionEvent]:
    """Merge patches of context and metadata, and another active agent; no events for what already holds."""
    facts: list[SessionEvent] = []
    new_metadata = metadata if metadata and has_effect(state.metadata, metadata) else UNSET
    new_agent: str | UnsetType = UNSET if agent is None or agent == state.agent else agent
    if new_metadata is not UNSET or new_agent is not UNSET:
        facts.append(SessionUpdated(metadata=new_metadata, agent=new_agent))
    if context_variables and has_effect(state.context_variables, context_variables):
        facts.append(ContextUpdated(patch=context_variables))
    return facts


def start_run(state: State, command: StartRun, partial: PartialReply = NOTHING_SAID) -> list[EventDraft]:
    """Start a run, queue it, or have it take the active one's place, of which `partial` is kept. No events for a run
    that is there already.

    Raises SessionBusy when it may do none of these, and InvalidRequest for a tool message that answers no open call.
    """
    active = state.run
    if _is_known_run(state, command.run_id):
        return []
    if active is not None and active.status == "waiting" and not command.behind_waiting:
        raise SessionBusy(active.id, active.status)
    if command.after_run is not None:
        _refuse_unless_last(state, command.after_run)
    if command.on_busy == "queue" and (active is not None or state.queue):
        # Nobody knows yet what will come before it.
        refuse_stray_results(command.messages, "/input")
        return draft_events(state.agent, [_queue_run(command)], command.run_id)
    if command.on_busy == "interrupt":
        stopped = [] if active is None else cancel_run(state, active.id, partial)
        state = apply_drafts(state, stopped)
        refuse_stray_results(command.messages, "/input", state.messages)
        return [*stopped, *draft_events(state.agent, _begin_run(state, command), command.run_id)]
    refuse_if_busy(state)
    refuse_stray_results(command.messages, "/input", state.messages)
    return draft_events(state.agent, _begin_run(state, command), command.run_id)


def _refuse_unless_last(state: State, run_id: str) -> None:
    """Raise SessionBusy if anything has begun, or is about to, after that run."""
    refuse_if_busy(state)
    if not len(state.finished) or state.finished[-1].id != run_id:
        raise SessionBusy(state.finished[-1].id if len(state.finished) else run_id, "the last")


def refuse_if_busy(state: State) -> None:
    """Raise SessionBusy if a run is active, or about to begin."""
    if state.run is not None:
        raise SessionBusy(state.run.id, state.run.status)
    if state.queue:
        raise SessionBusy(state.queue[0].run_id, "queued")


def _is_known_run(state: State, run_id: str) -> bool:
    if state.run is not None and state.run.id == run_id:
        return True
    return any(queued.run_id == run_id for queued in state.queue) or run_id in find_finished_runs(state.finished)


def _queue_run(command: StartRun) -> RunQueued:
    return RunQueued(
        options=command.options,
        messages=command.messages,
        agent=command.agent,
        context_variables=command.context_variables,
        idempotency_key=command.idempotency_key,
        by=command.by,
        traceparent=command.traceparent,
    )


def _begin_run(state: State, command: StartRun) -> list[SessionEvent]:
    started = RunStarted(
        options=command.options,
        idempotency_key=command.idempotency_key,
        by=command.by,
        traceparent=command.traceparent,
    )
    facts: list[SessionEvent] = [started]
    if command.agent is not None and command.agent != state.agent:
        facts.append(SessionUpdated(agent=command.agent))
    if command.context_variables and has_effect(state.context_variables, command.context_variables):
        facts.append(ContextUpdated(patch=command.context_variables))
    return facts + [MessageAdded(message=add_sender(message)) for message in command.messages]


def start_queued(state: State) -> list[EventDraft]:
    """Start the first run of the queue."""
    queued = state.queue[0]
    fact = queued.fact
    command = StartRun(
        run_id=queued.run_id,
        messages=fact.messages,
        options=fact.options,
        agent=fact.agent,
        context_variables=fact.context_variables,
        idempotency_key=fact.idempotency_key,
        by=fact.by,
        traceparent=fact.traceparent,
    )
    return draft_events(state.agent, _begin_run(state, command), queued.run_id)


def cancel_run(state: State, run_id: str, partial: PartialReply = NOTHING_SAID) -> list[EventDraft]:
    """End a run that is queued, running or waiting, keeping what its model was just saying; nothing if it has ended."""
    run = state.run
    if run is not None and run.id == run_id:
        return draft_events(state.agent, end_run(state, run, RunCancelled, "cancelled", partial=partial), run_id)
    if any(queued.run_id == run_id for queued in state.queue):
        return draft_events(state.agent, [RunCancelled(stop_reason="cancelled")], run_id)
    if run_id in find_finished_runs(state.finished):
        return []
    raise RunNotFound(run_id)
