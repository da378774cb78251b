"""Words for given, when, then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from swarmkeep.decide.drafts import draft_events, preview_event
from swarmkeep.decide.settle import settle
from swarmkeep.decide.turns import ToolOutcome, record_reply, record_result
from swarmkeep.events.codec import Json
from swarmkeep.events.facts import (
    EventDraft,
    FeedbackAdded,
    MessageAdded,
    MessageRemoved,
    NoteAdded,
    RunCompleted,
    RunQueued,
    RunStarted,
    SessionAssigned,
    SessionCreated,
    SessionEvent,
    SessionForked,
    SessionHandedBack,
    SessionHeld,
    SessionImported,
    SessionRedacted,
    SessionReleased,
    SessionTakenOver,
    SessionUpdated,
    UnknownFact,
)
from swarmkeep.events.fold import evolve
from swarmkeep.events.records import CompletionRecord, RunOptions, ToolRecord
from swarmkeep.events.state import Run, State
from tests.support.logs import record_draft

RUN, OTHER, THIRD = "run_a", "run_b", "run_c"
AT = "2026-01-01T00:00:00.000000Z"
CREATED = SessionCreated(agent="triage")
COMPLETED = RunCompleted(stop_reason="end_turn")
_FACTS_OUTSIDE_RUNS = (
    SessionCreated, SessionForked, SessionImported, SessionUpdated, SessionRedacted, MessageRemoved, UnknownFact,
    SessionTakenOver, SessionHandedBack, SessionHeld, SessionReleased, SessionAssigned, NoteAdded, FeedbackAdded,
)  # fmt: skip


def given(*facts: SessionEvent | EventDraft) -> State:
    """The state after `facts`, which happened in a session of the agent "triage" unless they begin one themselves.

    Facts belong to the active run, to RUN if none is, or to the one that `by` names.
    """
    begun = facts and isinstance(facts[0], SessionCreated)
    return when(State(), *(facts if begun else (CREATED, *facts)))


def when(state: State, *facts: SessionEvent | EventDraft) -> State:
    """The state after more facts."""
    for fact in facts:
        draft = fact if isinstance(fact, EventDraft) else EventDraft(fact, _find_run_id(state, fact), state.agent)
        state = evolve(state, record_draft(draft, state.seq, state.hash))
    return state


def _find_run_id(state: State, fact: SessionEvent) -> str | None:
    if isinstance(fact, _FACTS_OUTSIDE_RUNS):
        return None
    if state.run is not None and not isinstance(fact, RunStarted | RunQueued):
        return state.run.id
    return None if isinstance(fact, MessageAdded) else RUN


def in_run(run_id: str | None, fact: SessionEvent, agent: str = "triage") -> EventDraft:
    return EventDraft(fact, run_id, agent)


def list_facts(drafts: Iterable[EventDraft]) -> list[SessionEvent]:
    return [draft.fact for draft in drafts]


def list_types(drafts: Iterable[EventDraft]) -> list[str]:
    return [draft.fact.type for draft in drafts]


def record_drafts(state: State, drafts: Iterable[EventDraft]) -> State:
    """The state once the drafts are recorded."""
    for draft in drafts:
        state = evolve(state, preview_event(state.seq + 1, draft, AT))
    return state


def active_run(state: State) -> Run:
    assert state.run is not None
    return state.run


def list_contents(state: State) -> list[object]:
    return [entry.message.get("content") for entry in state.messages]


def make_run_started(**options: Any) -> RunStarted:
    return RunStarted(options=RunOptions(**options))


def user_said(text: str = "hello") -> MessageAdded:
    return MessageAdded(message={"role": "user", "content": text, "sender": "user"})


def running(*facts: SessionEvent | EventDraft, **options: Any) -> State:
    """The state of a run that was asked something, and after `facts`; the options are the run's."""
    return given(make_run_started(**options), user_said(), *facts)


def run_queued(run_id: str, **more: Any) -> EventDraft:
    return in_run(run_id, RunQueued(options=RunOptions(), messages=(), **more))


def calling_message(*calls: Json) -> Json:
    """An assistant's message that asks for tools."""
    return {"role": "assistant", "content": None, "tool_calls": list(calls), "sender": "triage"}


def answer_message(text: str = "Good day.") -> Json:
    """An assistant's message that ends a run."""
    return {"role": "assistant", "content": text, "sender": "triage"}


def model_reply(message: Json, usage: Json | None = None) -> MessageAdded:
    return MessageAdded(message=message, completion=CompletionRecord(usage=usage))


def model_answer(text: str = "Good day.") -> MessageAdded:
    """A reply that ends a run."""
    return model_reply(answer_message(text))


def model_calls(*calls: str | tuple[str, ...]) -> MessageAdded:
    """A reply that asks for tools: by the id of each call, or its id, name and arguments."""
    asked = (tool_call(call) if isinstance(call, str) else tool_call(*call) for call in calls)
    return model_reply(calling_message(*asked))


def tool_call(call_id: str, name: str = "look_up", arguments: str = "{}") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_result(
    call_id: str, content: str = "done", *, name: str = "look_up", handoff: str | None = None
) -> MessageAdded:
    tool = (
        ToolRecord(name=name, status="ok") if handoff is None else ToolRecord(name=name, status="ok", handoff=handoff)
    )
    message = {"role": "tool", "tool_call_id": call_id, "content": content, "sender": "triage"}
    return MessageAdded(message=message, tool=tool)


def commit_reply(state: State, message: Json, *, needs_approval: Iterable[str] = ("danger",)) -> list[EventDraft]:
    """One commit of the loop: a model's reply and what follows from it."""
    run = active_run(state)
    facts = record_reply(run, message, CompletionRecord(), needs_approval=set(needs_approval), expires_at=None)
    return settle(state, draft_events(state.agent, facts, run.id))


def commit_calls(state: State, *calls: str | tuple[str, ...]) -> list[EventDraft]:
    """One commit of the loop: a reply that asks for tools, of which `danger` needs an approval."""
    return commit_reply(state, model_calls(*calls).message)


def calling(*calls: str | tuple[str, ...], **options: Any) -> State:
    """The state of a run whose reply asks for these calls, once that is committed."""
    state = running(**options)
    return record_drafts(state, commit_calls(state, *calls))


def commit_result(state: State, call_id: str, outcome: ToolOutcome | None = None) -> list[EventDraft]:
    """One commit of the loop: a tool's outcome and what follows from it."""
    run = active_run(state)
    asked = next(call for call in run.calls if call.id == call_id)
    facts = record_result(state, run, asked, outcome or ToolOutcome(status="ok", content="done"))
    return settle(state, draft_events(state.agent, facts, run.id))
