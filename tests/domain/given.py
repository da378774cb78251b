"""Words for given, when, then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from swarmkeep.domain.drafts import drafted, provisional
from swarmkeep.domain.envelope import Draft
from swarmkeep.domain.events import (
    CompletionRecord,
    MessageAdded,
    RunOptions,
    RunQueued,
    RunStarted,
    SessionCreated,
    SessionEvent,
    SessionForked,
    SessionRedacted,
    SessionUpdated,
    ToolRecord,
    UnknownFact,
)
from swarmkeep.domain.fold import evolve
from swarmkeep.domain.settling import settle
from swarmkeep.domain.state import Run, State
from swarmkeep.domain.turns import Outcome, record_reply, record_result
from tests.support.logs import record

Json = dict[str, Any]
RUN, OTHER, THIRD = "run_a", "run_b", "run_c"
AT = "2026-01-01T00:00:00.000000Z"
CREATED = SessionCreated(agent="triage")
_OF_NO_RUN = (SessionCreated, SessionForked, SessionUpdated, SessionRedacted, UnknownFact)


def given(*facts: SessionEvent | Draft) -> State:
    """The state after `facts`, which happened in a session of the agent "triage" unless they begin one themselves.

    Facts belong to the active run, to RUN if none is, or to the one that `by` names.
    """
    begun = facts and isinstance(facts[0], SessionCreated)
    return when(State(), *(facts if begun else (CREATED, *facts)))


def when(state: State, *facts: SessionEvent | Draft) -> State:
    """The state after more facts."""
    for fact in facts:
        draft = fact if isinstance(fact, Draft) else Draft(fact, _run_of(state, fact), state.agent)
        state = evolve(state, record(draft, state.seq, state.hash))
    return state


def _run_of(state: State, fact: SessionEvent) -> str | None:
    if isinstance(fact, _OF_NO_RUN):
        return None
    if state.run is not None and not isinstance(fact, RunStarted | RunQueued):
        return state.run.id
    return None if isinstance(fact, MessageAdded) else RUN


def by(run_id: str | None, fact: SessionEvent, agent: str = "triage") -> Draft:
    return Draft(fact, run_id, agent)


def facts_of(drafts: Iterable[Draft]) -> list[SessionEvent]:
    return [draft.fact for draft in drafts]


def types_of(drafts: Iterable[Draft]) -> list[str]:
    return [draft.fact.type for draft in drafts]


def applied(state: State, drafts: Iterable[Draft]) -> State:
    """The state once the drafts are recorded."""
    for draft in drafts:
        state = evolve(state, provisional(state, draft, AT))
    return state


def active(state: State) -> Run:
    assert state.run is not None
    return state.run


def contents(state: State) -> list[object]:
    return [entry.message.get("content") for entry in state.messages]


def started(**options: Any) -> RunStarted:
    return RunStarted(options=RunOptions(**options))


def said(text: str = "hello") -> MessageAdded:
    return MessageAdded(message={"role": "user", "content": text, "sender": "user"})


def asks(*calls: Json) -> Json:
    """An assistant's message that asks for tools."""
    return {"role": "assistant", "content": None, "tool_calls": list(calls), "sender": "triage"}


def says(text: str = "Good day.") -> Json:
    """An assistant's message that ends a run."""
    return {"role": "assistant", "content": text, "sender": "triage"}


def reply(message: Json, usage: Json | None = None) -> MessageAdded:
    return MessageAdded(message=message, completion=CompletionRecord(usage=usage))


def call(call_id: str, name: str = "look_up", arguments: str = "{}") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(call_id: str, content: str = "done", *, name: str = "look_up", handoff: str | None = None) -> MessageAdded:
    tool = (
        ToolRecord(name=name, status="ok") if handoff is None else ToolRecord(name=name, status="ok", handoff=handoff)
    )
    message = {"role": "tool", "tool_call_id": call_id, "content": content, "sender": "triage"}
    return MessageAdded(message=message, tool=tool)


def model_says(state: State, message: Json, *, needs_approval: Iterable[str] = ()) -> list[Draft]:
    """One commit of the loop: a model's reply and what follows from it."""
    run = active(state)
    facts = record_reply(run, message, CompletionRecord(), needs_approval=set(needs_approval), expires_at=None)
    return settle(state, drafted(state.agent, facts, run.id))


def tool_says(state: State, call_id: str, outcome: Outcome | None = None) -> list[Draft]:
    """One commit of the loop: a tool's outcome and what follows from it."""
    run = active(state)
    asked = next(call for call in run.calls if call.id == call_id)
    facts = record_result(state, run, asked, outcome or Outcome(status="ok", content="done"))
    return settle(state, drafted(state.agent, facts, run.id))
